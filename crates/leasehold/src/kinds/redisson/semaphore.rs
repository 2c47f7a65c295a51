//! Redisson's `RSemaphore`: permits that belong to nobody and never expire.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::super::handle::Handle;
use super::super::lock::Lock;
use super::Redisson;
use crate::error::Error;
use crate::lease::{Guard, Unfenced};
use crate::options::{LONGEST, Terms};
use crate::owner::Owner;
use crate::protocol::Kind;
use crate::protocol::redisson::Counted;

/// Redisson's semaphore by its name. Not fair.
///
/// The server does not know who holds its permits: those of a process that crashes are gone until somebody adds
/// them again, and so are those whose answer was lost, where the server stays out of reach for 20 s after. Where
/// that matters take [`PermitExpirableSemaphore`](super::PermitExpirableSemaphore).
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle<Counted>,
}

/// Permits of a [`Semaphore`], given back when dropped. They have no lease and cannot be lost.
#[derive(Debug)]
#[must_use = "the permits are given back as soon as this is dropped"]
pub struct Permits {
    guard: Guard<Unfenced>,
}

/// An acquisition of permits; made by [`Semaphore::acquire`], started by `.await`.
///
/// # Cancel safety
///
/// The future can be dropped at any time. Whatever was taken, or will be by a request that is still on its way, is
/// given back in the background.
#[must_use = "nothing is acquired until it is awaited"]
#[derive(Debug)]
pub struct Acquire {
    lock: Lock,
}

impl Semaphore {
    pub(super) fn new(redisson: &Redisson, name: &str) -> Self {
        let kind = redisson.layout.object(name).map(Counted::new);
        // What never expires is held for as long as anything can be, and not renewed.
        let mut terms = Terms::new(LONGEST);
        terms.renewed = false;
        Self {
            handle: Handle::new(redisson.engine.clone(), name, kind, &terms),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires so many permits, waiting for them as long as need be.
    pub fn acquire(&self, permits: u32) -> Acquire {
        let ask = self.handle.ask_as(self.taking(permits));
        Acquire {
            lock: Lock::new(ask),
        }
    }

    /// Acquires so many permits if there are; `Ok(None)` otherwise.
    ///
    /// # Cancel safety
    ///
    /// As for [`Acquire`].
    ///
    /// # Errors
    ///
    /// When the server cannot be asked; whatever was taken is given back.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Permits>, Error> {
        match self.acquire(permits).wait(Duration::ZERO).await {
            Ok(permits) => Ok(Some(permits)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds permits, also to a semaphore that had none: Redisson's `release` by one who did not acquire.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves them added or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. After [`Error::Unknown`] they may have been added.
    pub async fn add_permits(&self, permits: u32) -> Result<(), Error> {
        let kind = self.taking(permits)?;
        let mark = kind.mark(&Owner::random(), 0, "");
        self.handle
            .query(|_| kind.give(&mark, true))
            .await
            .map(drop)
    }

    /// Sets how many permits there are; false when that was done before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves them set or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. After [`Error::Unknown`] they may have been set.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.handle.query(|kind| kind.set(permits)).await
    }

    /// How many permits there are now.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn available_permits(&self) -> Result<i64, Error> {
        self.handle.query(Counted::available).await
    }

    fn taking(&self, permits: u32) -> Result<Arc<Counted>, Error> {
        if permits == 0 {
            return Err(Error::invalid("permits", "there must be at least one"));
        }
        Ok(Arc::new(self.handle.kind()?.taking(permits)))
    }
}

impl Acquire {
    /// Waits at most this long, all traffic included. Zero tries once.
    pub fn wait(self, limit: Duration) -> Self {
        Self {
            lock: self.lock.wait(limit),
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Permits, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let guard = self.lock.await?.unfenced();
            Ok(Permits { guard })
        })
    }
}

impl Permits {
    /// Gives the permits back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future hands the release to the background, as dropping the permits does.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. The background goes on trying.
    pub async fn release(self) -> Result<(), Error> {
        self.guard.release().await.map(drop)
    }
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Semaphore").field(&self.name()).finish()
    }
}

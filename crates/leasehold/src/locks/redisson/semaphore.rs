//! Redisson's `RSemaphore`: permits that belong to nobody and never expire.

use std::sync::Arc;

use super::super::acquire::{Acquire, TryAcquire};
use super::super::handle::Handle;
use super::Redisson;
use crate::error::Error;
use crate::lease::{Guard, Unfenced};
use crate::options::{AcquireOptions, MAX_LEASE};
use crate::owner::Owner;
use crate::protocol::Kind;
use crate::protocol::redisson::SemaphoreCalls;

/// Redisson's semaphore by its name. Not fair.
///
/// The server does not know who holds its permits: those of a process that crashes are gone until somebody adds
/// them again, and so are those whose answer was lost, where the server stays out of reach for 20 s after. Where
/// that matters take [`RPermitExpirableSemaphore`](super::RPermitExpirableSemaphore).
#[derive(Clone)]
pub struct RSemaphore {
    handle: Handle<SemaphoreCalls>,
}

/// Permits of a [`RSemaphore`], given back when dropped. They have no lease and cannot be lost.
#[derive(Debug)]
#[must_use = "the permits are given back as soon as this is dropped"]
pub struct PermitGuard {
    guard: Guard<Unfenced>,
}

impl RSemaphore {
    pub(super) fn new(redisson: &Redisson, name: &str) -> Self {
        let kind = redisson.naming.object(name).map(SemaphoreCalls::new);
        // What never expires is held for as long as anything can be, and not renewed.
        let mut options = AcquireOptions::new(MAX_LEASE);
        options.renewed = false;
        Self {
            handle: Handle::new(redisson.engine.clone(), name, kind, &options),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires `permits` permits, waiting until they are available.
    pub fn acquire(&self, permits: u32) -> Acquire<PermitGuard> {
        let request = self.handle.request_as(self.taking(permits));
        Acquire::guarded_by(request, PermitGuard::new)
    }

    /// Acquires `permits` permits if they are available; `Ok(None)`
    /// otherwise.
    pub fn try_acquire(&self, permits: u32) -> TryAcquire<PermitGuard> {
        let request = self.handle.request_as(self.taking(permits));
        TryAcquire::guarded_by(request, PermitGuard::new)
    }

    /// Adds permits, also to a semaphore that had none: Redisson's `release` by one who did not acquire.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves them added or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. After [`Error::OutcomeUnknown`] they may have been added.
    pub async fn add_permits(&self, permits: u32) -> Result<(), Error> {
        let kind = self.taking(permits)?;
        let value = kind.value(&Owner::random(), 0, "");
        self.handle
            .query(|_| kind.release_permits(&value, true))
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
    /// When the server cannot be asked. After [`Error::OutcomeUnknown`] they may have been set.
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
        self.handle.query(SemaphoreCalls::available).await
    }

    fn taking(&self, permits: u32) -> Result<Arc<SemaphoreCalls>, Error> {
        if permits == 0 {
            return Err(Error::invalid("permits", "there must be at least one"));
        }
        Ok(Arc::new(self.handle.kind()?.with_permits(permits)))
    }
}

impl PermitGuard {
    fn new(guard: Guard) -> Self {
        Self {
            guard: guard.unfenced(),
        }
    }

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

impl std::fmt::Debug for RSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RSemaphore").field(&self.name()).finish()
    }
}

//! Redisson's `RSemaphore`: permits without an owner or an expiry.

use std::sync::Arc;

use super::super::acquire::{Acquire, TryAcquire};
use super::super::handle::Handle;
use super::context::RedissonContext;
use crate::error::Error;
use crate::lease::{Guard, Unfenced};
use crate::options::{AcquireOptions, MAX_LEASE};
use crate::owner::Owner;
use crate::protocol::redisson::SemaphoreCalls;
use crate::protocol::{Description, Kind};

/// A semaphore of Redisson, whose permits do not expire.
///
/// It is unfair, and the server does not store who holds its permits. The
/// permits of a process that crashes are lost until a client
/// [adds](Self::add_permits) them again. Permits of an acquire whose reply was
/// lost are also lost if the server then stays unreachable for 20 s. Use
/// [`RPermitExpirableSemaphore`] where that is not acceptable.
///
/// [`RPermitExpirableSemaphore`]: super::RPermitExpirableSemaphore
#[derive(Clone)]
pub struct RSemaphore {
    handle: Handle<SemaphoreCalls>,
}

/// The guard of permits of an [`RSemaphore`].
///
/// The permits have no lease and cannot be lost. Dropping the guard releases
/// them in the background.
#[derive(Debug)]
#[must_use = "the permits are released as soon as the guard is dropped"]
pub struct PermitGuard {
    guard: Guard<Unfenced>,
}

impl RSemaphore {
    pub(super) fn new(context: &RedissonContext, name: &str) -> Self {
        let kind = context.naming.object(name).map(SemaphoreCalls::new);
        // Permits do not expire: the lease is the longest possible, and is not
        // renewed.
        let options = AcquireOptions {
            renewed: false,
            slow_hold: context.options.slow_hold,
            ..AcquireOptions::new(MAX_LEASE)
        };
        Self {
            handle: Handle::new(context.engine.clone(), name, kind, &options),
        }
    }

    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires `permits` permits, waiting until they are available.
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Acquire<PermitGuard> {
        let request = self.handle.request_as(self.with_permits(permits));
        Acquire::guarded_by(request, PermitGuard::new)
    }

    /// Acquires `permits` permits if they are available; resolves to `Ok(None)`
    /// otherwise.
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> TryAcquire<PermitGuard> {
        let request = self.handle.request_as(self.with_permits(permits));
        TryAcquire::guarded_by(request, PermitGuard::new)
    }

    /// Adds permits: Redisson's `release` without a preceding `acquire`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the permits added or not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `permits` is zero, and [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply. After the last
    /// one, the permits may have been added.
    pub async fn add_permits(&self, permits: u32) -> Result<(), Error> {
        let kind = self.with_permits(permits)?;
        let value = kind.value(&Owner::random(), Description::default());
        self.handle
            .send(|_| kind.release_permits(&value, true))
            .await
            .map(drop)
    }

    /// Sets the number of permits if it was never set. Returns whether it was
    /// set by this call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the number set or not.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the number may have been set.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.handle.send(|kind| kind.set(permits)).await
    }

    /// Returns the number of available permits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub async fn available_permits(&self) -> Result<i64, Error> {
        self.handle.send(SemaphoreCalls::available).await
    }

    /// Returns the calls that acquire `permits` permits.
    fn with_permits(&self, permits: u32) -> Result<Arc<SemaphoreCalls>, Error> {
        if permits == 0 {
            return Err(Error::invalid("permits", "0 is below the minimum of 1"));
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

    /// Releases the permits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future lets the release complete in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. The client keeps releasing in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.guard.release().await.map(drop)
    }
}

impl std::fmt::Debug for RSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RSemaphore").field(&self.name()).finish()
    }
}

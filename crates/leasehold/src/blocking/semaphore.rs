//! The semaphore.

use super::acquire::{Acquire, TryAcquire};
use super::bridge::Bridge;
use super::guard::Guard;
use crate::error::Error;
use crate::lease::Shared;
use crate::locks::PermitCounts;

/// A distributed semaphore with a FIFO queue; see the async
/// [`Semaphore`](crate::Semaphore).
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// let downloads = client.semaphore("downloads", 10);
/// let permit = downloads.acquire().acquire()?;
/// # drop(permit); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(pub(super) Bridge<crate::Semaphore>);

impl Semaphore {
    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires one permit, waiting in the queue until it is granted.
    #[track_caller]
    pub fn acquire(&self) -> Acquire<Guard<Shared>> {
        self.acquire_many(1)
    }

    /// Acquires `permits` permits at once, waiting in the queue until they are
    /// granted.
    ///
    /// Fails with [`Error::Invalid`] if `permits` is zero or exceeds the total.
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> Acquire<Guard<Shared>> {
        Acquire::guarded_by(self.0.inner.acquire_many(permits).request, Guard::marked)
    }

    /// Acquires one permit if it is available and no client waits.
    #[track_caller]
    pub fn try_acquire(&self) -> TryAcquire<Guard<Shared>> {
        self.try_acquire_many(1)
    }

    /// Acquires `permits` permits at once if they are available and no client
    /// waits.
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> TryAcquire<Guard<Shared>> {
        let request = self.0.inner.try_acquire_many(permits).request;
        TryAcquire::guarded_by(request, Guard::marked)
    }

    /// Sets the total number of permits, which overrides the number that
    /// clients use; see the async
    /// [`set_permits`](crate::Semaphore::set_permits).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `permits` is zero, and [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply. Calling it again
    /// is safe.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.0.wait(self.0.inner.set_permits(permits))
    }

    /// Returns the number of permits, of held permits, and of waiting
    /// processes.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn permits(&self) -> Result<PermitCounts, Error> {
        self.0.wait(self.0.inner.permits())
    }
}

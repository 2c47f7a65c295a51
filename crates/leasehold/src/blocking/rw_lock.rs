//! The read-write lock.

use super::acquire::{Acquire, TryAcquire};
use super::bridge::Bridge;
use super::guard::{Guard, WriteGuard};
use crate::error::Error;
use crate::info::Holder;
use crate::lease::Shared;

/// A distributed read-write lock with a FIFO queue; see the async
/// [`RwLock`](crate::RwLock).
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// let catalogue = client.rw_lock("catalogue");
/// let reader = catalogue.read().acquire()?;
/// let _ = reader.release()?;
/// let writer = catalogue.write().acquire()?;
/// let reader = writer.downgrade()?;
/// # drop(reader); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock(pub(super) Bridge<crate::RwLock>);

impl RwLock {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires the lock for reading, waiting in the queue until it is granted.
    #[track_caller]
    pub fn read(&self) -> Acquire<Guard<Shared>> {
        Acquire::guarded_by(self.0.inner.read().request, Guard::marked)
    }

    /// Acquires the lock for reading if no writer holds it or waits for it.
    #[track_caller]
    pub fn try_read(&self) -> TryAcquire<Guard<Shared>> {
        TryAcquire::guarded_by(self.0.inner.try_read().request, Guard::marked)
    }

    /// Acquires the lock for writing, waiting in the queue until it is granted.
    #[track_caller]
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::guarded_by(self.0.inner.write().request, WriteGuard::marked)
    }

    /// Acquires the lock for writing if it has no holders and no waiters.
    #[track_caller]
    pub fn try_write(&self) -> TryAcquire<WriteGuard> {
        TryAcquire::guarded_by(self.0.inner.try_write().request, WriteGuard::marked)
    }

    /// Returns one of the current holders, or `None` if the lock is free.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.0.wait(self.0.inner.holder())
    }
}

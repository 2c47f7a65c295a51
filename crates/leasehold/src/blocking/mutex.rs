//! The mutex, the fair mutex, and their reentrant handles.

use super::acquire::{Acquire, TryAcquire};
use super::bridge::Bridge;
use super::guard::Guard;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::Lease;

/// A distributed mutual-exclusion lock; see the async
/// [`Mutex`](crate::Mutex).
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// let guard = client.mutex("report").lock().acquire()?;
/// println!("token {}, {:?} remaining", guard.token(), guard.remaining());
/// let _ = guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex(pub(super) Bridge<crate::Mutex>);

impl Mutex {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires the lock, waiting until it is free.
    #[track_caller]
    pub fn lock(&self) -> Acquire {
        Acquire::guarded_by(self.0.inner.lock().request, Guard::marked)
    }

    /// Acquires the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::guarded_by(self.0.inner.try_lock().request, Guard::marked)
    }

    /// Acquires the lock, runs `work` on this thread, and releases the lock on
    /// every exit path; see [`Acquire::run`].
    ///
    /// **The work is not cancelled if the lease is lost.**
    ///
    /// # Errors
    ///
    /// As for [`Acquire::run`].
    #[track_caller]
    pub fn run<T>(&self, work: impl FnOnce(Lease) -> T) -> Result<T, Error> {
        self.lock().run(work)
    }

    /// Returns a handle that can acquire the lock again while it holds it.
    #[must_use]
    pub fn reentrant(&self) -> Reentrant {
        Reentrant(self.0.inner.reentrant().guarded_by(Guard::marked))
    }

    /// Returns the current holder, or `None` if the lock is free.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.0.wait(self.0.inner.holder())
    }
}

/// A distributed mutual-exclusion lock with a FIFO queue; see the async
/// [`FairMutex`](crate::FairMutex).
#[derive(Clone, Debug)]
pub struct FairMutex(pub(super) Bridge<crate::FairMutex>);

impl FairMutex {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires the lock, waiting in the queue until it is granted.
    #[track_caller]
    pub fn lock(&self) -> Acquire {
        Acquire::guarded_by(self.0.inner.lock().request, Guard::marked)
    }

    /// Acquires the lock if it has no holder and no waiters.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::guarded_by(self.0.inner.try_lock().request, Guard::marked)
    }

    /// Acquires the lock, runs `work` on this thread, and releases the lock on
    /// every exit path; see [`Acquire::run`].
    ///
    /// **The work is not cancelled if the lease is lost.**
    ///
    /// # Errors
    ///
    /// As for [`Acquire::run`].
    #[track_caller]
    pub fn run<T>(&self, work: impl FnOnce(Lease) -> T) -> Result<T, Error> {
        self.lock().run(work)
    }

    /// Returns this client's position in the queue, or `None` if none of its
    /// threads waits; see the async
    /// [`queue_position`](crate::FairMutex::queue_position).
    #[must_use]
    pub fn queue_position(&self) -> Option<u64> {
        self.0.inner.queue_position()
    }

    /// Returns the current holder, or `None` if the lock is free.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.0.wait(self.0.inner.holder())
    }
}

/// A handle that can acquire its lock again while it holds it; see the async
/// [`Reentrant`](crate::Reentrant).
///
/// Reentrancy belongs to the handle and its clones, not to a thread.
#[derive(Debug)]
pub struct Reentrant<G = Guard>(pub(super) crate::Reentrant<G>);

impl<G> Reentrant<G> {
    /// Acquires the lock, waiting until it is free. Returns immediately if this
    /// handle holds it.
    #[track_caller]
    pub fn lock(&self) -> Acquire<G> {
        let acquire = self.0.lock();
        Acquire::guarded_by(acquire.request, acquire.wrap)
    }

    /// Acquires the lock if it is free or held by this handle.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire<G> {
        let acquire = self.0.try_lock();
        TryAcquire::guarded_by(acquire.request, acquire.wrap)
    }
}

impl<G> Clone for Reentrant<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

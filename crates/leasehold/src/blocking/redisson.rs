//! Redisson's objects, shared with Java services on the same server; see the
//! async [`redisson`] for their limitations.
//!
//! # Examples
//!
//! ```no_run
//! # fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::blocking::Client::connect("redis://127.0.0.1/")?;
//! let guard = client.redisson().lock("invoice:42").lock().acquire()?;
//! // No Java client holds `getLock("invoice:42")` now.
//! let _ = guard.release()?;
//! # Ok(()) }
//! ```

use std::time::Duration;

use super::acquire::{Acquire, TryAcquire};
use super::bridge::Bridge;
use super::guard::{Guard, WriteGuard};
use super::mutex::Reentrant;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Lease, Unfenced};
use crate::locks::{GuardType, redisson};

pub use crate::locks::redisson::PubSubMode;

/// A factory of Redisson objects; see
/// [`Client::redisson`](super::Client::redisson).
///
/// Its defaults are those of Redisson. Settings that were changed in the Java
/// services must be changed here as well.
#[derive(Clone, Debug)]
#[must_use = "it only creates handles"]
pub struct Redisson(pub(super) Bridge<redisson::Redisson>);

impl Redisson {
    /// Returns the id of this client, as Redisson's `getId()`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.inner.id()
    }

    /// Sets the prefix of every key, as added by the `NameMapper` of the Java
    /// services; empty by default.
    pub fn prefix(self, prefix: &str) -> Self {
        Self(self.0.map(|factory| factory.clone().prefix(prefix)))
    }

    /// Sets the length of renewed leases, Redisson's `lockWatchdogTimeout`;
    /// 30 s by default.
    pub fn watchdog(self, timeout: Duration) -> Self {
        Self(self.0.map(|factory| factory.clone().watchdog(timeout)))
    }

    /// Sets Redisson's `fairLockWaitTimeout`; 5 minutes by default. The value
    /// must be the same on all sides.
    pub fn fair_wait(self, timeout: Duration) -> Self {
        Self(self.0.map(|factory| factory.clone().fair_wait(timeout)))
    }

    /// Sets the channels that announce releases;
    /// [`Auto`](PubSubMode::Auto) by default.
    pub fn pubsub_mode(self, mode: PubSubMode) -> Self {
        Self(self.0.map(|factory| factory.clone().pubsub_mode(mode)))
    }

    /// Returns a mutual-exclusion lock: Redisson's `getLock`.
    #[must_use]
    pub fn lock(&self, name: &str) -> RLock {
        let lock = |factory: &redisson::Redisson| factory.lock(name).guarded_by(Guard::marked);
        RLock(self.0.map(lock))
    }

    /// Returns a mutual-exclusion lock with fencing tokens: Redisson's
    /// `getFencedLock`.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> RLock<Guard> {
        let lock = |factory: &redisson::Redisson| {
            let lock = factory.fenced_lock(name);
            lock.guarded_by(Guard::marked)
        };
        RLock(self.0.map(lock))
    }

    /// Returns a mutual-exclusion lock with a FIFO queue: Redisson's
    /// `getFairLock`.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> RLock {
        let lock = |factory: &redisson::Redisson| factory.fair_lock(name).guarded_by(Guard::marked);
        RLock(self.0.map(lock))
    }

    /// Returns a read-write lock: Redisson's `getReadWriteLock`.
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> RReadWriteLock {
        let lock = self.0.inner.read_write_lock(name);
        let read = lock.read_lock().guarded_by(Guard::marked);
        let write = lock.write_lock().guarded_by(WriteGuard::marked);
        RReadWriteLock {
            read: RLock(self.0.map(|_| read)),
            write: RLock(self.0.map(|_| write)),
        }
    }

    /// Returns a semaphore whose permits do not expire: Redisson's
    /// `getSemaphore`.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> RSemaphore {
        RSemaphore(self.0.map(|factory| factory.semaphore(name)))
    }

    /// Returns a semaphore whose permits have leases: Redisson's
    /// `getPermitExpirableSemaphore`.
    #[must_use]
    pub fn permit_expirable_semaphore(&self, name: &str) -> RPermitExpirableSemaphore {
        let semaphore = |factory: &redisson::Redisson| factory.permit_expirable_semaphore(name);
        RPermitExpirableSemaphore(self.0.map(semaphore))
    }

    /// Returns a count-down latch: Redisson's `getCountDownLatch`.
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> RCountDownLatch {
        RCountDownLatch(self.0.map(|factory| factory.count_down_latch(name)))
    }
}

/// A lock of Redisson; see the async [`RLock`](redisson::RLock).
///
/// The owner of a lock is the guard, not the thread.
#[derive(Debug)]
pub struct RLock<G = Guard<Unfenced>>(Bridge<redisson::RLock<G>>);

impl<G> RLock<G> {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires the lock, waiting until it is free: Redisson's `lock()` and
    /// `tryLock(wait)`.
    #[track_caller]
    pub fn lock(&self) -> Acquire<G> {
        let acquire = self.0.inner.lock();
        Acquire::guarded_by(acquire.request, acquire.wrap)
    }

    /// Acquires the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire<G> {
        let acquire = self.0.inner.try_lock();
        TryAcquire::guarded_by(acquire.request, acquire.wrap)
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
    pub fn run<T>(&self, work: impl FnOnce(Lease<G::Fencing>) -> T) -> Result<T, Error>
    where
        G: GuardType,
    {
        self.lock().run(work)
    }

    /// Returns a handle that can acquire the lock again while it holds it.
    #[must_use]
    pub fn reentrant(&self) -> Reentrant<G> {
        Reentrant(self.0.inner.reentrant())
    }

    /// Revokes the lock from its holder: Redisson's `forceUnlock`. Returns
    /// whether it was held.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the lock may have been revoked.
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.0.wait(self.0.inner.force_unlock())
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

impl<G> Clone for RLock<G> {
    fn clone(&self) -> Self {
        Self(self.0.map(Clone::clone))
    }
}

/// A read-write lock of Redisson; see the async
/// [`RReadWriteLock`](redisson::RReadWriteLock).
#[derive(Clone, Debug)]
pub struct RReadWriteLock {
    read: RLock,
    write: RLock<WriteGuard<Unfenced>>,
}

impl RReadWriteLock {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Returns the lock of readers: Redisson's `readLock()`.
    #[must_use]
    pub fn read_lock(&self) -> &RLock {
        &self.read
    }

    /// Returns the lock of the writer: Redisson's `writeLock()`.
    #[must_use]
    pub fn write_lock(&self) -> &RLock<WriteGuard<Unfenced>> {
        &self.write
    }
}

/// A semaphore of Redisson, whose permits do not expire; see the async
/// [`RSemaphore`](redisson::RSemaphore).
#[derive(Clone, Debug)]
pub struct RSemaphore(Bridge<redisson::RSemaphore>);

impl RSemaphore {
    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires `permits` permits, waiting until they are available.
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Acquire<PermitGuard> {
        Acquire::guarded_by(self.0.inner.acquire(permits).request, PermitGuard::new)
    }

    /// Acquires `permits` permits if they are available.
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> TryAcquire<PermitGuard> {
        TryAcquire::guarded_by(self.0.inner.try_acquire(permits).request, PermitGuard::new)
    }

    /// Adds permits: Redisson's `release` without a preceding `acquire`.
    ///
    /// # Errors
    ///
    /// As for the async [`add_permits`](redisson::RSemaphore::add_permits).
    pub fn add_permits(&self, permits: u32) -> Result<(), Error> {
        self.0.wait(self.0.inner.add_permits(permits))
    }

    /// Sets the number of permits if it was never set. Returns whether it was
    /// set by this call.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the number may have been set.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.0.wait(self.0.inner.try_set_permits(permits))
    }

    /// Returns the number of available permits.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.0.wait(self.0.inner.available_permits())
    }
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

impl PermitGuard {
    fn new(guard: crate::Guard) -> Self {
        let guard = Guard::marked(guard);
        Self { guard }
    }

    /// Releases the permits.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. The client keeps releasing in the background.
    pub fn release(self) -> Result<(), Error> {
        self.guard.release().map(drop)
    }
}

/// A semaphore of Redisson, whose permits have leases; see the async
/// [`RPermitExpirableSemaphore`](redisson::RPermitExpirableSemaphore).
#[derive(Clone, Debug)]
pub struct RPermitExpirableSemaphore(Bridge<redisson::RPermitExpirableSemaphore>);

impl RPermitExpirableSemaphore {
    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Acquires `permits` permits, from 1 to 1000, waiting until they are
    /// available.
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Acquire<Guard<Unfenced>> {
        Acquire::guarded_by(self.0.inner.acquire(permits).request, Guard::marked)
    }

    /// Acquires `permits` permits, from 1 to 1000, if they are available.
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> TryAcquire<Guard<Unfenced>> {
        TryAcquire::guarded_by(self.0.inner.try_acquire(permits).request, Guard::marked)
    }

    /// Sets the number of permits if it was never set. Returns whether it was
    /// set by this call.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the number may have been set.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.0.wait(self.0.inner.try_set_permits(permits))
    }

    /// Returns the number of available permits. It is negative if the total was
    /// lowered below the number of held permits.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.0.wait(self.0.inner.available_permits())
    }
}

/// A count-down latch of Redisson; see the async
/// [`RCountDownLatch`](redisson::RCountDownLatch).
#[derive(Clone, Debug)]
pub struct RCountDownLatch(Bridge<redisson::RCountDownLatch>);

impl RCountDownLatch {
    /// Returns the name of the latch.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Closes the latch until `count` count-downs. Returns false if it is
    /// closed already.
    ///
    /// # Errors
    ///
    /// As for the async
    /// [`try_set_count`](redisson::RCountDownLatch::try_set_count).
    pub fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        self.0.wait(self.0.inner.try_set_count(count))
    }

    /// Counts down and returns the number of count-downs that remain.
    ///
    /// # Errors
    ///
    /// As for the async
    /// [`count_down`](redisson::RCountDownLatch::count_down).
    pub fn count_down(&self) -> Result<i64, Error> {
        self.0.wait(self.0.inner.count_down())
    }

    /// Returns the number of count-downs that remain.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn count(&self) -> Result<i64, Error> {
        self.0.wait(self.0.inner.count())
    }

    /// Blocks until the latch is open: Redisson's `await`.
    ///
    /// # Errors
    ///
    /// As for the async [`wait`](redisson::RCountDownLatch::wait).
    pub fn wait(&self) -> Result<(), Error> {
        self.0.wait(self.0.inner.wait())
    }

    /// Blocks until the latch is open, for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if `limit` elapses, and any error of
    /// [`wait`](Self::wait).
    pub fn wait_timeout(&self, limit: Duration) -> Result<(), Error> {
        self.0.wait(self.0.inner.wait_timeout(limit))
    }

    /// Deletes the latch, which opens it for all waiters, Java included.
    /// Returns false if it was open.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the latch may have been deleted.
    pub fn delete(&self) -> Result<bool, Error> {
        self.0.wait(self.0.inner.delete())
    }
}

//! The builders that every lock kind returns: options first, then `acquire`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::guard::{Guard, WriteGuard};
use crate::error::Error;
use crate::lease::{Lease, Shared, conclude};
use crate::locks::{AcquireRequest, GuardType, conversions, options};
use crate::options::{ReplicaAck, Replicas};

/// A pending acquire that waits for the lock; [`acquire`](Self::acquire) starts
/// it.
///
/// By default it waits without a timeout, and the lease is renewed until the
/// guard is dropped.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// let guard = client
///     .mutex("report")
///     .lock()
///     .timeout(Duration::from_millis(500))
///     .at_most(Duration::from_secs(60))
///     .note("monthly report")
///     .acquire()?;
/// # drop(guard); Ok(()) }
/// ```
#[must_use = "nothing is acquired until `acquire` is called"]
pub struct Acquire<G = Guard> {
    pub(super) request: AcquireRequest,
    /// Makes the guard that this kind returns.
    wrap: fn(crate::Guard) -> G,
}

/// A pending acquire that does not wait; [`acquire`](Self::acquire) starts it.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// match client.mutex("report").try_lock().acquire()? {
///     Some(guard) => println!("acquired with token {}", guard.token()),
///     None => println!("another client holds it"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is acquired until `acquire` is called"]
pub struct TryAcquire<G = Guard> {
    request: AcquireRequest,
    /// Makes the guard that this kind returns.
    wrap: fn(crate::Guard) -> G,
}

options!(Acquire);
options!(TryAcquire);
conversions!(Acquire);
conversions!(TryAcquire);

impl<G> Acquire<G> {
    /// Waits at most `limit`, all requests included. Zero tries once.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.options.timeout = Some(limit);
        self
    }

    /// Acquires the lock, and blocks until it is granted or the acquire fails.
    ///
    /// # Errors
    ///
    /// As for the async [`Acquire`](crate::Acquire). [`Error::ShutDown`] if the
    /// client is shut down meanwhile.
    pub fn acquire(self) -> Result<G, Error> {
        let runtime = self.request.engine.runtime().clone();
        runtime.wait(self.request.acquire_as(self.wrap))
    }
}

impl<G> TryAcquire<G> {
    /// Acquires the lock if it is free. Returns `Ok(None)` if another owner
    /// holds it.
    ///
    /// # Errors
    ///
    /// As for the async [`TryAcquire`](crate::TryAcquire).
    pub fn acquire(self) -> Result<Option<G>, Error> {
        let runtime = self.request.engine.runtime().clone();
        runtime.wait(self.request.try_acquire_as(self.wrap))
    }
}

impl<G: GuardType> Acquire<G> {
    /// Acquires the lock, runs `work` on this thread, and releases the lock on
    /// every exit path.
    ///
    /// **The work is not cancelled if the lease is lost.** It must call
    /// [`Lease::check`] itself before every effect. The call fails once the
    /// work has returned. If `work` panics, the lock is released before the
    /// panic resumes.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if the lease is lost
    /// before the work returns.
    pub fn run<T>(self, work: impl FnOnce(Lease<G::Fencing>) -> T) -> Result<T, Error> {
        let runtime = self.request.engine.runtime().clone();
        let guard = runtime.wait(self.request.acquire())?;
        let lease = guard.lease().clone();
        let output = catch_unwind(AssertUnwindSafe(|| work(lease.clone().viewed_as())));
        let in_time = lease.check();
        conclude(Some(output), in_time, runtime.wait(guard.release()))
    }
}

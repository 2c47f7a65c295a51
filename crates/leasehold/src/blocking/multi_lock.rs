//! The multi-lock: several locks of any kind under one guard.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::acquire::Acquire;
use super::guard::Guard;
use super::lost_signal::LostSignal;
use crate::error::Error;
use crate::lease::{Fenced, HasToken, KeeperRuntime, Lease, ReleaseOutcome, conclude};
use crate::owner::Token;

/// A pending acquire of several locks; [`acquire`](Self::acquire) starts it.
///
/// It acquires all locks or none; see the async
/// [`MultiLock`](crate::MultiLock).
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// use leasehold::blocking::MultiLock;
///
/// let from = client.mutex("account:1");
/// let to = client.fair_mutex("account:2");
/// let both = MultiLock::new([from.lock(), to.lock()])
///     .timeout(Duration::from_secs(5))
///     .acquire()?;
/// for (name, token) in both.tokens() {
///     println!("{name} has token {token}");
/// }
/// let _ = both.release()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "nothing is acquired until `acquire` is called"]
pub struct MultiLock<F = Fenced> {
    locks: crate::MultiLock<F>,
    /// `None` if no lock is listed.
    runtime: Option<KeeperRuntime>,
}

/// The guard of a [`MultiLock`].
///
/// Dropping it releases all locks in the background.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard<F = Fenced> {
    guard: crate::MultiGuard<F>,
    runtime: KeeperRuntime,
}

impl<F: HasToken + 'static> MultiLock<F> {
    /// Combines several acquires, each with its own options.
    ///
    /// The acquire of a writer is converted with `.into()`.
    pub fn new(parts: impl IntoIterator<Item = Acquire<Guard<F>>>) -> Self {
        let mut runtime = None;
        let parts = parts.into_iter().map(|part| {
            runtime.get_or_insert_with(|| part.request.engine.runtime().clone());
            crate::Acquire::guarded_by(part.request, crate::Guard::marked)
        });
        Self {
            locks: crate::MultiLock::new(parts),
            runtime,
        }
    }

    /// Waits at most `limit` for all locks together. The timeouts of the single
    /// acquires also apply.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.locks = self.locks.timeout(limit);
        self
    }

    /// Acquires all locks, and blocks until they are granted or one fails.
    ///
    /// # Errors
    ///
    /// As for the async [`MultiLock`](crate::MultiLock), and
    /// [`Error::Invalid`] if no lock is listed.
    pub fn acquire(self) -> Result<MultiGuard<F>, Error> {
        let Some(runtime) = self.runtime else {
            return Err(Error::invalid("locks", "none is listed"));
        };
        let guard = runtime.wait(self.locks.into_future())?;
        Ok(MultiGuard { guard, runtime })
    }

    /// Acquires all locks, runs `work` on this thread, and releases the locks
    /// on every exit path; see [`Acquire::run`].
    ///
    /// **The work is not cancelled if a lease is lost.**
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if a lease is lost before
    /// the work returns.
    pub fn run<T>(self, work: impl FnOnce(Vec<Lease<F>>) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let leases = guard.leases().cloned().collect();
        let output = catch_unwind(AssertUnwindSafe(|| work(leases)));
        let in_time = guard.check();
        conclude(Some(output), in_time, guard.release())
    }
}

impl<F: HasToken> MultiGuard<F> {
    /// Returns the name and fencing token of each lock, in the order in which
    /// they were acquired.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, Token)> {
        self.guard.tokens()
    }
}

impl<F> MultiGuard<F> {
    /// Returns the leases, in the order in which they were acquired.
    pub fn leases(&self) -> impl Iterator<Item = &Lease<F>> {
        self.guard.leases()
    }

    /// Returns the remaining time of the lease that ends first; zero if one has
    /// ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Checks, by the clock alone, that all leases are valid.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] for the first lease that was lost.
    pub fn check(&self) -> Result<(), Error> {
        self.guard.check()
    }

    /// Returns a signal that reports the first lease that is lost; see
    /// [`Guard::lost_signal`].
    #[must_use]
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new(self.leases().map(Lease::unfenced))
    }

    /// Extends every lease to at least `lease` from now; see
    /// [`Guard::extend`].
    ///
    /// # Errors
    ///
    /// The first error of a lease. Other leases may have been extended.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.runtime.wait(self.guard.extend(lease))
    }

    /// Releases all locks concurrently. Returns [`ReleaseOutcome::Released`]
    /// only if every lease was valid until its release.
    ///
    /// # Errors
    ///
    /// The first error of a release. The client keeps releasing in the
    /// background.
    pub fn release(self) -> Result<ReleaseOutcome, Error> {
        self.runtime.wait(self.guard.release())
    }
}

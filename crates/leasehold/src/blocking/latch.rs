//! The latch.

use std::time::Duration;

use super::bridge::Bridge;
use crate::error::Error;
use crate::locks::{LatchState, SetOutcome};

/// A distributed count-down latch; see the async [`Latch`](crate::Latch).
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Error, LatchState, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// let ready = client.latch("shards-loaded");
/// ready.set(2, Duration::from_secs(3600))?;
/// ready.count_down("shard-1")?;
/// ready.count_down("shard-2")?;
/// assert_eq!(ready.wait()?, LatchState::Open);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch(pub(super) Bridge<crate::Latch>);

impl Latch {
    /// Returns the name of the latch.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.inner.name()
    }

    /// Creates the latch. It opens after `count` count-downs and is deleted
    /// after `life`. An existing latch is left unchanged.
    ///
    /// # Errors
    ///
    /// As for the async [`set`](crate::Latch::set).
    pub fn set(&self, count: u32, life: Duration) -> Result<SetOutcome, Error> {
        self.0.wait(self.0.inner.set(count, life))
    }

    /// Counts down in the name of `caller`, and returns the new state. Each
    /// caller counts once, so it is safe to repeat after any error.
    ///
    /// # Errors
    ///
    /// As for the async [`count_down`](crate::Latch::count_down).
    pub fn count_down(&self, caller: &str) -> Result<LatchState, Error> {
        self.0.wait(self.0.inner.count_down(caller))
    }

    /// Returns the state of the latch.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub fn state(&self) -> Result<LatchState, Error> {
        self.0.wait(self.0.inner.state())
    }

    /// Blocks until the latch is open or absent, and returns the state. Returns
    /// immediately if the latch was never set.
    ///
    /// # Errors
    ///
    /// As for the async [`wait`](crate::Latch::wait).
    pub fn wait(&self) -> Result<LatchState, Error> {
        self.0.wait(self.0.inner.wait())
    }

    /// Blocks like [`wait`](Self::wait), for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if `limit` elapses, and any error of
    /// [`wait`](Self::wait).
    pub fn wait_timeout(&self, limit: Duration) -> Result<LatchState, Error> {
        self.0.wait(self.0.inner.wait_timeout(limit))
    }

    /// Deletes the latch and wakes all waiters. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the latch may have been deleted.
    pub fn delete(&self) -> Result<bool, Error> {
        self.0.wait(self.0.inner.delete())
    }
}

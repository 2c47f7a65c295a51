//! The latch: opens after a number of count-downs.

use std::sync::Arc;
use std::time::Duration;

use super::handle::InvalidName;
use crate::error::Error;
use crate::lease::Engine;
use crate::options::{check_len, validate_life};
use crate::protocol::{Call, Keyspace, LatchCalls, Notified};

/// Limits the name of a caller, which is stored as long as the latch, in bytes.
const MAX_CALLER_LEN: usize = 256;

/// A distributed count-down latch.
///
/// A latch opens after a number of callers have counted down. It is not a lock:
/// it has no holder, no lease and no token.
///
/// The server deletes a latch when the `life` passed to [`set`](Self::set) is
/// over, whether it is open or not.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// use leasehold::LatchState;
///
/// let ready = client.latch("shards-loaded");
/// ready.set(2, Duration::from_secs(3600)).await?;
/// ready.count_down("shard-1").await?;
/// ready.count_down("shard-2").await?;
/// assert_eq!(ready.wait().await?, LatchState::Open);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Latch {
    engine: Arc<Engine>,
    calls: Result<Arc<LatchCalls>, InvalidName>,
}

/// The state of a [`Latch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LatchState {
    /// More count-downs are required.
    Closed {
        /// The number of count-downs that remain.
        remaining: u32,
    },
    /// No count-downs remain.
    Open,
    /// No latch exists: it was never set, was deleted, or its life is over.
    Absent,
}

/// The outcome of [`Latch::set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetOutcome {
    /// The latch was created.
    Created,
    /// A latch with this name exists and is unchanged.
    AlreadyExists,
}

impl Latch {
    pub(crate) fn new(engine: Arc<Engine>, keyspace: &Keyspace, name: &str) -> Self {
        let calls = match keyspace.lock(name) {
            Ok(keys) => Ok(Arc::new(LatchCalls::new(keys))),
            Err(why) => Err(InvalidName::new(name, why)),
        };
        Self { engine, calls }
    }

    /// Returns the name of the latch.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.calls {
            Ok(calls) => calls.name(),
            Err(invalid) => &invalid.name,
        }
    }

    /// Creates the latch. It opens after `count` count-downs and is deleted
    /// after `life`. An existing latch is left unchanged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the latch created or not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `count` is zero or `life` is out of range, and
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the latch may have been created; calling
    /// it again then returns [`SetOutcome::AlreadyExists`].
    pub async fn set(&self, count: u32, life: Duration) -> Result<SetOutcome, Error> {
        if count == 0 {
            return Err(Error::invalid("count", "0 is below the minimum of 1"));
        }
        validate_life(life)?;
        let created = self.send(|latch| latch.set(count, life)).await?;
        Ok(match created {
            true => SetOutcome::Created,
            false => SetOutcome::AlreadyExists,
        })
    }

    /// Counts down in the name of `caller`, and returns the new state.
    ///
    /// Each caller counts once: repeating the call changes nothing, so it is
    /// safe to repeat after any error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the caller counted or not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `caller` has more than 256 bytes, and
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub async fn count_down(&self, caller: &str) -> Result<LatchState, Error> {
        check_len("caller", caller, MAX_CALLER_LEN)?;
        let remaining = self.send(|latch| latch.count_down(caller)).await?;
        Ok(LatchState::new(remaining))
    }

    /// Returns the state of the latch.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub async fn state(&self) -> Result<LatchState, Error> {
        Ok(LatchState::new(self.send(LatchCalls::remaining).await?))
    }

    /// Waits until the latch is open or absent, and returns the state. Resolves
    /// immediately if the latch was never set.
    ///
    /// Waiters are woken by pub/sub. A lost message delays a waiter by at most
    /// one second.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply for longer than
    /// [`max_outage`](crate::ClientBuilder::max_outage).
    pub async fn wait(&self) -> Result<LatchState, Error> {
        self.wait_until(None).await
    }

    /// Waits like [`wait`](Self::wait), for at most `limit`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if `limit` elapses, and any error of
    /// [`wait`](Self::wait).
    pub async fn wait_timeout(&self, limit: Duration) -> Result<LatchState, Error> {
        self.wait_until(Some(limit)).await
    }

    /// Deletes the latch and wakes all waiters. Returns whether it existed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the latch deleted or not.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the latch may have been deleted.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.send(LatchCalls::delete).await
    }

    async fn wait_until(&self, limit: Option<Duration>) -> Result<LatchState, Error> {
        let calls = self.calls()?;
        let latch: Arc<dyn Notified> = calls.clone();
        self.engine
            .wait_until_free(&latch, calls.slot(), calls.name(), limit)
            .await?;
        self.state().await
    }

    async fn send<R>(&self, call: impl FnOnce(&LatchCalls) -> Call<R>) -> Result<R, Error> {
        let calls = self.calls()?;
        let call = call(&calls);
        self.engine.send(calls.slot(), calls.name(), call).await
    }

    fn calls(&self) -> Result<Arc<LatchCalls>, Error> {
        self.calls.clone().map_err(|invalid| invalid.error())
    }
}

impl LatchState {
    fn new(remaining: Option<u32>) -> Self {
        match remaining {
            None => Self::Absent,
            Some(0) => Self::Open,
            Some(remaining) => Self::Closed { remaining },
        }
    }
}

impl std::fmt::Debug for Latch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Latch").field(&self.name()).finish()
    }
}

//! The latch: opens after a number of count-downs.

use std::sync::Arc;
use std::time::Duration;

use super::handle::InvalidName;
use crate::error::Error;
use crate::lease::Engine;
use crate::lease::Pending;
use crate::options::{check_len, validate_life};
use crate::protocol::{Call, Keyspace, LatchCalls, Notified};

/// Limits a caller's name, which is stored as long as the latch, in bytes.
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
/// assert_eq!(ready.until_open(None).await?, LatchState::Open);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Latch {
    engine: Arc<Engine>,
    calls: Result<Arc<LatchCalls>, InvalidName>,
}

/// Whether a [`Latch`] is closed, open or absent.
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
    /// No latch exists: it was never set, was deleted, or has expired.
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, SetOutcome};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let day = Duration::from_secs(86_400);
    /// let ready = client.latch("shards-loaded");
    /// if ready.set(8, day).await? == SetOutcome::AlreadyExists {
    ///     println!("another host has set it");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn set(&self, count: u32, life: Duration) -> Pending<'_, SetOutcome> {
        self.engine.pending(async move {
            if count == 0 {
                return Err(Error::invalid("count", "0 is below the minimum of 1"));
            }
            validate_life(life)?;
            let created = self.send(|latch| latch.set(count, life)).await?;
            Ok(match created {
                true => SetOutcome::Created,
                false => SetOutcome::AlreadyExists,
            })
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, LatchState};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.latch("shards-loaded");
    /// match ready.count_down("shard-3").wait()? {
    ///     LatchState::Closed { remaining } => println!("{remaining} to go"),
    ///     _ => println!("we were the last"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn count_down<'a>(&'a self, caller: &'a str) -> Pending<'a, LatchState> {
        self.engine.pending(async move {
            check_len("caller", caller, MAX_CALLER_LEN)?;
            let remaining = self.send(|latch| latch.count_down(caller)).await?;
            Ok(LatchState::new(remaining))
        })
    }

    /// Returns whether the latch is closed, open or absent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, LatchState};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// if client.latch("shards-loaded").state().await? == LatchState::Open {
    ///     println!("all shards are loaded");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn state(&self) -> Pending<'_, LatchState> {
        self.engine.pending(self.state_now())
    }

    async fn state_now(&self) -> Result<LatchState, Error> {
        Ok(LatchState::new(self.send(LatchCalls::remaining).await?))
    }

    /// Waits until the latch is open or absent, for at most `limit`, and
    /// returns the state. Without a limit if that is `None`. Resolves
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
    /// [`Error::Timeout`] if `limit` elapses, and [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply for longer than
    /// [`max_outage`](crate::Connect::max_outage).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.latch("shards-loaded");
    /// ready.until_open(Some(Duration::from_secs(60))).await?;
    /// # Ok(()) }
    /// ```
    pub fn until_open(&self, limit: Option<Duration>) -> Pending<'_, LatchState> {
        self.engine.pending(async move {
            let calls = self.calls()?;
            let latch: Arc<dyn Notified> = calls.clone();
            self.engine
                .wait_until_free(&latch, calls.slot(), calls.name(), limit)
                .await?;
            // Asked again, because a deleted latch ends the wait too.
            self.state_now().await
        })
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// // Start over, with another number of shards.
    /// let ready = client.latch("shards-loaded");
    /// ready.delete().wait()?;
    /// ready.set(16, Duration::from_secs(3600)).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn delete(&self) -> Pending<'_, bool> {
        self.engine.pending(self.send(LatchCalls::delete))
    }

    async fn send<R>(&self, call: impl FnOnce(&LatchCalls) -> Call<R>) -> Result<R, Error> {
        let calls = self.calls()?;
        let call = call(&calls);
        self.engine.send(calls.slot(), calls.name(), call).await
    }

    fn calls(&self) -> Result<Arc<LatchCalls>, Error> {
        self.calls.clone().map_err(|invalid| invalid.error())
    }

    /// Returns the latch's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.calls {
            Ok(calls) => calls.name(),
            Err(invalid) => &invalid.name,
        }
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

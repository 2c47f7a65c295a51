//! The latch: opens when it has been counted down to zero.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::Engine;
use crate::options::validate_life;
use crate::protocol::{Call, Keyspace, LatchCalls};

/// Longest name of one who counts down, in bytes: it is stored until the latch is forgotten.
const CALLER_LIMIT: usize = 256;

/// A count that several processes bring down to zero, for others to wait for. It is no lock: nobody holds it.
///
/// It is forgotten when the life given to [`set`](Self::set) is over, open or not.
#[derive(Clone)]
pub struct Latch {
    engine: Arc<Engine>,
    latched: Result<Arc<LatchCalls>, (String, String)>,
}

/// How a latch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LatchState {
    /// More count-downs are required.
    Closed {
        /// The number of count-downs that remain.
        remaining: u32,
    },
    /// It has been counted down to zero.
    Open,
    /// There is none: never set, deleted, or its life is over.
    Absent,
}

/// The outcome of [`Latch::set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetOutcome {
    /// The latch was created.
    Created,
    /// A latch of this name exists and is unchanged.
    AlreadyExists,
}

impl Latch {
    pub(crate) fn new(engine: Arc<Engine>, keyspace: &Keyspace, name: &str) -> Self {
        let latched = match keyspace.lock(name) {
            Ok(keys) => Ok(Arc::new(LatchCalls::new(keys))),
            Err(why) => Err((name.to_owned(), why)),
        };
        Self { engine, latched }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.latched {
            Ok(latched) => latched.name(),
            Err((name, _)) => name,
        }
    }

    /// Creates the latch. It opens after `count` count-downs and is deleted
    /// after `life`. An existing latch is left unchanged.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let ready = client.latch("shards-loaded");
    /// ready.set(2, Duration::from_secs(3600)).await?;
    /// ready.count_down("shard-1").await?;
    /// ready.count_down("shard-2").await?;
    /// let state = ready.wait().await?;
    /// # drop(state); Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the latch made or not.
    ///
    /// # Errors
    ///
    /// When `count` is 0 or `life` out of range, or the server cannot be asked. After [`Error::OutcomeUnknown`] it
    /// may have been made; setting it again then returns
    /// [`SetOutcome::AlreadyExists`].
    pub async fn set(&self, count: u32, life: Duration) -> Result<SetOutcome, Error> {
        if count == 0 {
            return Err(Error::invalid("count", "there must be at least one"));
        }
        validate_life(life)?;
        let created = self.ask(|latched| latched.set(count, life)).await?;
        Ok(match created {
            true => SetOutcome::Created,
            false => SetOutcome::AlreadyExists,
        })
    }

    /// Counts down in the name of `caller`, whose second count-down changes nothing: it can be repeated after
    /// any error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it counted or not; repeating it is safe.
    ///
    /// # Errors
    ///
    /// When `caller` is longer than 256 bytes, or the server cannot be asked.
    pub async fn count_down(&self, caller: &str) -> Result<LatchState, Error> {
        if caller.len() > CALLER_LIMIT {
            let why = format!("longer than {CALLER_LIMIT} bytes");
            return Err(Error::invalid("caller", why));
        }
        let left = self.ask(|latched| latched.count_down(caller)).await?;
        Ok(LatchState::of(left))
    }

    /// How it stands now.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn state(&self) -> Result<LatchState, Error> {
        Ok(LatchState::of(self.ask(LatchCalls::remaining).await?))
    }

    /// Waits until it is open or gone, and says which. A latch that was never set is gone.
    ///
    /// GrantDelivery by push; a message that is lost costs at most a second.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// When the server is out of reach for longer than
    /// [`max_outage`](crate::ClientBuilder::max_outage).
    pub async fn wait(&self) -> Result<LatchState, Error> {
        self.wait_until(None).await
    }

    /// As [`wait`](Self::wait), for at most `limit`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when the limit is over, and those of [`wait`](Self::wait).
    pub async fn wait_timeout(&self, limit: Duration) -> Result<LatchState, Error> {
        self.wait_until(Some(limit)).await
    }

    /// Deletes it, and wakes all who wait; false when there was none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it deleted or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.ask(LatchCalls::delete).await
    }

    async fn wait_until(&self, limit: Option<Duration>) -> Result<LatchState, Error> {
        let latched = self.latched()?;
        let (slot, name) = (latched.slot(), latched.name());
        self.engine.watch(&*latched, slot, name, limit).await?;
        self.state().await
    }

    async fn ask<R>(&self, call: impl FnOnce(&LatchCalls) -> Call<R>) -> Result<R, Error> {
        let latched = self.latched()?;
        let call = call(&latched);
        self.engine.ask(latched.slot(), latched.name(), call).await
    }

    fn latched(&self) -> Result<Arc<LatchCalls>, Error> {
        match &self.latched {
            Ok(latched) => Ok(latched.clone()),
            Err((_, why)) => Err(Error::invalid("name", why)),
        }
    }
}

impl LatchState {
    fn of(left: Option<u32>) -> Self {
        match left {
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

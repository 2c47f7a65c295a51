//! Redisson's `RCountDownLatch`: opens when it has been counted down to zero.

use std::sync::Arc;
use std::time::Duration;

use super::Redisson;
use crate::error::Error;
use crate::lease::Engine;
use crate::owner::Owner;
use crate::protocol::Call;
use crate::protocol::redisson::CountDownCalls;

/// Redisson's latch by its name. One that was never set is open.
///
/// It is kept until it is counted down or deleted.
#[derive(Clone)]
pub struct RCountDownLatch {
    engine: Arc<Engine>,
    latch: Result<Arc<CountDownCalls>, (String, String)>,
}

impl RCountDownLatch {
    pub(super) fn new(redisson: &Redisson, name: &str) -> Self {
        let latch = redisson.naming.latch(name);
        Self {
            engine: redisson.engine.clone(),
            latch: latch
                .map(|latch| Arc::new(CountDownCalls::new(latch)))
                .map_err(|why| (name.to_owned(), why)),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.latch {
            Ok(latch) => latch.name(),
            Err((name, _)) => name,
        }
    }

    /// Closes the latch, for so many count-downs to come; false when it is closed already.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it closed or not.
    ///
    /// # Errors
    ///
    /// When `count` is 0, or the server cannot be asked. After [`Error::OutcomeUnknown`] it may have been closed.
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        if count == 0 {
            return Err(Error::invalid("count", "there must be at least one"));
        }
        self.ask(|latch| latch.set(count)).await
    }

    /// Counts down; how many are still to come. An answer that is lost is asked for again, and counts once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it counted or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. After [`Error::OutcomeUnknown`] it may have been counted.
    pub async fn count_down(&self) -> Result<i64, Error> {
        let number = Owner::random();
        let count = |latch: &CountDownCalls| latch.count_down(&number);
        match self.ask(count).await {
            Err(Error::Unavailable(_) | Error::OutcomeUnknown(_)) => self.ask(count).await,
            counted => counted,
        }
    }

    /// How many count-downs are still to come.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn count(&self) -> Result<i64, Error> {
        self.ask(CountDownCalls::remaining).await
    }

    /// Waits until the latch is open. Redisson's `await`.
    ///
    /// The server pushes the change. A lost message delays the waiter by at
    /// most a second, where Redisson's waits without end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// When the server is unreachable for longer than
    /// [`max_outage`](crate::ClientBuilder::max_outage).
    pub async fn wait(&self) -> Result<(), Error> {
        self.watch(None).await
    }

    /// Waits until the latch is open, for at most `limit`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when `limit` elapses, and those of
    /// [`wait`](Self::wait).
    pub async fn wait_timeout(&self, limit: Duration) -> Result<(), Error> {
        self.watch(Some(limit)).await
    }

    /// Deletes it, which opens it for all who wait, of Java too; false when it was open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it deleted or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.ask(CountDownCalls::delete).await
    }

    async fn watch(&self, limit: Option<Duration>) -> Result<(), Error> {
        let latch = self.latch()?;
        let (slot, name) = (latch.slot(), latch.name());
        self.engine.watch(&*latch, slot, name, limit).await
    }

    async fn ask<R>(&self, call: impl FnOnce(&CountDownCalls) -> Call<R>) -> Result<R, Error> {
        let latch = self.latch()?;
        let call = call(&latch);
        self.engine.ask(latch.slot(), latch.name(), call).await
    }

    fn latch(&self) -> Result<Arc<CountDownCalls>, Error> {
        match &self.latch {
            Ok(latch) => Ok(latch.clone()),
            Err((_, why)) => Err(Error::invalid("name", why)),
        }
    }
}

impl std::fmt::Debug for RCountDownLatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RCountDownLatch")
            .field(&self.name())
            .finish()
    }
}

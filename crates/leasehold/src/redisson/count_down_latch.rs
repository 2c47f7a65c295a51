//! Redisson's `RCountDownLatch`: opens after a number of count-downs.

use std::sync::Arc;
use std::time::Duration;

use super::calls::{CountDownCalls, REPEAT_WITHIN};
use super::context::RedissonContext;
use crate::error::Error;
use crate::lease::Engine;
use crate::lease::Pending;
use crate::locks::InvalidName;
use crate::owner::Owner;
use crate::protocol::{Call, Notified};

/// A count-down latch of Redisson.
///
/// A latch that was never set is open. The server stores it until it is counted
/// down to zero or deleted.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let ready = client.redisson().count_down_latch("shards-loaded");
/// ready.try_set_count(2).await?;
/// ready.count_down().await?; // the other one may be a Java client
/// ready.until_open(Some(Duration::from_secs(60))).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RCountDownLatch {
    engine: Arc<Engine>,
    calls: Result<Arc<CountDownCalls>, InvalidName>,
}

impl RCountDownLatch {
    pub(super) fn new(context: &RedissonContext, name: &str) -> Self {
        let calls = match context.naming.latch(name) {
            Ok(keys) => Ok(Arc::new(CountDownCalls::new(keys))),
            Err(why) => Err(InvalidName::new(name, why)),
        };
        Self {
            engine: context.engine.clone(),
            calls,
        }
    }

    /// Closes the latch until `count` count-downs. Returns false if it is
    /// closed already.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the latch closed or unchanged.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `count` is zero, and [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply. After the last
    /// one, the latch may have been closed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.redisson().count_down_latch("shards-loaded");
    /// if !ready.try_set_count(8).wait()? {
    ///     println!("another client has set it");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_set_count(&self, count: u32) -> Pending<'_, bool> {
        self.engine.pending(self.try_set_count_now(count))
    }

    async fn try_set_count_now(&self, count: u32) -> Result<bool, Error> {
        if count == 0 {
            return Err(Error::invalid("count", "0 is below the minimum of 1"));
        }
        self.send(|latch| latch.set(count)).await
    }

    /// Counts down and returns the number of count-downs that remain.
    ///
    /// If the reply is lost, the client sends the request once more. It counts
    /// once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave it counted or not.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, it may have been counted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.redisson().count_down_latch("shards-loaded");
    /// println!("{} shards to go", ready.count_down().await?);
    /// # Ok(()) }
    /// ```
    pub fn count_down(&self) -> Pending<'_, i64> {
        self.engine.pending(self.count_down_now())
    }

    async fn count_down_now(&self) -> Result<i64, Error> {
        // Both requests have the same id, under which the server counts once.
        let (calls, id) = (self.calls()?, Owner::random());
        let count_down = || calls.count_down(&id);
        let sent = self
            .engine
            .send_twice(calls.slot(), calls.name(), REPEAT_WITHIN, count_down);
        sent.await
    }

    /// Returns the number of count-downs that remain.
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
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.redisson().count_down_latch("shards-loaded");
    /// println!("{} shards to go", ready.count().wait()?);
    /// # Ok(()) }
    /// ```
    pub fn count(&self) -> Pending<'_, i64> {
        self.engine.pending(self.send(CountDownCalls::remaining))
    }

    /// Waits until the latch is open, for at most `limit`: Redisson's `await`.
    /// Without a limit if that is `None`.
    ///
    /// Waiters are woken by pub/sub. A lost message delays a waiter by at most
    /// one second. A waiter of Redisson does not recover from it.
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
    /// let ready = client.redisson().count_down_latch("shards-loaded");
    /// ready.until_open(Some(Duration::from_secs(60))).await?;
    /// # Ok(()) }
    /// ```
    pub fn until_open(&self, limit: Option<Duration>) -> Pending<'_, ()> {
        self.engine.pending(async move {
            let calls = self.calls()?;
            let latch: Arc<dyn Notified> = calls.clone();
            self.engine
                .wait_until_free(&latch, calls.slot(), calls.name(), limit)
                .await
        })
    }

    /// Deletes the latch, which opens it for all waiters, Java included.
    /// Returns false if it was open.
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
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.redisson().count_down_latch("shards-loaded");
    /// ready.delete().await?; // no waiter remains
    /// # Ok(()) }
    /// ```
    pub fn delete(&self) -> Pending<'_, bool> {
        self.engine.pending(self.send(CountDownCalls::delete))
    }

    async fn send<R>(&self, call: impl FnOnce(&CountDownCalls) -> Call<R>) -> Result<R, Error> {
        let calls = self.calls()?;
        let call = call(&calls);
        self.engine.send(calls.slot(), calls.name(), call).await
    }

    fn calls(&self) -> Result<Arc<CountDownCalls>, Error> {
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

impl std::fmt::Debug for RCountDownLatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RCountDownLatch")
            .field(&self.name())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::calls::Naming;
    use super::*;
    use crate::backend::RequestError;
    use crate::backend::scripted::Scripted;
    use crate::lease::tests::scripted::engine;

    /// Counts down where the first reply is lost and later requests cannot be
    /// sent, and connecting takes `delay`. Returns the error and how many
    /// requests left.
    async fn count_down(delay: Duration) -> (Error, u32) {
        let sent = Arc::new(AtomicU32::new(0));
        let counted = sent.clone();
        let backend = Scripted::new(move |_| {
            let error = match counted.fetch_add(1, Ordering::SeqCst) {
                0 => RequestError::Unknown("cut".into()),
                _ => RequestError::Unreachable("refused".into()),
            };
            (Duration::ZERO, Err(error))
        });
        backend.delay_connections(delay);
        let naming = Naming::new("0123456789abcdef0123456789abcdef", true, REPEAT_WITHIN);
        let calls = CountDownCalls::new(naming.latch("job").unwrap());
        let latch = RCountDownLatch {
            engine: engine(&backend),
            calls: Ok(Arc::new(calls)),
        };
        let error = latch.count_down().await.unwrap_err();
        (error, sent.load(Ordering::SeqCst))
    }

    /// A repetition that could not be sent said that nothing was counted.
    #[tokio::test(start_paused = true)]
    async fn lost_count_down_stays_unknown() {
        let (error, sent) = count_down(Duration::ZERO).await;
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
        assert_eq!(sent, 2);
    }

    /// The server had forgotten the first request, and counted twice.
    #[tokio::test(start_paused = true)]
    async fn count_down_is_not_repeated_after_a_long_connect() {
        let (error, sent) = count_down(REPEAT_WITHIN).await;
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
        assert_eq!(sent, 1);
    }
}

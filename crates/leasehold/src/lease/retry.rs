//! What a waiter remembers between attempts: the outage so far, the last
//! holder seen, and how long to back off. Also the delay between campaigns.

use std::time::Duration;

use super::context::error_of;
use crate::backend::{Backoff, RequestError};
use crate::error::Error;
use crate::info::Holder;
use crate::time::BootInstant;

/// The delay before a campaign, or an announcement, is repeated.
pub(crate) struct RetryDelay(Backoff);

impl RetryDelay {
    /// Creates a delay of up to 100 ms, that grows to up to a second. It is
    /// random, so that candidates which lost their leader do not retry in step.
    pub(crate) fn new() -> Self {
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(1));
        Self(Backoff::full_jitter(first, max))
    }

    /// Starts again with a short delay, after a success.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0.pause()).await;
    }
}

/// The outage budget and the last observation of one wait.
pub(super) struct RetryState {
    holder: Option<Box<Holder>>,
    /// The number of waiters that are served first, for kinds with a queue.
    ahead: Option<u64>,
    error: Option<RequestError>,
    failing_since: Option<BootInstant>,
    max_outage: Duration,
    pub(super) backoff: Backoff,
}

impl RetryState {
    pub(super) fn new(max_outage: Duration) -> Self {
        Self {
            holder: None,
            ahead: None,
            error: None,
            failing_since: None,
            max_outage,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(500)),
        }
    }

    /// Records that the server replied, which ends an outage.
    pub(super) fn on_reply(&mut self) {
        self.error = None;
        self.failing_since = None;
        self.backoff.reset();
    }

    /// Records that the server replied with the current holder.
    pub(super) fn on_busy(&mut self, holder: Holder) {
        self.holder = Some(Box::new(holder));
        self.on_reply();
    }

    /// Records the holder and the waiter's position in the server's queue.
    pub(super) fn on_queued(&mut self, holder: Holder, ahead: u64) {
        self.on_busy(holder);
        self.ahead = Some(ahead);
    }

    /// Returns the last holder that this waiter observed.
    pub(super) fn holder(&self) -> Option<&Holder> {
        self.holder.as_deref()
    }

    /// Adds what another task of this client observed, where this one has no
    /// observation of its own.
    pub(super) fn fill_from(&mut self, holder: Holder, ahead: Option<u64>) {
        self.ahead = self.ahead.or(ahead);
        self.holder.get_or_insert_with(|| Box::new(holder));
    }

    /// Records a failed request.
    ///
    /// # Errors
    ///
    /// Returns `error` if it is permanent or the outage exceeds its budget.
    pub(super) fn on_error(&mut self, error: RequestError) -> Result<(), RequestError> {
        let now = BootInstant::now();
        let since = *self.failing_since.get_or_insert(now);
        if !error.is_transient() || now.since(since) > self.max_outage {
            return Err(error);
        }
        self.error = Some(error);
        Ok(())
    }

    /// Returns the error of a wait that timed out: the last failed request if
    /// the outage continues, else [`Error::Timeout`] with the last holder.
    pub(super) fn into_error(self, name: &str, waited: Duration) -> Error {
        match self.error {
            Some(error) => error_of(error, name),
            None => Error::Timeout {
                name: name.to_owned(),
                waited,
                holder: self.holder,
                position: self.ahead.map(|ahead| ahead + 1),
            },
        }
    }
}

//! The delay between campaigns.

use std::time::Duration;

use crate::backend::Backoff;

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

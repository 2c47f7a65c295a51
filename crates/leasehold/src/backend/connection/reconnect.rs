//! How long a supervised connection stays down: long and at random while nothing needs it, shortly where a request waits.

use std::time::Duration;

use tokio::sync::watch;

use crate::backend::Backoff;

/// How long the line stays down before the next attempt.
pub(crate) struct ReconnectDelay {
    /// Without demand: clients that lost the same server at the same moment return at different ones.
    idle: Backoff,
    /// From the moment at which the line is wanted. Demand comes at random moments itself: renewals and heartbeats have
    /// jitter.
    wanted: Backoff,
}

impl Default for ReconnectDelay {
    fn default() -> Self {
        Self {
            idle: Backoff::full_jitter(Duration::from_secs(1), Duration::from_secs(10)),
            wanted: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
        }
    }
}

impl ReconnectDelay {
    pub(crate) async fn next(&mut self, demand: &Demand) {
        let wanted = async {
            demand.wait_for_demand().await;
            tokio::time::sleep(self.wanted.pause()).await;
        };
        tokio::select! {
            () = tokio::time::sleep(self.idle.pause()) => {}
            () = wanted => {}
        }
    }
}

/// How many requests and subscriptions wait for the line.
#[derive(Default)]
pub(crate) struct Demand(watch::Sender<usize>);

/// One of them, until it is dropped.
pub(crate) struct DemandGuard<'a>(&'a Demand);

impl Demand {
    pub(crate) fn begin(&self) -> DemandGuard<'_> {
        self.0.send_modify(|count| *count += 1);
        DemandGuard(self)
    }

    /// Waits until there is any.
    async fn wait_for_demand(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count > 0).await;
    }
}

impl Drop for DemandGuard<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

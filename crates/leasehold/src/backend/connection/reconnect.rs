//! The delay before a supervised connection reconnects: long while it is
//! unused, short while a request waits for it.

use std::time::Duration;

use tokio::sync::watch;

use crate::backend::Backoff;

/// The delay before the next attempt to connect.
pub(crate) struct ReconnectDelay {
    /// The delay while nothing waits for the connection. Full jitter spreads
    /// the clients that lost a server at the same time.
    idle: Backoff,
    /// The delay from the time at which something waits for the connection. It
    /// needs less jitter: renewals and heartbeats are spread already.
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
            // The short delay starts when something begins to wait, not with
            // the outage.
            demand.wait_for_demand().await;
            tokio::time::sleep(self.wanted.pause()).await;
        };
        tokio::select! {
            () = tokio::time::sleep(self.idle.pause()) => {}
            () = wanted => {}
        }
    }
}

/// The number of requests and subscriptions that wait for the connection.
#[derive(Default)]
pub(crate) struct Demand(watch::Sender<usize>);

/// Counts as one of them until dropped.
pub(crate) struct DemandGuard<'a>(&'a Demand);

impl Demand {
    pub(crate) fn register(&self) -> DemandGuard<'_> {
        self.0.send_modify(|count| *count += 1);
        DemandGuard(self)
    }

    /// Waits until the number is not zero.
    async fn wait_for_demand(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count > 0).await;
    }
}

impl Drop for DemandGuard<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

//! One server at a time: every slot is its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::Connection;
use super::lanes::Lanes;
use super::origin::Origin;
use super::reply::Failure;
use super::sentinel::Sentinels;
use super::{Backend, BoxFuture, Channel, Lane, Link, Listener, Slot, Subscription};
use crate::chance;
use crate::options::Acknowledgement;

/// How often sentinels are asked whether the master is still the master.
const WATCH: Duration = Duration::from_secs(1);

/// A server on its own, or the master of a group.
pub(super) struct Standalone {
    lanes: Arc<Lanes>,
}

impl Standalone {
    pub(super) fn new(origin: Origin, keeper: &tokio::runtime::Handle) -> Self {
        let lanes = Arc::new(Lanes::start(origin.clone(), keeper, Arc::new(|_| ())));
        if let Origin::Elected(sentinels, _) = origin {
            keeper.spawn(watch(sentinels, Arc::downgrade(&lanes)));
        }
        Self { lanes }
    }
}

/// Leaves servers that the sentinels no longer call the master, until nobody is left.
async fn watch(sentinels: Arc<Sentinels>, lanes: Weak<Lanes>) {
    loop {
        // With jitter, so that clients that were started together do not ask together.
        tokio::time::sleep(WATCH.mul_f64(0.75 + 0.5 * chance::fraction())).await;
        if lanes.strong_count() == 0 {
            return;
        }
        // Where no sentinel replies, the connections that are there are the best there is.
        let Ok(master) = sentinels.master().await else {
            continue;
        };
        let Some(lanes) = lanes.upgrade() else {
            return;
        };
        let master = format!("{master:?}");
        if lanes.links().all(|link| link.server() == master) {
            continue;
        }
        // That sentinel may be behind.
        let election = sentinels.elect().await;
        let former = |link: &Arc<Connection>| election.is_over_for(link.server());
        for link in lanes.links().filter(former) {
            tracing::info!(from = link.server(), "the master has changed");
            link.close();
        }
    }
}

impl Backend for Standalone {
    fn open_link(&self, lane: Lane, _slot: Slot) -> Option<Arc<dyn Link>> {
        Some(self.lanes.open_link(lane)?)
    }

    fn link(&self, lane: Lane, _slot: Slot) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        Box::pin(async move { Ok(self.lanes.link(lane).await? as Arc<dyn Link>) })
    }

    fn acknowledged(
        &self,
        lane: Lane,
        _slot: Slot,
        wanted: Acknowledgement,
        patience: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        Box::pin(self.lanes.acknowledged(lane, wanted, patience))
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, Failure>> {
        Box::pin(self.lanes.subscribe(channel, listener))
    }
}

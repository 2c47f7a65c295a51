//! One server at a time: every slot is its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::origin::Origin;
use super::reply::Failure;
use super::requests::Requests;
use super::sentinel::Sentinels;
use super::subscriptions::Supervised;
use super::{Backend, BoxFuture, Lane, Link, Listener, Slot, Subscription};

/// How often sentinels are asked whether the master is still the master.
const WATCH: Duration = Duration::from_secs(1);

/// A server on its own, or the master of a group, with one connection per lane.
pub(crate) struct Standalone {
    lanes: Arc<Lanes>,
}

struct Lanes {
    requests: Requests,
    keeper: Supervised,
}

impl Standalone {
    /// Connects the keeper's lane in the background, on `keeper`; callers connect when they ask.
    pub(crate) fn new(origin: Origin, keeper: &tokio::runtime::Handle) -> Self {
        let lanes = Arc::new(Lanes {
            keeper: Supervised::start(origin.clone(), keeper),
            requests: Requests::new(origin.clone()),
        });
        if let Origin::Elected(sentinels) = origin {
            keeper.spawn(watch(sentinels, Arc::downgrade(&lanes)));
        }
        Self { lanes }
    }
}

/// Leaves servers that the sentinels no longer call the master, until nobody is left.
async fn watch(sentinels: Arc<Sentinels>, lanes: Weak<Lanes>) {
    loop {
        tokio::time::sleep(WATCH).await;
        if lanes.strong_count() == 0 {
            return;
        }
        // Where no sentinel answers, the connections that are there are the best there is.
        let Ok(master) = sentinels.master().await else {
            continue;
        };
        let Some(lanes) = lanes.upgrade() else {
            return;
        };
        let master = format!("{master:?}");
        let links = [lanes.requests.open_link(), lanes.keeper.open_link()];
        for link in links.into_iter().flatten() {
            if link.server() != master {
                tracing::info!(from = link.server(), to = master, "the master has changed");
                link.close();
            }
        }
    }
}

impl Backend for Standalone {
    fn open_link(&self, lane: Lane, _slot: Slot) -> Option<Arc<dyn Link>> {
        let link = match lane {
            Lane::Requests => self.lanes.requests.open_link()?,
            Lane::Keeper => self.lanes.keeper.open_link()?,
        };
        Some(link)
    }

    fn link(&self, lane: Lane, _slot: Slot) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        Box::pin(async move {
            Ok(match lane {
                Lane::Requests => self.lanes.requests.link().await? as Arc<dyn Link>,
                Lane::Keeper => self.lanes.keeper.link().await?,
            })
        })
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn subscribe(
        &self,
        channel: Vec<u8>,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, Failure>> {
        Box::pin(self.lanes.keeper.subscribe(channel, listener))
    }
}

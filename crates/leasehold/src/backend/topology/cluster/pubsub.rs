//! Where the subscriptions of a cluster are at home: each at the node that has its channel's slot.
//!
//! A server ends a subscription when its slot moves away; then, and whenever the map says that a channel is
//! elsewhere, it is made anew at the new node, and its listener is notified. What fails is tried again until it succeeds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Node, Nodes};
use crate::backend::{
    Backoff, Channel, Listener, PubSubEvent, RequestError, Slot, Subscription, Unsubscribe,
};
use crate::time::BootInstant;

/// How long a node may take to confirm before the next look.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many nodes are tried at once after each other: a slot is at one, and may have just moved.
const TRIES: usize = 4;

/// Every subscription of the cluster's client.
#[derive(Default)]
pub(crate) struct ClusterSubscriptions {
    seats: Mutex<HashMap<u64, Arc<Registration>>>,
    last_id: AtomicU64,
}

/// One subscription, and where it is made.
struct Registration {
    channel: Channel,
    slot: Slot,
    ear: Arc<Ear>,
    at: tokio::sync::Mutex<Option<Home>>,
    retry: Mutex<Retry>,
}

/// A subscription that a node has confirmed.
struct Home {
    node: Arc<Node>,
    _subscription: Subscription,
    /// How often a server had ended it before: it is over when that has become more.
    endings: u64,
}

/// When a subscription that could not be made is tried again.
struct Retry {
    backoff: Backoff,
    due: BootInstant,
}

/// Passes on what is heard, and counts how often a server has ended the subscription.
struct Ear {
    listener: Arc<dyn Listener>,
    endings: AtomicU64,
    topology_changed: Arc<Notify>,
}

impl Listener for Ear {
    fn on_event(&self, event: PubSubEvent<'_>) {
        match event {
            PubSubEvent::Ended => {
                self.endings.fetch_add(1, Ordering::AcqRel);
                self.topology_changed.notify_one();
            }
            event => self.listener.on_event(event),
        }
    }
}

impl ClusterSubscriptions {
    pub(crate) async fn subscribe(
        nodes: &Arc<Nodes>,
        channel: Channel,
        slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, RequestError> {
        let ear = Ear {
            listener,
            endings: AtomicU64::new(0),
            topology_changed: nodes.topology_changed.clone(),
        };
        let seat = Arc::new(Registration {
            channel,
            slot,
            ear: Arc::new(ear),
            at: tokio::sync::Mutex::default(),
            retry: Mutex::new(Retry {
                backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10)),
                due: BootInstant::now(),
            }),
        });
        let id = nodes.homes.last_id.fetch_add(1, Ordering::Relaxed);
        let leaving = UnsubscribeOnDrop {
            id,
            nodes: nodes.clone(),
        };
        nodes.homes.seats.lock().insert(id, seat.clone());
        seat.settle(nodes).await?;
        Ok(Subscription::new(Box::new(leaving)))
    }

    /// Makes every subscription anew that is not where its slot is, and is due or `all` are. Each by itself: a node that
    /// is down delays only its own.
    pub(crate) async fn settle(nodes: &Arc<Nodes>, all: bool) {
        let mut moving = JoinSet::new();
        for seat in nodes.homes.astray(nodes) {
            if !all && seat.retry.lock().due > BootInstant::now() {
                continue;
            }
            let nodes = nodes.clone();
            moving.spawn(async move {
                let settled = tokio::time::timeout(PATIENCE, seat.settle(&nodes)).await;
                if seat.note(matches!(settled, Ok(Ok(())))) {
                    seat.ear.listener.on_event(PubSubEvent::Resubscribed);
                }
            });
        }
        while moving.join_next().await.is_some() {}
    }

    /// When the next subscription is to be tried again; never where all are where they belong.
    pub(crate) fn due(&self, nodes: &Nodes) -> BootInstant {
        let astray = self.astray(nodes).into_iter();
        let due = astray.map(|seat| seat.retry.lock().due).min();
        due.unwrap_or(BootInstant::NEVER)
    }

    fn astray(&self, nodes: &Nodes) -> Vec<Arc<Registration>> {
        let seats: Vec<_> = self.seats.lock().values().cloned().collect();
        let astray = seats.into_iter().filter(|seat| !seat.is_home(nodes));
        astray.collect()
    }
}

impl Registration {
    /// One that is just being settled counts as at home; so does one that is yet to be, which its own caller does.
    fn is_home(&self, nodes: &Nodes) -> bool {
        let Ok(at) = self.at.try_lock() else {
            return true;
        };
        let Some(home) = &*at else {
            return true;
        };
        let owner = nodes.owner(self.slot);
        let is_there = owner.is_none_or(|owner| Arc::ptr_eq(&home.node, &owner));
        is_there && home.endings == self.ear.endings.load(Ordering::Acquire)
    }

    /// Notes whether settling has succeeded, and returns that.
    fn note(&self, settled: bool) -> bool {
        let mut retry = self.retry.lock();
        match settled {
            true => retry.backoff.reset(),
            false => retry.due = BootInstant::now() + retry.backoff.pause(),
        }
        settled
    }

    /// Subscribes at the node that has the slot, following where the nodes send us. Where that fails, or is cancelled,
    /// what was there before still counts as over.
    async fn settle(&self, nodes: &Nodes) -> Result<(), RequestError> {
        let mut at = self.at.lock().await;
        let mut error = RequestError::ShutDown;
        for _ in 0..TRIES {
            let endings = self.ear.endings.load(Ordering::Acquire);
            let node = nodes.find_owner(self.slot).await?;
            let subscribing = node.lanes.subscribe(self.channel.clone(), self.ear.clone());
            error = match subscribing.await {
                Ok(_subscription) => {
                    *at = Some(Home {
                        node,
                        _subscription,
                        endings,
                    });
                    return Ok(());
                }
                Err(error) => error,
            };
            if !nodes.is_moved(&error, &node) {
                break;
            }
        }
        Err(error)
    }
}

/// Ends a subscription when dropped.
struct UnsubscribeOnDrop {
    id: u64,
    nodes: Arc<Nodes>,
}

impl Unsubscribe for UnsubscribeOnDrop {}

impl Drop for UnsubscribeOnDrop {
    fn drop(&mut self) {
        self.nodes.homes.seats.lock().remove(&self.id);
    }
}

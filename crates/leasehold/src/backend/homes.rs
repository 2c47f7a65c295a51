//! Where the subscriptions of a cluster are at home: each at the node that has its channel's slot.
//!
//! A server ends a subscription when its slot moves away; then, and whenever the map says that a channel is
//! elsewhere, it is made anew at the new node, and its listener is told to look for itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::cluster::{Node, Nodes};
use super::reply::Failure;
use super::subscriptions::Unsubscribe;
use super::{Channel, Listener, News, Slot, Subscription};

/// How long a node may take to confirm before the next look.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many nodes are tried at once after each other: a slot is at one, and may have just moved.
const TRIES: usize = 4;

/// Every subscription of the cluster's client.
#[derive(Default)]
pub(super) struct Homes {
    seats: Mutex<HashMap<u64, Arc<Seat>>>,
    last_id: AtomicU64,
}

/// One subscription, and where it is made.
struct Seat {
    channel: Channel,
    slot: Slot,
    ear: Arc<Ear>,
    at: tokio::sync::Mutex<Option<(Arc<Node>, Subscription)>>,
}

/// Passes on what is heard, and notices when the server has ended the subscription.
struct Ear {
    listener: Arc<dyn Listener>,
    ended: AtomicBool,
    stir: Arc<Notify>,
}

impl Listener for Ear {
    fn heard(&self, news: News<'_>) {
        match news {
            News::Ended => {
                self.ended.store(true, Ordering::Release);
                self.stir.notify_one();
            }
            news => self.listener.heard(news),
        }
    }
}

impl Homes {
    pub(super) async fn subscribe(
        nodes: &Arc<Nodes>,
        channel: Channel,
        slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, Failure> {
        let ear = Ear {
            listener,
            ended: AtomicBool::new(false),
            stir: nodes.stir.clone(),
        };
        let seat = Arc::new(Seat {
            channel,
            slot,
            ear: Arc::new(ear),
            at: tokio::sync::Mutex::default(),
        });
        let id = nodes.homes.last_id.fetch_add(1, Ordering::Relaxed);
        let leaving = Leaving {
            id,
            nodes: nodes.clone(),
        };
        nodes.homes.seats.lock().insert(id, seat.clone());
        seat.settle(nodes).await?;
        Ok(Subscription::new(Box::new(leaving)))
    }

    /// Moves every subscription that is not where its slot is. Each by itself: a node that is down delays
    /// only its own.
    pub(super) async fn settle_all(nodes: &Arc<Nodes>) {
        let seats: Vec<_> = nodes.homes.seats.lock().values().cloned().collect();
        let mut moving = JoinSet::new();
        for seat in seats {
            if seat.is_home(nodes) {
                continue;
            }
            let nodes = nodes.clone();
            moving.spawn(async move {
                let settled = tokio::time::timeout(PATIENCE, seat.settle(&nodes)).await;
                if let Ok(Ok(())) = settled {
                    seat.ear.listener.heard(News::Resubscribed);
                }
            });
        }
        while moving.join_next().await.is_some() {}
    }
}

impl Seat {
    /// One that is just being settled counts as at home.
    fn is_home(&self, nodes: &Nodes) -> bool {
        let Ok(at) = self.at.try_lock() else {
            return true;
        };
        let owner = nodes.owner(self.slot);
        let is_there = match (&*at, &owner) {
            (Some((node, _)), Some(owner)) => Arc::ptr_eq(node, owner),
            // Whoever subscribes first does it by itself.
            (None, _) => !self.ear.ended.load(Ordering::Acquire),
            (Some(_), None) => true,
        };
        is_there && !self.ear.ended.load(Ordering::Acquire)
    }

    /// Subscribes at the node that has the slot, following where the nodes send us.
    async fn settle(&self, nodes: &Nodes) -> Result<(), Failure> {
        let mut at = self.at.lock().await;
        let mut refused = None;
        for _ in 0..TRIES {
            self.ear.ended.store(false, Ordering::Release);
            let node = nodes.find_owner(self.slot).await?;
            let subscribing = node.lanes.subscribe(self.channel.clone(), self.ear.clone());
            match subscribing.await {
                Ok(subscription) => {
                    *at = Some((node, subscription));
                    return Ok(());
                }
                Err(failure) if nodes.is_moved(&failure, &node) => refused = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        self.ear.ended.store(true, Ordering::Release);
        Err(refused.unwrap_or(Failure::Closed))
    }
}

/// Ends a subscription when dropped.
struct Leaving {
    id: u64,
    nodes: Arc<Nodes>,
}

impl Unsubscribe for Leaving {}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.nodes.homes.seats.lock().remove(&self.id);
    }
}

//! Having the nodes of a cluster say when their slots go.
//!
//! A server ends a sharded subscription when the channel's slot is no longer its own, also when it is demoted and loses all
//! of them. So a client that is subscribed in one slot of each node hears of a demotion from the node itself, before that
//! can be made master again: a client that does not know of it would trust what the node has forgotten meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Node, Nodes};
use crate::backend::{Channel, Listener, PubSubEvent, Purpose, Slot, Subscription};

/// How long a node may take to confirm.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of the numbers below this, every slot has one that falls in it.
const NUMBERS: u32 = 1 << 18;

/// The subscription by which one node is heard.
#[derive(Default)]
pub(crate) struct SlotWatch(Mutex<Option<Posted>>);

struct Posted {
    slot: Slot,
    ear: Arc<Ear>,
    _subscription: Subscription,
}

struct Ear {
    topology_changed: Arc<Notify>,
    is_over: AtomicBool,
}

impl Listener for Ear {
    fn on_event(&self, event: PubSubEvent<'_>) {
        match event {
            PubSubEvent::Ended => {
                self.is_over.store(true, Ordering::Release);
                self.topology_changed.notify_one();
            }
            PubSubEvent::Resubscribed => self.is_over.store(false, Ordering::Release),
            PubSubEvent::Message { .. } => {}
        }
    }
}

/// Makes sure that every node that has slots is heard; whether all of them are.
pub(crate) async fn post(nodes: &Arc<Nodes>) -> bool {
    let mut posting = JoinSet::new();
    for node in nodes.masters() {
        let nodes = nodes.clone();
        posting.spawn(async move { is_heard(&nodes, &node) || begin(&nodes, &node).await });
    }
    let mut all = true;
    while let Some(is_heard) = posting.join_next().await {
        all &= is_heard.unwrap_or(false);
    }
    all
}

fn is_heard(nodes: &Nodes, node: &Arc<Node>) -> bool {
    let posted = node.sentry.0.lock();
    let is_open = node.lanes.open_connection(Purpose::Keeper).is_some();
    posted.as_ref().is_some_and(|posted| {
        is_open && has(nodes, node, posted.slot) && !posted.ear.is_over.load(Ordering::Acquire)
    })
}

async fn begin(nodes: &Nodes, node: &Arc<Node>) -> bool {
    // One that cannot be reached is heard when it can: that is asked then.
    if node.lanes.open_connection(Purpose::Keeper).is_none() {
        return false;
    }
    let Some((number, slot)) = place(nodes, node) else {
        return false;
    };
    // The same for all clients, so that a server keeps few of them.
    let channel = Channel::Sharded(format!("leasehold:watch:{{{number}}}").into_bytes());
    let ear = Arc::new(Ear {
        topology_changed: nodes.topology_changed.clone(),
        is_over: AtomicBool::new(false),
    });
    let subscribing = node.lanes.subscribe(channel, ear.clone());
    match tokio::time::timeout(PATIENCE, subscribing).await {
        Ok(Ok(_subscription)) => {
            let posted = Posted {
                slot,
                ear,
                _subscription,
            };
            let before = node.sentry.0.lock().replace(posted);
            drop(before);
            // A node that was demoted after the layout was asked accepts the
            // subscription all the same, as a replica does, and never ends it.
            nodes.topology_changed.notify_one();
            true
        }
        Ok(Err(error)) => {
            nodes.is_moved(&error, node);
            tracing::debug!(%error, "a node does not say when its slots go");
            false
        }
        Err(_) => false,
    }
}

/// The smallest number that, taken as a hash tag, falls in a slot of `node`.
fn place(nodes: &Nodes, node: &Arc<Node>) -> Option<(u32, Slot)> {
    let mut numbers = (0..NUMBERS).map(|number| (number, slot_of(number)));
    numbers.find(|(_, slot)| has(nodes, node, *slot))
}

fn slot_of(number: u32) -> Slot {
    crc16::State::<crc16::XMODEM>::calculate(number.to_string().as_bytes()) % 16_384
}

fn has(nodes: &Nodes, node: &Arc<Node>, slot: Slot) -> bool {
    let owner = nodes.owner(slot);
    owner.is_some_and(|owner| Arc::ptr_eq(&owner, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_number() {
        let mut slots = vec![false; 16_384];
        for number in 0..NUMBERS {
            slots[usize::from(slot_of(number))] = true;
        }
        assert!(slots.into_iter().all(|has_number| has_number));
        // `CLUSTER KEYSLOT 123456789`
        assert_eq!(slot_of(123_456_789), 12_739);
    }
}

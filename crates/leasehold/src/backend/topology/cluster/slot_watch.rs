//! Detecting that a node lost slots.
//!
//! A server ends a sharded subscription when it no longer owns the channel's
//! slot, and also when it is demoted. So a client that is subscribed in one
//! slot of every node learns of a demotion from the node itself, before that
//! node can be promoted again. Without it, the client would trust a node that
//! may have lost locks in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::sync::Notify;

use crate::backend::connection::NodeConnections;
use crate::backend::{Channel, Listener, PubSubEvent, RequestError, Slot, Subscription, slot_of};

/// How long a node may take to confirm the subscription.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// The decimal numbers below this hash to every slot at least once.
const NUMBERS: u32 = 1 << 18;

/// A subscription that ends when one node loses slots.
#[derive(Default)]
pub(super) struct SlotWatch(Mutex<Option<ActiveWatch>>);

struct ActiveWatch {
    slot: Slot,
    listener: Arc<EndListener>,
    _subscription: Subscription,
}

/// Records the end of the subscription.
struct EndListener {
    topology_changed: Arc<Notify>,
    has_ended: AtomicBool,
}

impl Listener for EndListener {
    fn on_event(&self, event: PubSubEvent<'_>) {
        match event {
            PubSubEvent::Ended => {
                self.has_ended.store(true, Ordering::Release);
                self.topology_changed.notify_one();
            }
            PubSubEvent::Resubscribed => self.has_ended.store(false, Ordering::Release),
            PubSubEvent::Message { .. } => {}
        }
    }
}

impl SlotWatch {
    /// Returns whether the subscription is active, in a slot that the node
    /// still owns.
    pub(super) fn is_active(&self, is_owned: impl Fn(Slot) -> bool) -> bool {
        let watch = self.0.lock();
        watch.as_ref().is_some_and(|watch| {
            is_owned(watch.slot) && !watch.listener.has_ended.load(Ordering::Acquire)
        })
    }

    /// Subscribes in a slot that the node owns. Returns `false` if there is
    /// none or the node does not confirm in time.
    pub(super) async fn start(
        &self,
        connections: &NodeConnections,
        topology_changed: &Arc<Notify>,
        is_owned: impl Fn(Slot) -> bool,
    ) -> Result<bool, RequestError> {
        let slot = |number: u32| slot_of(number.to_string().as_bytes(), b"");
        let mut tags = (0..NUMBERS).map(|number| (number, slot(number)));
        let Some((number, slot)) = tags.find(|(_, slot)| is_owned(*slot)) else {
            return Ok(false);
        };
        // All clients use the same channels, so that a server has few of them.
        let channel = Channel::Sharded(format!("leasehold:watch:{{{number}}}").into_bytes());
        let listener = Arc::new(EndListener {
            topology_changed: topology_changed.clone(),
            has_ended: AtomicBool::new(false),
        });
        let subscribing = connections.subscribe(channel, listener.clone());
        let Ok(subscribed) = tokio::time::timeout(CONFIRM_TIMEOUT, subscribing).await else {
            return Ok(false);
        };
        let watch = ActiveWatch {
            slot,
            listener,
            _subscription: subscribed?,
        };
        // Dropped outside of the lock, since it unsubscribes.
        let before = self.0.lock().replace(watch);
        drop(before);
        // If the node was demoted after the slot map was read, it accepted the
        // subscription as a replica does, and will never end it. Reading the
        // map again detects this.
        topology_changed.notify_one();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SLOTS;

    #[test]
    fn every_slot_has_a_number() {
        let mut slots = vec![false; SLOTS];
        for number in 0..NUMBERS {
            let slot = slot_of(number.to_string().as_bytes(), b"");
            slots[usize::from(slot)] = true;
        }
        assert!(slots.into_iter().all(|has_number| has_number));
    }
}

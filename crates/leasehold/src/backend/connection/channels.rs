//! The listeners of one connection, by channel.
//!
//! A channel has several listeners if several tasks of the client watch it.
//! Callers add and remove them; the connection's task reads them for every
//! message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{Channel, Listener, PubSubEvent};
use crate::sync::Mutex;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Channels {
    /// A channel without listeners has no entry.
    listeners: Mutex<HashMap<Channel, Vec<ListenerEntry>>>,
    last_id: AtomicU64,
}

/// A listener and its id.
type ListenerEntry = (u64, Arc<dyn Listener>);

impl Channels {
    pub(super) fn insert(&self, channel: Channel, listener: Arc<dyn Listener>) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let mut listeners = self.listeners.lock();
        listeners.entry(channel).or_default().push((id, listener));
        id
    }

    pub(super) fn remove(&self, channel: &Channel, id: u64) {
        let mut listeners = self.listeners.lock();
        if let Some(entries) = listeners.get_mut(channel) {
            entries.retain(|(other, _)| *other != id);
            if entries.is_empty() {
                listeners.remove(channel);
            }
        }
    }

    pub(super) fn contains(&self, channel: &Channel) -> bool {
        self.listeners.lock().contains_key(channel)
    }

    pub(super) fn all(&self) -> Vec<Channel> {
        self.listeners.lock().keys().cloned().collect()
    }

    /// Delivers an event of the channel that carried it.
    pub(super) fn deliver(&self, channel: &Channel, event: PubSubEvent<'_>) {
        let listeners = {
            let listeners = self.listeners.lock();
            // Without sharded channels, a classic one carries the messages.
            let or_sharded = || match channel {
                Channel::Classic(name) => listeners.get(&Channel::Sharded(name.clone())),
                Channel::Sharded(_) => None,
            };
            // Cloned, since a listener may subscribe or unsubscribe when it is
            // called.
            listeners.get(channel).or_else(or_sharded).cloned()
        };
        for (_, listener) in listeners.iter().flatten() {
            listener.on_event(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Listener for Counter {
        fn on_event(&self, _event: PubSubEvent<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A second listener replaced the first, which then got no message. The
    /// first of two followers of an election had to poll.
    #[test]
    fn every_listener_of_a_channel_is_notified() {
        let channels = Channels::default();
        let channel = Channel::Classic(b"news".to_vec());
        let counters = [(); 2].map(|()| Arc::new(Counter::default()));
        let ids = counters
            .each_ref()
            .map(|counter| channels.insert(channel.clone(), counter.clone()));
        channels.deliver(&channel, PubSubEvent::Resubscribed);
        channels.remove(&channel, ids[1]);
        assert!(channels.contains(&channel));
        channels.deliver(&channel, PubSubEvent::Resubscribed);
        assert_eq!(
            counters.map(|counter| counter.0.load(Ordering::Relaxed)),
            [2, 1]
        );
        channels.remove(&channel, ids[0]);
        assert!(!channels.contains(&channel));
    }

    #[test]
    fn classic_channel_carries_messages_of_sharded_one() {
        let channels = Channels::default();
        let counter = Arc::new(Counter::default());
        channels.insert(Channel::Sharded(b"news".to_vec()), counter.clone());
        for (name, count) in [("news", 1), ("other", 1)] {
            let carrier = Channel::Classic(name.as_bytes().to_vec());
            channels.deliver(&carrier, PubSubEvent::Resubscribed);
            assert_eq!(counter.0.load(Ordering::Relaxed), count, "{name}");
        }
    }
}

//! Subscriptions at several servers that are heard as one: a message counts when a majority has made it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backend::connection::NodeConnections;
use crate::backend::{
    Backoff, Channel, Listener, PubSubEvent, RequestError, Subscription, Unsubscribe,
};

/// How many announcements are remembered until a majority has made them.
const MAX_PENDING: usize = 16;

/// How many of so many nodes decide: more than half.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns when a majority of `nodes` has confirmed; the others are heard when they do.
pub(crate) async fn subscribe(
    nodes: Vec<Arc<NodeConnections>>,
    channel: Channel,
    listener: Arc<dyn Listener>,
    keeper: Handle,
) -> Result<Subscription, RequestError> {
    let majority = majority(nodes.len());
    let majority_listener = Arc::new(MajorityListener {
        listener,
        majority,
        heard: Mutex::default(),
    });
    // One task per node, which ends its subscribe_to_node of the subscription when it is ended itself.
    let mut parts = JoinSet::new();
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    for (index, node) in nodes.into_iter().enumerate() {
        let majority_listener = majority_listener.clone();
        let listener_ = Arc::new(NodeListener {
            majority_listener,
            index,
        });
        let subscribe_to_node = subscribe_to_node(node, channel.clone(), listener_, sender.clone());
        parts.spawn_on(subscribe_to_node, &keeper);
    }
    drop(sender);
    let mut confirmed = 0;
    let mut error = RequestError::ShutDown;
    while let Some(outcome) = outcomes.recv().await {
        match outcome {
            Ok(()) => confirmed += 1,
            Err(reason) => error = reason,
        }
        if confirmed >= majority {
            return Ok(Subscription::new(Box::new(NodeSubscriptions(parts))));
        }
    }
    Err(error)
}

/// Is subscribed at one node until it is cancelled. Reports the first outcome, and goes on trying where it failed.
async fn subscribe_to_node(
    node: Arc<NodeConnections>,
    channel: Channel,
    listener_: Arc<NodeListener>,
    outcomes: mpsc::UnboundedSender<Result<(), RequestError>>,
) {
    let mut outcomes = Some(outcomes);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    loop {
        let subscribed = node.subscribe(channel.clone(), listener_.clone()).await;
        match (subscribed, outcomes.take()) {
            (Ok(_in_force), first) => {
                match first {
                    Some(outcomes) => drop(outcomes.send(Ok(()))),
                    // Something may have been missed until now.
                    None => listener_.on_event(PubSubEvent::Resubscribed),
                }
                return std::future::pending().await;
            }
            (Err(error), Some(outcomes)) => drop(outcomes.send(Err(error))),
            (Err(_), None) => {}
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Ends a subscription at all nodes when dropped.
struct NodeSubscriptions(#[expect(dead_code, reason = "dropped with it")] JoinSet<()>);

impl Unsubscribe for NodeSubscriptions {}

/// Passes a message on when a majority of the nodes has said the same.
struct MajorityListener {
    listener: Arc<dyn Listener>,
    majority: usize,
    /// What was said lately, and by which nodes, one bit each.
    heard: Mutex<VecDeque<(Vec<u8>, u64)>>,
}

/// Hears one node.
struct NodeListener {
    majority_listener: Arc<MajorityListener>,
    index: usize,
}

impl Listener for NodeListener {
    fn on_event(&self, event: PubSubEvent<'_>) {
        let passed_on = match event {
            PubSubEvent::Message { text, .. } => self.majority_listener.completes(text, self.index),
            PubSubEvent::Resubscribed | PubSubEvent::Ended => true,
        };
        if passed_on {
            self.majority_listener.listener.on_event(event);
        }
    }
}

impl MajorityListener {
    /// Whether `text` has now been heard from just a majority.
    fn completes(&self, text: &[u8], node: usize) -> bool {
        let bit = 1 << (node % 64);
        let mut heard = self.heard.lock();
        let said = match heard.iter_mut().find(|(said, _)| said == text) {
            Some((_, nodes)) => nodes,
            None => {
                if heard.len() == MAX_PENDING {
                    heard.pop_front();
                }
                heard.push_back((text.to_vec(), 0));
                match heard.back_mut() {
                    Some((_, nodes)) => nodes,
                    None => return true,
                }
            }
        };
        let before = *said;
        *said |= bit;
        before != *said && said.count_ones() as usize == self.majority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_passed_on_once_when_a_majority_has_said_it() {
        struct Deaf;
        impl Listener for Deaf {
            fn on_event(&self, _news: PubSubEvent<'_>) {}
        }
        let majority_listener = MajorityListener {
            listener: Arc::new(Deaf),
            majority: 3,
            heard: Mutex::default(),
        };
        let said = [
            (b"a", 0),
            (b"b", 1),
            (b"a", 1),
            (b"a", 1),
            (b"a", 4),
            (b"a", 2),
        ];
        let passed = said.map(|(text, node)| majority_listener.completes(text, node));
        assert_eq!(passed, [false, false, false, false, true, false]);
        for index in 0..100_u32 {
            majority_listener.completes(&index.to_be_bytes(), 0);
        }
        assert_eq!(majority_listener.heard.lock().len(), MAX_PENDING);
    }
}

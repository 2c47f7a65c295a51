//! Requests and subscriptions that go to every node of a quorum.
//!
//! A request completes when a majority of the nodes returned the same status,
//! or when every node has replied or timed out. A message is delivered when a
//! majority has published it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backend::connection::NodeConnections;
use crate::backend::{
    Backoff, Batch, BoxFuture, Capabilities, Channel, Connection, Listener, NodeReply, PubSubEvent,
    Reply, RequestError, ServerFacts, Subscription, Unsubscribe,
};
use crate::time::BootInstant;

/// How many messages are remembered until a majority has published them.
const MAX_PENDING: usize = 16;

/// Returns the smallest majority of `nodes` nodes.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// A connection to every node of a quorum that is connected.
pub(super) struct FanOut {
    /// In node order; `None` where a node is not connected.
    connections: Vec<Option<Arc<dyn Connection>>>,
    facts: Arc<ServerFacts>,
}

impl FanOut {
    pub(super) fn new(connections: Vec<Option<Arc<dyn Connection>>>) -> Self {
        let clocks = connections
            .iter()
            .flatten()
            .map(|connection| connection.facts().server_now());
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        let facts = Arc::new(ServerFacts {
            // The median is correct while most of the clocks are.
            server_time: clocks.get(clocks.len() / 2).copied().unwrap_or(0),
            read_at: BootInstant::now(),
            version: "several".to_owned(),
            run_id: None,
            capabilities: Capabilities::default(),
        });
        Self { connections, facts }
    }

    async fn ask_all(&self, batch: &Batch, timeout: Duration) -> Vec<Reply> {
        let (sender, mut outcomes) = mpsc::unbounded_channel();
        // Dropped with the caller: a task sends a script again that a node does
        // not know, which must not happen after a cancel.
        let mut tasks = JoinSet::new();
        for (node, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection.clone() else {
                continue;
            };
            let (batch, sender) = (batch.clone(), sender.clone());
            let mut asking = Box::pin(async move {
                let outcome = connection.ask(batch, timeout).await;
                let _ = sender.send((node, outcome));
            });
            // The first poll gives the request its place on the connection. A
            // task may start only after the caller was dropped, and then a
            // cancel would overtake the request.
            let first = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context)));
            if first.await.is_pending() {
                tasks.spawn(asking);
            }
        }
        // Only the tasks hold senders now, so `recv` ends with the last of
        // them.
        drop(sender);
        let missing = self.connections.iter().map(|connection| match connection {
            Some(_) => Err("no reply yet".into()),
            None => Err("not connected".into()),
        });
        let missing: Vec<NodeReply> = missing.collect();
        let mut replies = vec![missing; batch.len()];
        while let Some((node, outcome)) = outcomes.recv().await {
            let outcome = outcome.map_err(|error| error.to_string().into());
            for (index, per_node) in replies.iter_mut().enumerate() {
                per_node[node] = reply_at(index, &outcome);
            }
            if !batch.await_all_nodes && replies.iter().all(|per_node| is_agreed(per_node)) {
                break;
            }
        }
        // The other nodes may still reply, or be found silent.
        tasks.detach_all();
        replies.into_iter().map(Reply::PerNode).collect()
    }
}

/// Returns a node's reply to the command at `index`.
fn reply_at(index: usize, outcome: &Result<Vec<Reply>, Arc<str>>) -> NodeReply {
    let replies = outcome.as_ref().map_err(Clone::clone)?;
    let reply = replies.get(index).cloned();
    reply.ok_or_else(|| "fewer replies than commands".into())
}

/// Returns whether a majority of all nodes returned the same status.
fn is_agreed(replies: &[NodeReply]) -> bool {
    let statuses: Vec<_> = replies.iter().flatten().map(status_of).collect();
    statuses.iter().any(|status| {
        let same = statuses.iter().filter(|other| *other == status);
        same.count() >= majority(replies.len())
    })
}

/// Returns the status of a reply: the first item of a list, or the reply
/// itself.
fn status_of(reply: &Reply) -> &Reply {
    match reply {
        Reply::List(items) => items.first().unwrap_or(reply),
        _ => reply,
    }
}

impl Connection for FanOut {
    fn facts(&self) -> Arc<ServerFacts> {
        self.facts.clone()
    }

    fn id(&self) -> u64 {
        let first = self.connections.iter().flatten().next();
        first.map_or(0, |connection| connection.id())
    }

    fn is_quorum(&self) -> bool {
        true
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        let mut open = self.connections.iter().flatten();
        open.any(|connection| connection.is_silent_for(time))
    }

    fn retire_if_silent(&self, time: Duration) {
        for connection in self.connections.iter().flatten() {
            connection.retire_if_silent(time);
        }
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move { Ok(self.ask_all(&batch, timeout).await) })
    }
}

/// Subscribes at all `nodes`. Returns when a majority has confirmed; the other
/// nodes join when they confirm.
///
/// The subscription lives on `keeper`, since its owner may move to a task of
/// another runtime.
pub(super) async fn subscribe(
    nodes: Vec<Arc<NodeConnections>>,
    channel: Channel,
    listener: Arc<dyn Listener>,
    keeper: Handle,
) -> Result<Subscription, RequestError> {
    let count = nodes.len();
    let majority = majority(count);
    let majority_listener = Arc::new(MajorityListener {
        listener,
        majority,
        pending: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    for (index, node) in nodes.into_iter().enumerate() {
        let listener = Arc::new(NodeListener {
            majority: majority_listener.clone(),
            node: index,
        });
        let task = subscribe_to_node(node, channel.clone(), listener, sender.clone());
        tasks.spawn_on(task, &keeper);
    }
    drop(sender);
    let mut confirmed = 0;
    let mut refused = 0;
    while let Some(outcome) = outcomes.recv().await {
        match outcome {
            Ok(()) => confirmed += 1,
            // The others cannot make up a majority any more, and may take long
            // to reply.
            Err(error) if refused == count - majority => return Err(error),
            Err(_) => refused += 1,
        }
        // A message needs a majority of publishers. With fewer subscriptions it
        // could get lost.
        if confirmed >= majority {
            return Ok(Subscription::new(Box::new(NodeSubscriptions(tasks))));
        }
    }
    Err(RequestError::ShutDown)
}

/// Subscribes at one node until it succeeds, then holds the subscription until
/// the task is aborted. Sends the first outcome to `outcome`.
async fn subscribe_to_node(
    node: Arc<NodeConnections>,
    channel: Channel,
    listener: Arc<NodeListener>,
    outcome: mpsc::UnboundedSender<Result<(), RequestError>>,
) {
    // The subscriber waits for the first outcome only.
    let mut outcome = Some(outcome);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    loop {
        let subscribed = node.subscribe(channel.clone(), listener.clone()).await;
        match (subscribed, outcome.take()) {
            (Ok(_subscription), outcome) => {
                match outcome {
                    Some(outcome) => drop(outcome.send(Ok(()))),
                    // Messages published until now are lost.
                    None => listener.on_event(PubSubEvent::Resubscribed),
                }
                return std::future::pending().await;
            }
            (Err(error), Some(outcome)) => drop(outcome.send(Err(error))),
            (Err(_), None) => {}
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// The tasks that hold the subscription at each node. Dropping the set aborts
/// them.
struct NodeSubscriptions(#[expect(dead_code, reason = "held for its `Drop`")] JoinSet<()>);

impl Unsubscribe for NodeSubscriptions {}

/// Delivers a message once, when a majority of the nodes has published it.
struct MajorityListener {
    listener: Arc<dyn Listener>,
    majority: usize,
    /// Recent messages, each with a bit for every node that published it.
    pending: Mutex<VecDeque<(Vec<u8>, u64)>>,
}

/// The listener at one node.
struct NodeListener {
    majority: Arc<MajorityListener>,
    node: usize,
}

impl Listener for NodeListener {
    fn on_event(&self, event: PubSubEvent<'_>) {
        let is_due = match event {
            PubSubEvent::Message { text, .. } => self.majority.completes(text, self.node),
            PubSubEvent::Resubscribed | PubSubEvent::Ended => true,
        };
        if is_due {
            self.majority.listener.on_event(event);
        }
    }
}

impl MajorityListener {
    /// Records that `node` published `text`. Returns whether this completes the
    /// majority.
    fn completes(&self, text: &[u8], node: usize) -> bool {
        let bit = 1 << (node % 64);
        let mut pending = self.pending.lock();
        let publishers = match pending.iter_mut().find(|(other, _)| other == text) {
            Some((_, publishers)) => publishers,
            None => {
                // The oldest message is the least likely to still complete. A
                // lost one costs a poll.
                if pending.len() == MAX_PENDING {
                    pending.pop_front();
                }
                pending.push_back((text.to_vec(), 0));
                match pending.back_mut() {
                    Some((_, publishers)) => publishers,
                    None => return true,
                }
            }
        };
        let before = *publishers;
        *publishers |= bit;
        // Exactly at the majority: later publishers must not deliver it again.
        before != *publishers && publishers.count_ones() as usize == self.majority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majority_agrees_by_status() {
        let list = |first, second| Ok(Reply::List(vec![Reply::Int(first), Reply::Int(second)]));
        let none = || Err("no reply".into());
        assert!(is_agreed(&[list(1, 5), list(1, 6), none()]));
        assert!(!is_agreed(&[list(1, 5), list(0, 5), none()]));
        assert!(!is_agreed(&[list(1, 5), none(), none()]));
        assert!(is_agreed(&[
            Ok(Reply::Nil),
            Ok(Reply::Nil),
            Ok(Reply::Int(1))
        ]));
    }

    #[test]
    fn message_is_delivered_once_by_majority() {
        struct NullListener;
        impl Listener for NullListener {
            fn on_event(&self, _event: PubSubEvent<'_>) {}
        }
        let listener = MajorityListener {
            listener: Arc::new(NullListener),
            majority: 3,
            pending: Mutex::default(),
        };
        let published = [
            (b"a", 0),
            (b"b", 1),
            (b"a", 1),
            (b"a", 1),
            (b"a", 4),
            (b"a", 2),
        ];
        let delivered = published.map(|(text, node)| listener.completes(text, node));
        assert_eq!(delivered, [false, false, false, false, true, false]);
        for text in 0..100_u32 {
            listener.completes(&text.to_be_bytes(), 0);
        }
        assert_eq!(listener.pending.lock().len(), MAX_PENDING);
    }
}

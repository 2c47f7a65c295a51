//! Several independent servers that are asked as one.
//!
//! A request goes to all of them at once, and is answered when a majority has replies the same, or all have
//! answered or are too late: one that is slow or dead delays nobody. What the answers come to is for others to
//! say; here they only stand side by side, as [`Reply::PerNode`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::fan_out::{self, majority};
use super::master::Master;
use crate::backend::connection::{NodeConnections, OnStateChange};
use crate::backend::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Connection, Listener, Purpose, Reply,
    RequestError, ServerError, ServerErrorKind, ServerFacts, Slot, Subscription,
};
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// What nodes are given at the first connection, at least, that are later than a majority.
const MIN_GRACE: Duration = Duration::from_millis(50);

/// See the module's documentation.
pub(crate) struct QuorumBackend {
    nodes: Vec<Arc<QuorumNode>>,
    /// How long a majority is waited for that was never connected, and later on.
    first_timeout: Duration,
    timeout: Duration,
    /// Whether a majority was ever connected.
    ever_connected: AtomicBool,
    /// Where subscriptions live: they may be handed on to tasks of other runtimes.
    keeper: Handle,
    /// Says that a node was connected to, which may have been started anew.
    changes: Arc<Notify>,
}

struct QuorumNode {
    connections: Arc<NodeConnections>,
    /// Whether somebody is connecting the callers' purpose.
    is_connecting: AtomicBool,
    /// Why that failed when it was last tried.
    last_error: Mutex<Option<ServerError>>,
}

/// Connects the callers' purpose of one node; also when it is dropped half-way, another may try.
struct ConnectAttempt(Arc<QuorumNode>);

impl ConnectAttempt {
    async fn connect(self) {
        let dialed = self.0.connections.connection(Purpose::Requests).await;
        let mut last_error = self.0.last_error.lock();
        match dialed {
            Ok(_) => *last_error = None,
            Err(RequestError::Refused(error)) => *last_error = Some(error),
            // While a pause is kept, only the text of a refusal comes back.
            Err(error) => {
                last_error.get_or_insert_with(|| ServerError {
                    kind: ServerErrorKind::TooFewVote,
                    message: error.to_string(),
                });
            }
        }
    }
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        self.0.is_connecting.store(false, Ordering::Release);
    }
}

impl QuorumBackend {
    pub(crate) fn new(
        masters: Vec<Master>,
        first_timeout: Duration,
        timeout: Duration,
        keeper: &Handle,
    ) -> Self {
        let changes = Arc::new(Notify::new());
        let on_state_change: OnStateChange = {
            let changes = changes.clone();
            Arc::new(move |is_up| {
                if is_up {
                    changes.notify_one();
                }
            })
        };
        let node = |master| {
            Arc::new(QuorumNode {
                connections: Arc::new(NodeConnections::start(
                    master,
                    keeper,
                    on_state_change.clone(),
                )),
                is_connecting: AtomicBool::new(false),
                last_error: Mutex::default(),
            })
        };
        Self {
            nodes: masters.into_iter().map(node).collect(),
            first_timeout,
            timeout,
            ever_connected: AtomicBool::new(false),
            keeper: keeper.clone(),
            changes,
        }
    }

    fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    /// The connections that are there, one per server: a second address of a server has no vote.
    fn open_connections(&self, purpose: Purpose) -> OpenConnections {
        let connection = |node: &Arc<QuorumNode>| {
            Some(node.connections.open_connection(purpose)? as Arc<dyn Connection>)
        };
        let mut connections: Vec<_> = self.nodes.iter().map(connection).collect();
        let mut known: Vec<(usize, Arc<ServerFacts>)> = Vec::new();
        let mut duplicate = None;
        for (second, connection) in connections.iter_mut().enumerate() {
            let Some(own) = connection.as_ref().map(|connection| connection.facts()) else {
                continue;
            };
            let is_same = |other: &ServerFacts| own.run_id.is_some() && own.run_id == other.run_id;
            match known.iter().find(|(_, other)| is_same(other)) {
                Some((first, _)) => {
                    *connection = None;
                    duplicate = duplicate.or(Some((*first, second)));
                }
                None => known.push((second, own)),
            }
        }
        OpenConnections {
            connections,
            duplicate,
        }
    }

    /// Whether every node is connected, or was found not to be there.
    fn is_complete(&self, purpose: Purpose) -> bool {
        self.nodes.iter().all(|node| {
            let is_open = node.connections.open_connection(purpose).is_some();
            is_open || !node.is_connecting.load(Ordering::Acquire)
        })
    }

    /// Connects to nodes that are not connected, in the background.
    fn connect_missing(&self) {
        for node in &self.nodes {
            let missing = node
                .connections
                .open_connection(Purpose::Requests)
                .is_none();
            if missing && !node.is_connecting.swap(true, Ordering::AcqRel) {
                let is_connecting = ConnectAttempt(node.clone());
                Handle::current().spawn(is_connecting.connect());
            }
        }
    }

    /// Why there is no majority: what somebody can do something about first.
    fn no_majority(&self) -> RequestError {
        let last_error = self
            .nodes
            .iter()
            .filter_map(|node| node.last_error.lock().clone());
        let mut last_error: Vec<_> = last_error.collect();
        last_error.sort_by_key(|error| error.kind == ServerErrorKind::TooFewVote);
        let unknown = || ServerError {
            kind: ServerErrorKind::TooFewVote,
            message: "too few nodes could be connected to in time".to_owned(),
        };
        RequestError::Refused(last_error.into_iter().next().unwrap_or_else(unknown))
    }
}

/// The connections of one purpose, in the order of the nodes.
struct OpenConnections {
    connections: Vec<Option<Arc<dyn Connection>>>,
    /// Two nodes that are one server.
    duplicate: Option<(usize, usize)>,
}

impl OpenConnections {
    /// Refuses new work where two nodes are one server. The keeper goes on: what is held must be kept and released.
    fn check(&self, purpose: Purpose) -> Result<(), RequestError> {
        match (purpose, self.duplicate) {
            (Purpose::Keeper, _) | (_, None) => Ok(()),
            (Purpose::Requests, Some((first, second))) => Err(RequestError::Refused(ServerError {
                kind: ServerErrorKind::SameServer,
                message: format!(
                    "numbers {} and {} are the same server, and a quorum is of independent ones",
                    first + 1,
                    second + 1
                ),
            })),
        }
    }
}

impl Backend for QuorumBackend {
    fn open_connection(&self, purpose: Purpose, _slot: Slot) -> Option<Arc<dyn Connection>> {
        let open = self.open_connections(purpose);
        let count = open.connections.iter().flatten().count();
        if count < open.connections.len() && purpose == Purpose::Requests {
            self.connect_missing();
        }
        let is_enough = count >= self.majority() && open.check(purpose).is_ok();
        is_enough.then(|| Arc::new(FanOut::new(open.connections)) as Arc<dyn Connection>)
    }

    /// Waits a little for a majority; then goes on with those that are there, be they few. Where there never
    /// was one, says why.
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let ever_connected = self.ever_connected.load(Ordering::Relaxed);
            let timeout = if ever_connected {
                self.timeout
            } else {
                self.first_timeout
            };
            let start = BootInstant::now();
            let end = start + timeout;
            // The first time the others are given as long again: two of all must not be one server.
            let mut grace_end = ever_connected.then_some(start);
            loop {
                if let Some(connection) = self.open_connection(purpose, slot) {
                    let now = BootInstant::now();
                    let grace_end = *grace_end.get_or_insert(now + now.since(start).max(MIN_GRACE));
                    if now >= grace_end.min(end) || self.is_complete(purpose) {
                        self.ever_connected.store(true, Ordering::Relaxed);
                        return Ok(connection);
                    }
                }
                let open = self.open_connections(purpose);
                open.check(purpose)?;
                if BootInstant::now() >= end && !ever_connected {
                    return Err(self.no_majority());
                }
                if BootInstant::now() >= end {
                    return Ok(Arc::new(FanOut::new(open.connections)) as Arc<dyn Connection>);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    }

    fn acknowledged(
        &self,
        _purpose: Purpose,
        _slot: Slot,
        _wanted: ReplicaAck,
        _timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async { unreachable!("BUG: a quorum takes no replica acknowledgement") })
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn changes(&self) -> Arc<Notify> {
        self.changes.clone()
    }

    /// Returns when a majority has confirmed; the others are heard when they do.
    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        let nodes = self.nodes.iter().map(|node| node.connections.clone());
        let nodes = nodes.collect();
        Box::pin(fan_out::subscribe(
            nodes,
            channel,
            listener,
            self.keeper.clone(),
        ))
    }
}

/// One connection to replies node that has one.
struct FanOut {
    connections: Vec<Option<Arc<dyn Connection>>>,
    facts: Arc<ServerFacts>,
}

impl FanOut {
    fn new(connections: Vec<Option<Arc<dyn Connection>>>) -> Self {
        let clocks = connections
            .iter()
            .flatten()
            .map(|connection| connection.facts().server_now());
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        let facts = Arc::new(ServerFacts {
            // The one in the middle: it is right as long as most of them are.
            server_time: clocks.get(clocks.len() / 2).copied().unwrap_or(0),
            read_at: BootInstant::now(),
            version: "several".to_owned(),
            run_id: None,
            capabilities: Capabilities::default(),
        });
        Self { connections, facts }
    }

    async fn ask_all(&self, batch: &Batch, timeout: Duration) -> Vec<Reply> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        for (number, connection) in self.connections.iter().enumerate() {
            if let Some(connection) = connection.clone() {
                let (batch, sender) = (batch.clone(), sender.clone());
                // On its own: what was asked of all must reach all, also when a majority has answered.
                Handle::current().spawn(async move {
                    let answer = connection.ask(batch, timeout).await;
                    let _ = sender.send((number, answer));
                });
            }
        }
        drop(sender);
        let mut replies: Vec<Vec<Option<Reply>>> =
            vec![vec![None; self.connections.len()]; batch.len()];
        while let Some((number, answer)) = answers.recv().await {
            for (command, reply) in replies.iter_mut().zip(answer.unwrap_or_default()) {
                command[number] = Some(reply);
            }
            if !batch.await_all_nodes && replies.iter().all(|replies| is_agreed(replies)) {
                break;
            }
        }
        replies.into_iter().map(Reply::PerNode).collect()
    }
}

/// Whether more than half have replies the same, as far as the first word goes.
fn is_agreed(replies: &[Option<Reply>]) -> bool {
    let answered: Vec<_> = replies.iter().flatten().map(status_of).collect();
    let mut same = answered.iter().map(|status_of| {
        let same = answered.iter().filter(|other| *other == status_of);
        same.count()
    });
    same.any(|count| count >= majority(replies.len()))
}

fn status_of(reply: &Reply) -> &Reply {
    match reply {
        Reply::List(parts) => parts.first().unwrap_or(reply),
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

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move { Ok(self.ask_all(&batch, timeout).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_of_all_agrees_by_its_first_word() {
        let list = |first, second| Some(Reply::List(vec![Reply::Int(first), Reply::Int(second)]));
        assert!(is_agreed(&[list(1, 5), list(1, 6), None]));
        assert!(!is_agreed(&[list(1, 5), list(0, 5), None]));
        assert!(!is_agreed(&[list(1, 5), None, None]));
        assert!(is_agreed(&[
            Some(Reply::Nil),
            Some(Reply::Nil),
            Some(Reply::Int(1))
        ]));
    }
}

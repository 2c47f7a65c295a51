//! A quorum: independent servers that act as one.
//!
//! A request goes to all nodes at once, and completes when a majority agrees.
//! A slow or dead node delays nothing. This layer returns the replies side by
//! side, as [`Reply::PerNode`](crate::backend::Reply::PerNode); `protocol`
//! decides what they mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::fan_out::{self, FanOut, majority};
use super::master::Master;
use crate::backend::connection::{NodeConnections, OnStateChange};
use crate::backend::{
    Backend, BoxFuture, Channel, Connection, Listener, Purpose, RequestError, ServerError,
    ServerErrorKind, ServerFacts, Slot, Subscription,
};
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// How long the first connection waits for the remaining nodes, at least, after
/// a majority is connected.
const MIN_GRACE: Duration = Duration::from_millis(50);

/// How often the state of the connections is checked while waiting for them.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// See the module's documentation.
pub(crate) struct QuorumBackend {
    nodes: Vec<Arc<NodeConnections>>,
    /// How long to wait for the first majority.
    first_timeout: Duration,
    /// How long to wait for a majority later.
    timeout: Duration,
    /// Whether a majority was ever connected.
    ever_connected: AtomicBool,
    /// The runtime of the subscriptions.
    keeper: Handle,
    /// Notified when a node is connected. The node may have restarted.
    changes: Arc<Notify>,
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
            let connections = NodeConnections::start(master, keeper, on_state_change.clone());
            Arc::new(connections)
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

    /// Returns the open connections, one per server. A second address of the
    /// same server has no vote.
    fn open_connections(&self, purpose: Purpose) -> OpenConnections {
        let connection = |node: &Arc<NodeConnections>| {
            Some(node.open_connection(purpose)? as Arc<dyn Connection>)
        };
        let mut connections: Vec<_> = self.nodes.iter().map(connection).collect();
        let mut distinct: Vec<(usize, Arc<ServerFacts>)> = Vec::new();
        let mut duplicate = None;
        for (second, connection) in connections.iter_mut().enumerate() {
            let Some(facts) = connection.as_ref().map(|connection| connection.facts()) else {
                continue;
            };
            let is_same =
                // A node whose run id an ACL hides counts as a server of its
                // own.
                |other: &ServerFacts| facts.run_id.is_some() && facts.run_id == other.run_id;
            match distinct.iter().find(|(_, other)| is_same(other)) {
                Some((first, _)) => {
                    *connection = None;
                    duplicate = duplicate.or(Some((*first, second)));
                }
                None => distinct.push((second, facts)),
            }
        }
        OpenConnections {
            connections,
            duplicate,
        }
    }

    /// Returns whether every node is connected, or the attempt has failed.
    fn is_complete(&self, purpose: Purpose) -> bool {
        self.nodes
            .iter()
            .all(|node| node.open_connection(purpose).is_some() || !node.is_connecting())
    }

    /// Returns why there is no majority. An error that the user can fix comes
    /// first.
    fn no_majority(&self) -> RequestError {
        let errors = self
            .nodes
            .iter()
            .filter_map(|node| node.last_error())
            .map(|error| match &*error {
                RequestError::Refused(error) => error.clone(),
                other => ServerError {
                    kind: ServerErrorKind::NoMajority,
                    message: other.to_string(),
                },
            });
        let mut errors: Vec<_> = errors.collect();
        // `false` sorts first: a wrong password explains more than a node that
        // is down.
        errors.sort_by_key(|error| error.kind == ServerErrorKind::NoMajority);
        let timed_out = || ServerError {
            kind: ServerErrorKind::NoMajority,
            message: format!(
                "fewer than {} of {} nodes connected in time",
                majority(self.nodes.len()),
                self.nodes.len()
            ),
        };
        RequestError::Refused(errors.into_iter().next().unwrap_or_else(timed_out))
    }
}

/// The open connections for one purpose, in node order.
struct OpenConnections {
    connections: Vec<Option<Arc<dyn Connection>>>,
    /// Two nodes that are the same server.
    duplicate: Option<(usize, usize)>,
}

impl OpenConnections {
    /// Fails for callers if two nodes are the same server. The keeper
    /// continues, since it must renew and release what is held.
    fn check(&self, purpose: Purpose) -> Result<(), RequestError> {
        match (purpose, self.duplicate) {
            (Purpose::Keeper, _) | (_, None) => Ok(()),
            (Purpose::Requests, Some((first, second))) => Err(RequestError::Refused(ServerError {
                kind: ServerErrorKind::SameServer,
                message: format!(
                    "nodes {} and {} are the same server; a quorum needs independent servers",
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
        if count < self.nodes.len() && purpose == Purpose::Requests {
            self.nodes
                .iter()
                .for_each(|node| node.connect_in_background());
        }
        let is_enough = count >= majority(self.nodes.len()) && open.check(purpose).is_ok();
        is_enough.then(|| Arc::new(FanOut::new(open.connections)) as Arc<dyn Connection>)
    }

    /// Waits for a majority up to a timeout. After it, returns the nodes that
    /// are connected, or an error if there never was a majority.
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let ever_connected = self.ever_connected.load(Ordering::Relaxed);
            let timeout = match ever_connected {
                true => self.timeout,
                false => self.first_timeout,
            };
            let start = BootInstant::now();
            let end = start + timeout;
            // At first, the remaining nodes get as much time again: the check
            // for duplicate servers needs all of them.
            let mut grace_end = ever_connected.then_some(start);
            loop {
                if let Some(connection) = self.open_connection(purpose, slot) {
                    let now = BootInstant::now();
                    let grace = now.since(start).max(MIN_GRACE);
                    let grace_end = *grace_end.get_or_insert(now + grace);
                    if now >= grace_end.min(end) || self.is_complete(purpose) {
                        self.ever_connected.store(true, Ordering::Relaxed);
                        return Ok(connection);
                    }
                }
                let open = self.open_connections(purpose);
                open.check(purpose)?;
                if BootInstant::now() >= end {
                    return match ever_connected {
                        // We send to the nodes that are connected: the call
                        // counts the votes, and the error says how many nodes
                        // are missing.
                        true => Ok(Arc::new(FanOut::new(open.connections)) as Arc<dyn Connection>),
                        false => Err(self.no_majority()),
                    };
                }
                tokio::time::sleep(POLL_INTERVAL).await;
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
        Box::pin(async { unreachable!("BUG: a quorum takes no replica acknowledgements") })
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn changes(&self) -> Arc<Notify> {
        self.changes.clone()
    }

    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        let nodes = self.nodes.clone();
        let keeper = self.keeper.clone();
        Box::pin(fan_out::subscribe(nodes, channel, listener, keeper))
    }
}

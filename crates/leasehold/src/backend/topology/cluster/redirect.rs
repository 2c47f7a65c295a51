//! The way of one request through a cluster: to the node that has the slot, and after redirections.
//!
//! Only what a node refused is sent again, to the node it named: a refusal proves that nothing was
//! executed (invariant 1 of the layer). The last connection that was used is the first to be used again, so
//! that an answer proves, as on any connection, that what was sent before is over: earlier ones have refused it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::slot_map::{Address, Redirect};
use super::{Node, Nodes};
use crate::backend::connection::RedisConnection;
use crate::backend::{
    Backoff, Batch, BoxFuture, Command, Connection, Purpose, Reply, RequestError, ServerFacts,
};
use crate::time::BootInstant;

/// See the module's documentation.
pub(crate) struct RedirectingConnection {
    nodes: Arc<Nodes>,
    purpose: Purpose,
    current: Mutex<Arc<RedisConnection>>,
}

impl RedirectingConnection {
    pub(crate) fn new(
        nodes: Arc<Nodes>,
        purpose: Purpose,
        connection: Arc<RedisConnection>,
    ) -> Self {
        let current = Mutex::new(connection);
        Self {
            nodes,
            purpose,
            current,
        }
    }

    fn current(&self) -> Arc<RedisConnection> {
        self.current.lock().clone()
    }

    async fn follow(&self, batch: &Batch, timeout: Duration) -> Result<Vec<Reply>, RequestError> {
        let end = BootInstant::now() + timeout;
        let mut pauses = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
        let first = self.current();
        let mut replies = self.sent(first.exchange(batch.clone(), timeout)).await?;
        // Who has refused, where it is not the first.
        let mut refusers: HashMap<usize, Arc<RedisConnection>> = HashMap::new();
        for hop in 0.. {
            let refuser = |index| refusers.get(&index).unwrap_or(&first).host();
            let errands = self.errands(&replies, refuser);
            let left = end.since(BootInstant::now());
            if errands.is_empty() || left.is_zero() {
                break;
            }
            // The first redirection is event; more of them mean that the nodes do not agree yet.
            if hop > 0 || errands.contains_key(&Errand::Again) {
                tokio::time::sleep(pauses.pause().min(left)).await;
            }
            for (errand, indices) in errands {
                let Some(connection) = self.destination(&errand, end).await else {
                    return Ok(replies);
                };
                let left = end.since(BootInstant::now());
                let answers = match errand {
                    Errand::Ask(_) => {
                        self.sent(asking(&connection, batch, &indices, left))
                            .await?
                    }
                    _ => {
                        self.sent(connection.exchange(batch.select(&indices), left))
                            .await?
                    }
                };
                for (index, answer) in indices.into_iter().zip(answers) {
                    replies[index] = answer;
                    refusers.insert(index, connection.clone());
                }
            }
        }
        Ok(replies)
    }

    /// Waits for the replies. Where there are none, the slot may be another's by now.
    async fn sent(
        &self,
        exchange: impl Future<Output = Result<Vec<Reply>, RequestError>>,
    ) -> Result<Vec<Reply>, RequestError> {
        let replies = exchange.await;
        replies.inspect_err(|_| self.nodes.topology_changed.notify_one())
    }

    /// What was refused and is to be sent where, by index; notes what has moved.
    fn errands<'a>(
        &self,
        replies: &[Reply],
        refuser: impl Fn(usize) -> &'a str,
    ) -> HashMap<Errand, Vec<usize>> {
        let mut errands: HashMap<_, Vec<_>> = HashMap::new();
        for (index, reply) in replies.iter().enumerate() {
            let errand = match Redirect::of(reply) {
                Some(Redirect::Moved(slot, address)) => {
                    let address = address.given_by(refuser(index));
                    if let Some(address) = &address {
                        self.nodes.moved(slot, address);
                    }
                    address.map(Errand::At)
                }
                Some(Redirect::Ask(address)) => address.given_by(refuser(index)).map(Errand::Ask),
                Some(Redirect::Again) => Some(Errand::Again),
                None => continue,
            };
            match errand {
                Some(errand) => errands.entry(errand).or_default().push(index),
                // The node does not know where the other is; its caller tries again when that is learnt.
                None => self.nodes.topology_changed.notify_one(),
            }
        }
        errands
    }

    /// The connection for an errand, from now on this route's own; `None` when it cannot be had in time.
    async fn destination(&self, errand: &Errand, end: BootInstant) -> Option<Arc<RedisConnection>> {
        let (Errand::At(address) | Errand::Ask(address)) = errand else {
            return Some(self.current());
        };
        let node = self.nodes.node_at(address)?;
        let connecting = node.lanes.connection(self.purpose);
        let connected = tokio::time::timeout(end.since(BootInstant::now()), connecting).await;
        let connection = connected.ok()?.ok()?;
        *self.current.lock() = connection.clone();
        Some(connection)
    }
}

/// A connection that follows no redirections, and sees to it that the next request goes elsewhere.
pub(crate) struct RedirectRecorder {
    nodes: Arc<Nodes>,
    node: Arc<Node>,
    connection: Arc<dyn Connection>,
}

impl RedirectRecorder {
    pub(crate) fn new(nodes: Arc<Nodes>, node: Arc<Node>, connection: Arc<dyn Connection>) -> Self {
        Self {
            nodes,
            node,
            connection,
        }
    }
}

impl Connection for RedirectRecorder {
    fn facts(&self) -> Arc<ServerFacts> {
        self.connection.facts()
    }

    fn id(&self) -> u64 {
        self.connection.id()
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move {
            let replies = self.connection.ask(batch, timeout).await;
            let replies = replies.inspect_err(|_| self.nodes.topology_changed.notify_one())?;
            for reply in &replies {
                if let Reply::Refused(error) = reply {
                    let error = RequestError::Refused(error.clone());
                    self.nodes.is_moved(&error, &self.node);
                }
            }
            Ok(replies)
        })
    }
}

/// What is done about a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Errand {
    At(Address),
    Ask(Address),
    Again,
}

/// Sends commands to a node that is about to have their slot. Scripts go with their source: a second try
/// would have to ask for permission again.
async fn asking(
    connection: &RedisConnection,
    batch: &Batch,
    indices: &[usize],
    timeout: Duration,
) -> Result<Vec<Reply>, RequestError> {
    let commands = indices.iter().flat_map(|index| {
        let command = batch.with_source(*index).or_else(|| batch.command(*index));
        [Some(Command::new("ASKING")), command]
    });
    let commands: Batch = commands.flatten().collect();
    let replies = connection.exchange(commands, timeout).await?;
    Ok(replies.into_iter().skip(1).step_by(2).collect())
}

impl Connection for RedirectingConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.current().facts()
    }

    fn id(&self) -> u64 {
        self.current().id()
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move { self.follow(&batch, timeout).await })
    }
}

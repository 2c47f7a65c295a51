//! Following the redirections of a cluster.
//!
//! Only commands that a node refused are sent again, to the node that it named:
//! an error reply proves that nothing was executed (invariant 1 of the layer).
//! The next request uses the connection that was used last. A reply thus still
//! proves that earlier requests have finished: the earlier nodes refused them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::Mutex;

use super::nodes::{Node, Nodes};
use super::slot_map::{NodeAddress, Redirect, is_cluster_down};
use crate::backend::connection::RedisConnection;
use crate::backend::{
    Admission, Backoff, Batch, BoxFuture, Connection, Purpose, Reply, RequestError, ServerFacts,
};
use crate::time::BootInstant;

/// A connection that follows redirections.
pub(super) struct RedirectingConnection {
    nodes: Arc<Nodes>,
    purpose: Purpose,
    current: Mutex<Arc<RedisConnection>>,
    has_redirected: AtomicBool,
}

/// How a refused command is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Retry {
    /// To the new owner of the slot.
    Moved(NodeAddress),
    /// Once to a node that is importing the slot, with `ASKING`.
    Ask(NodeAddress),
    /// To the same node.
    SameNode,
}

impl RedirectingConnection {
    pub(super) fn new(
        nodes: Arc<Nodes>,
        purpose: Purpose,
        connection: Arc<RedisConnection>,
    ) -> Self {
        Self {
            nodes,
            purpose,
            current: Mutex::new(connection),
            has_redirected: AtomicBool::new(false),
        }
    }

    fn current(&self) -> Arc<RedisConnection> {
        self.current.lock().clone()
    }

    async fn send(&self, batch: Batch, timeout: Duration) -> Result<Vec<Reply>, RequestError> {
        let end = BootInstant::now() + timeout;
        let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
        let first = self.current();
        let again = &batch.clone();
        let mut replies = self.exchange(&first, batch, timeout).await?;
        // The connection that refused a command, if not the first one.
        let mut refused_by: HashMap<usize, Arc<RedisConnection>> = HashMap::new();
        for hop in 0.. {
            let host = |index| refused_by.get(&index).unwrap_or(&first).host();
            let retries = self.retries(&replies, host);
            let remaining = end.since(BootInstant::now());
            if retries.is_empty() || remaining.is_zero() {
                break;
            }
            self.has_redirected.store(true, Ordering::Relaxed);
            // A first redirection is followed immediately. Further ones mean
            // that the nodes do not agree yet.
            if hop > 0 || retries.contains_key(&Retry::SameNode) {
                tokio::time::sleep(backoff.pause().min(remaining)).await;
            }
            for (retry, indices) in retries {
                let Some(connection) = self.connection_for(&retry, end).await else {
                    return Ok(replies);
                };
                let remaining = end.since(BootInstant::now());
                let new_replies = match retry {
                    Retry::Ask(_) => {
                        let batch = with_asking(again, &indices);
                        let replies = self.exchange(&connection, batch, remaining).await?;
                        // Every other reply is that of an `ASKING`.
                        replies.into_iter().skip(1).step_by(2).collect()
                    }
                    Retry::Moved(_) | Retry::SameNode => {
                        let batch = again.select(&indices);
                        self.exchange(&connection, batch, remaining).await?
                    }
                };
                for (index, reply) in indices.into_iter().zip(new_replies) {
                    replies[index] = reply;
                    refused_by.insert(index, connection.clone());
                }
            }
        }
        Ok(replies)
    }

    /// Sends `batch`. After an error, and if the node is cut off from the
    /// cluster, the slot may belong to another node.
    async fn exchange(
        &self,
        connection: &RedisConnection,
        batch: Batch,
        timeout: Duration,
    ) -> Result<Vec<Reply>, RequestError> {
        let replies = connection.exchange(batch, timeout).await;
        let is_outdated = match &replies {
            Ok(replies) => replies.iter().any(is_cluster_down),
            Err(_) => true,
        };
        if is_outdated {
            self.nodes.topology_changed.notify_one();
        }
        replies
    }

    /// Returns the indices of refused commands by how to send them again, and
    /// records redirections. `host` returns the host that refused a command.
    fn retries<'a>(
        &self,
        replies: &[Reply],
        host: impl Fn(usize) -> &'a str,
    ) -> HashMap<Retry, Vec<usize>> {
        let mut retries: HashMap<_, Vec<_>> = HashMap::new();
        for (index, reply) in replies.iter().enumerate() {
            let retry = match Redirect::from_reply(reply) {
                Some(Redirect::Moved(slot, address)) => {
                    let address = address.resolve(host(index));
                    if let Some(address) = &address {
                        self.nodes.record_owner(slot, address);
                    }
                    address.map(Retry::Moved)
                }
                Some(Redirect::Ask(address)) => address.resolve(host(index)).map(Retry::Ask),
                Some(Redirect::TryAgain) => Some(Retry::SameNode),
                None => continue,
            };
            match retry {
                Some(retry) => retries.entry(retry).or_default().push(index),
                // The node does not know the other's address. The caller
                // retries once the slot map was read.
                None => self.nodes.topology_changed.notify_one(),
            }
        }
        retries
    }

    /// Returns the connection for a retry, which becomes the current one.
    /// Returns `None` if it cannot be made in time.
    async fn connection_for(
        &self,
        retry: &Retry,
        end: BootInstant,
    ) -> Option<Arc<RedisConnection>> {
        let (Retry::Moved(address) | Retry::Ask(address)) = retry else {
            return Some(self.current());
        };
        let node = self.nodes.node_at(address)?;
        let connecting = node.connections.connection(self.purpose);
        let connected = tokio::time::timeout(end.since(BootInstant::now()), connecting).await;
        let connection = connected.ok()?.ok()?;
        // Later requests follow, so that a reply to them proves that this one
        // has finished.
        *self.current.lock() = connection.clone();
        Some(connection)
    }
}

/// Returns the commands at `indices`, each after an `ASKING`. Scripts include
/// their source, because a second attempt would need another `ASKING`.
fn with_asking(batch: &Batch, indices: &[usize]) -> Batch {
    let commands = indices.iter().flat_map(|index| {
        let command = batch.with_source(*index).or_else(|| batch.command(*index));
        [Some(Batch::new("ASKING")), command]
    });
    commands.flatten().collect()
}

impl Connection for RedirectingConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.current().facts()
    }

    fn id(&self) -> u64 {
        self.current().id()
    }

    fn admission(&self) -> Option<Arc<Admission>> {
        self.current().admission()
    }

    fn has_ended(&self) -> bool {
        self.current().has_ended()
    }

    fn has_redirected(&self) -> bool {
        self.has_redirected.load(Ordering::Relaxed)
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        self.current().is_silent_for(time)
    }

    fn retire_if_silent(&self, time: Duration) {
        self.current().retire_if_silent(time);
        // The node may be down, and the slot belong to another one soon.
        self.nodes.topology_changed.notify_one();
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(self.send(batch, timeout))
    }
}

/// A connection that records redirections without following them. The next
/// request goes to the new owner.
pub(super) struct RedirectRecorder {
    nodes: Arc<Nodes>,
    node: Arc<Node>,
    connection: Arc<dyn Connection>,
}

impl RedirectRecorder {
    pub(super) fn new(nodes: Arc<Nodes>, node: Arc<Node>, connection: Arc<dyn Connection>) -> Self {
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

    fn is_silent_for(&self, time: Duration) -> bool {
        self.connection.is_silent_for(time)
    }

    fn retire_if_silent(&self, time: Duration) {
        self.connection.retire_if_silent(time);
        self.nodes.topology_changed.notify_one();
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
                    self.nodes.record_redirect(&error, &self.node);
                }
            }
            Ok(replies)
        })
    }
}

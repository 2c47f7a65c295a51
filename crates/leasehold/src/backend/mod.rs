//! Connections, topologies and subscriptions. This layer transports commands
//! and replies, and knows nothing about locks.
//!
//! A [`Backend`] returns the [`Connection`] for a purpose and a slot. A
//! connection sends pipelines and returns one [`Reply`] per command. Callers
//! hold the connection themselves because it matters which one it is: a reply
//! on a connection proves that every earlier request on it has finished.
//!
//! # Invariants
//!
//! 1. This layer never repeats a command, except one that the server refused
//!    and therefore did not execute: an unknown script or a redirection.
//! 2. [`RequestError::Unreachable`], [`RequestError::NoReplicas`] and the
//!    errors of [`RequestError::proves_unexecuted`] prove that nothing was
//!    executed. Every other failure without a reply is
//!    [`RequestError::Unknown`].
//! 3. A subscription is reported only after the server confirmed it, on every
//!    new connection again. After a reconnect every listener is notified that
//!    it may have missed messages.
//! 4. Reconnection never stops, and always pauses between attempts. The pauses
//!    grow and have jitter.

mod admission;
mod backoff;
mod command;
mod connection;
mod error;
mod reply;
mod slot;
mod staggered;
#[cfg(test)]
mod testing;
mod topology;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use admission::{Admission, Admitted};
pub(crate) use backoff::Backoff;
pub(crate) use command::{Batch, Digits};
pub(crate) use connection::ConnectOptions;
pub(crate) use error::{RequestError, ServerError, ServerErrorKind};
pub(crate) use reply::{NodeReply, Reply};
pub(crate) use slot::{SLOTS, Slot, slot_of};
#[cfg(test)]
pub(crate) use testing::{scripted, simulated};
pub(crate) use topology::{Target, majority};

use crate::info::Messages;
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// A boxed future, which keeps [`Backend`] and [`Connection`] usable as `dyn`.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The servers of one topology.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Returns the open connection for `purpose` to the node that serves
    /// `slot`.
    fn open_connection(&self, purpose: Purpose, slot: Slot) -> Option<Arc<dyn Connection>>;

    /// Returns the connection for `purpose`, connecting first if necessary.
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>>;

    /// Returns an exclusive connection to the node that serves `slot`. A
    /// request on it succeeds only when the replicas acknowledged the writes.
    ///
    /// The number of these connections is bounded. If none becomes free within
    /// `timeout`, this fails with [`RequestError::Unreachable`].
    fn acknowledged(
        &self,
        purpose: Purpose,
        slot: Slot,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>>;

    /// Returns an identifier of the node that serves `slot`. Requests to the
    /// same node may share a pipeline.
    fn node(&self, slot: Slot) -> usize;

    /// Returns one slot of each node that serves any.
    fn shards(&self) -> BoxFuture<'_, Result<Vec<Slot>, RequestError>> {
        Box::pin(async { Ok(vec![0]) })
    }

    /// Returns what the connected replicas of a single server report. Empty in
    /// a cluster and a quorum.
    fn replicas(&self) -> BoxFuture<'_, Result<Vec<Arc<ServerFacts>>, RequestError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns the notification that a node of a quorum was connected. Holding
    /// it does not keep the backend alive.
    fn changes(&self) -> Arc<Notify> {
        Arc::default()
    }

    /// Subscribes to `channel`, which belongs to `slot`, until the subscription
    /// is dropped. Returns when the server has confirmed.
    ///
    /// A channel can have several listeners; each receives every event.
    fn subscribe(
        &self,
        channel: Channel,
        slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>>;
}

/// A pub/sub channel. Sharded and classic channels are separate namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// A channel of `SPUBLISH`, local to the node that owns its slot. A server
    /// without sharded channels carries it as a classic one.
    Sharded(Vec<u8>),
    /// A channel of `PUBLISH`, which a cluster broadcasts to all nodes.
    Classic(Vec<u8>),
}

impl Channel {
    pub(crate) fn name(&self) -> &[u8] {
        match self {
            Self::Sharded(name) | Self::Classic(name) => name,
        }
    }

    /// Returns the classic channel of the same name.
    fn as_classic(&self) -> Self {
        Self::Classic(self.name().to_vec())
    }
}

/// A connection to one node, or to all nodes of a quorum.
pub(crate) trait Connection: Send + Sync {
    /// Returns what the server reported during the handshake.
    fn facts(&self) -> Arc<ServerFacts>;

    /// Returns the connection's id, unique in this process.
    fn id(&self) -> u64;

    /// Returns the limit of acquires in flight, if the connection has one.
    fn admission(&self) -> Option<Arc<Admission>> {
        None
    }

    /// Returns whether the connection is closed or retired.
    fn has_ended(&self) -> bool {
        false
    }

    /// Returns whether a request was redirected. Its commands were then
    /// executed at different times.
    fn has_redirected(&self) -> bool {
        false
    }

    /// Returns whether requests go to the nodes of a quorum. A slow node must
    /// not delay the votes of the others.
    fn is_quorum(&self) -> bool {
        false
    }

    /// Returns whether the connection is closed or retired, or the server has
    /// owed a reply for `time` and has sent none.
    fn is_silent_for(&self, time: Duration) -> bool;

    /// Ends the connection for new requests, if the server has owed a reply for
    /// `time` and has sent none. Replies to requests in flight still count.
    fn retire_if_silent(&self, time: Duration);

    /// Sends `batch` as one pipeline and waits up to `timeout` for all replies.
    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>>;
}

/// A callback for the events of one channel. It runs on the connection's task
/// and must not block.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Handles one event.
    fn on_event(&self, event: PubSubEvent<'_>);
}

/// An event on a subscribed channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PubSubEvent<'a> {
    /// A message, and the id of the connection that received it.
    Message { text: &'a [u8], connection: u64 },
    /// The subscription was renewed. Messages published in between are lost.
    Resubscribed,
    /// The server ended the subscription because the channel's slot moved away.
    Ended,
}

/// An active subscription, which ends when dropped.
pub(crate) struct Subscription {
    _on_drop: Box<dyn Unsubscribe>,
}

/// A value whose `Drop` ends a [`Subscription`].
pub(crate) trait Unsubscribe: Send + Sync {}

impl Subscription {
    pub(crate) fn new(on_drop: Box<dyn Unsubscribe>) -> Self {
        Self { _on_drop: on_drop }
    }
}

/// What a connection is used for. Each purpose has a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Requests of callers, driven by the caller's runtime.
    Requests,
    /// Renewals, releases and subscriptions, driven by the keeper's thread.
    /// They continue when the application's runtime is blocked.
    Keeper,
}

/// What a server reported during the handshake.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    /// The server's clock at the handshake, in microseconds since the Unix
    /// epoch.
    pub(crate) server_time: u64,
    /// This process's clock at the same time.
    pub(crate) read_at: BootInstant,
    /// The server's name and version.
    pub(crate) version: String,
    /// The id of this run of the server process. Read from nodes of a quorum
    /// only.
    pub(crate) run_id: Option<String>,
    /// The optional commands that the server supports.
    pub(crate) capabilities: Capabilities,
}

impl ServerFacts {
    /// Estimates the server's clock now, in microseconds since the Unix epoch.
    pub(crate) fn server_now(&self) -> u64 {
        self.server_time_at(BootInstant::now())
    }

    /// Estimates the server's clock at `now`, in microseconds since the Unix
    /// epoch.
    pub(crate) fn server_time_at(&self, now: BootInstant) -> u64 {
        let elapsed = now.since(self.read_at).as_micros();
        self.server_time
            .saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

/// Optional commands. The handshake queries each instead of comparing
/// versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// `DELEX key IFEQ value` (Redis 8.4).
    pub(crate) delex: bool,
    /// `DELIFEQ key value` (Valkey 9.0).
    pub(crate) delifeq: bool,
    /// How messages reach subscribers.
    pub(crate) messages: Messages,
}

impl Capabilities {
    /// Returns the command that publishes to [`Channel::Sharded`].
    pub(crate) fn publish(self) -> &'static str {
        match self.messages {
            // Also while the server refuses it: a user who is granted the
            // permission later needs no new connection.
            Messages::Sharded | Messages::Polled => "SPUBLISH",
            Messages::Classic => "PUBLISH",
        }
    }
}

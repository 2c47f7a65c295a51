//! Where a request goes: connections, topology and subscriptions; knows bytes, not locks.
//!
//! A [`Backend`] hands out a [`Connection`] for a purpose and a slot; a connection sends pipelines and returns one
//! [`Reply`] per command. The two are separate so that a caller knows *which* connection carries
//! its request: a later request answered on the same connection proves that an earlier one is over.
//!
//! # Invariants
//!
//! 1. Nothing in this layer repeats a command, except one that was refused and so proven not to be
//!    executed: an unknown script, a redirection.
//! 2. [`RequestError::Unreachable`] and [`RequestError::Refused`] prove that nothing was executed;
//!    [`RequestError::Unknown`] is everything that proves neither.
//! 3. A subscription is reported as made only after the server confirmed it, on every connection
//!    anew; after each new connection every listener is told to look for itself.
//! 4. Reconnection never ends and never runs without a pause that grows and is jittered.

mod backoff;
mod command;
mod connection;
mod error;
mod reply;
#[cfg(test)]
mod testing;
mod topology;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use backoff::Backoff;
pub(crate) use command::{Batch, Command};
pub(crate) use connection::Tls;
pub(crate) use error::{RequestError, ServerError, ServerErrorKind};
pub(crate) use reply::Reply;
#[cfg(test)]
pub(crate) use testing::{scripted, simulated};
pub(crate) use topology::{Target, majority};

use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// A future that can be stored and sent; boxed so that [`Backend`] and [`Connection`] stay `dyn`.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One of the 16,384 parts a cluster divides its keys into; the unit by which requests are routed.
pub(crate) type Slot = u16;

/// The place where requests of one topology go.
pub(crate) trait Backend: Send + Sync + 'static {
    /// The live connection of `purpose` to the node that serves `slot`, if there is one.
    fn open_connection(&self, purpose: Purpose, slot: Slot) -> Option<Arc<dyn Connection>>;

    /// The same, made now if need be.
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>>;

    /// A connection of its own to the node that serves `slot`, whose answers count only when the replicas
    /// have acknowledged what was written. There are few of them: other requests may have all of them for
    /// `timeout`, after which this is [`RequestError::Unreachable`].
    fn acknowledged(
        &self,
        purpose: Purpose,
        slot: Slot,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>>;

    /// Which node serves `slot`; requests to one node may share a pipeline.
    fn node(&self, slot: Slot) -> usize;

    /// A slot of each node that has any, to ask all of them for something.
    fn shards(&self) -> BoxFuture<'_, Result<Vec<Slot>, RequestError>> {
        Box::pin(async { Ok(vec![0]) })
    }

    /// Says that one of several servers was connected to. It keeps nothing of the backend alive.
    fn changes(&self) -> Arc<Notify> {
        Arc::default()
    }

    /// Hears `channel`, which lies in `slot`, until the subscription is dropped; returns when the server
    /// has confirmed.
    ///
    /// One listener per channel: a second one takes the place of the first.
    fn subscribe(
        &self,
        channel: Channel,
        slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>>;
}

/// Where something is published. Those of the two kinds have nothing to do with each other, whatever their
/// names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// What is published stays with the node that has the channel's slot.
    Sharded(Vec<u8>),
    /// What is published is passed on to every node of a cluster.
    Classic(Vec<u8>),
}

impl Channel {
    pub(crate) fn name(&self) -> &[u8] {
        match self {
            Self::Sharded(name) | Self::Classic(name) => name,
        }
    }
}

/// One connection to one node.
pub(crate) trait Connection: Send + Sync {
    /// What was learnt from the server when this connection was made.
    fn facts(&self) -> Arc<ServerFacts>;

    /// Tells this connection from all others of this process.
    fn id(&self) -> u64;

    /// Sends `batch` as one pipeline and waits at most `timeout` for all the answers.
    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>>;
}

/// GrantDelivery what happens on a channel. Called on the connection's own task: it must not block.
pub(crate) trait Listener: Send + Sync + 'static {
    /// A message came in, or messages may have been missed because the connection is new.
    fn on_event(&self, event: PubSubEvent<'_>);
}

/// What a [`Listener`] is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PubSubEvent<'a> {
    /// Somebody published this; heard on the connection of this number.
    Message { text: &'a [u8], connection: u64 },
    /// The subscription was made anew; whatever was published in between is lost.
    Resubscribed,
    /// The server has ended the subscription: the channel's slot is another's now.
    Ended,
}

/// A subscription in force; dropping it ends it.
pub(crate) struct Subscription {
    _ends_on_drop: Box<dyn Unsubscribe>,
}

/// What a backend does when a [`Subscription`] is dropped, in its own `Drop`.
pub(crate) trait Unsubscribe: Send + Sync {}

impl Subscription {
    pub(crate) fn new(ends_on_drop: Box<dyn Unsubscribe>) -> Self {
        Self {
            _ends_on_drop: ends_on_drop,
        }
    }
}

/// The purposes that have a connection of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What callers wait for; driven by the caller's own runtime.
    Requests,
    /// What must happen whether or not the application is well; driven by the keeper's thread.
    Keeper,
}

/// What a server said of itself when a connection was made.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    /// The server's clock, in microseconds since 1970, when the connection was made.
    pub(crate) server_time: u64,
    /// Our own clock at that moment.
    pub(crate) read_at: BootInstant,
    /// The server's name and version, as it gives them.
    pub(crate) version: String,
    /// What tells this start of the server from every other one; of one of several servers only.
    pub(crate) run_id: Option<String>,
    /// Which optional commands it has.
    pub(crate) capabilities: Capabilities,
}

impl ServerFacts {
    /// The server's clock now, in microseconds since 1970, as far as our own clock can tell.
    pub(crate) fn server_now(&self) -> u64 {
        let passed = BootInstant::now().since(self.read_at).as_micros();
        self.server_time
            .saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// Optional commands, found by asking the server and not by its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// `DELEX key IFEQ value` (Redis 8.4).
    pub(crate) delex: bool,
    /// `DELIFEQ key value` (Valkey 9.0).
    pub(crate) delifeq: bool,
}

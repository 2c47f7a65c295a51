//! One connection to one server, on which no reply can be taken for another's.
//!
//! Down from here: [`wire`] moves bytes, [`matching`] says whose a reply is, [`resp`] decodes, [`endpoint`] connects and logs
//! in, [`tls`] and [`url`] serve it.

mod endpoint;
mod matching;
#[cfg(test)]
mod matching_tests;
mod node;
mod pubsub;
mod reconnect;
mod replicated;
mod resp;
mod shared;
mod tls;
mod url;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use endpoint::{Endpoint, Role};
pub(crate) use matching::{PushEvent, SubscribeOp};
pub(crate) use node::NodeConnections;
pub(crate) use pubsub::OnStateChange;
pub(crate) use tls::Tls;

use super::{
    Batch, BoxFuture, Channel, Command, Connection, Reply, RequestError, ServerError,
    ServerErrorKind, ServerFacts,
};
use wire::{Wire, WireClosed};

/// A connection that was logged in.
pub(crate) struct RedisConnection {
    id: u64,
    /// The server at the other end, as it is shown to people.
    server: String,
    /// The host of that address.
    host: String,
    facts: Arc<ServerFacts>,
    wire: Arc<Wire>,
    /// How long the server may take to confirm a subscription change: as long as it may take to connect, of which
    /// subscribing again is a part.
    subscribe_timeout: Duration,
}

impl RedisConnection {
    /// Connects on the current runtime, which owns the connection from then on. `on_event` is called for every push, with
    /// the connection's id; it must not block.
    pub(super) async fn connect(
        endpoint: &Endpoint,
        name: &'static str,
        role: Role,
        on_event: impl Fn(PushEvent, u64) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, RequestError> {
        static ID: AtomicU64 = AtomicU64::new(1);
        let id = ID.fetch_add(1, Ordering::Relaxed);
        let on_event = Box::new(move |event| on_event(event, id));
        let (wire, facts) = endpoint.connect(name, role, on_event).await?;
        Ok(Arc::new(Self {
            id,
            server: format!("{endpoint:?}"),
            host: endpoint.host(),
            facts: Arc::new(facts),
            wire,
            subscribe_timeout: endpoint.connect_timeout(),
        }))
    }

    /// Whether new requests should go here.
    pub(super) fn is_open(&self) -> bool {
        !self.wire.is_closed()
    }

    pub(super) fn close(&self) {
        self.wire.close("the connection was given up");
    }

    /// Waits until the connection is closed, by either side.
    pub(super) async fn closed(&self) {
        self.wire.closed().await;
    }

    /// The server's address, as it is shown to people.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// The host of the server's address.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Sends `batch` and waits for its replies. A script that the server does not know is sent again with its source.
    ///
    /// # Cancel safety
    ///
    /// A dropped request keeps its place: it is executed or not, and each later request is executed after it. Nothing is
    /// sent again for a caller that has gone.
    pub(super) async fn exchange(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> Result<Vec<Reply>, RequestError> {
        let exchange = async {
            let mut replies = self.wire.request(&batch).await?;
            if replies
                .iter()
                .any(|reply| reply.is_refused(ServerErrorKind::NoScript))
            {
                // Boxed, since it happens once per script and server.
                Box::pin(self.teach(&batch, &mut replies)).await?;
            }
            Ok(replies)
        };
        let replies = self.in_time(timeout, exchange).await?;
        if replies.iter().any(is_demoted) {
            self.close();
        }
        Ok(replies)
    }

    /// Sends scripts that were unknown with their source.
    async fn teach(&self, batch: &Batch, replies: &mut [Reply]) -> Result<(), WireClosed> {
        let unknown = replies.iter().enumerate();
        let unknown = unknown.filter(|(_, reply)| reply.is_refused(ServerErrorKind::NoScript));
        let with_source = |(at, _)| Some((at, batch.with_source(at)?));
        let (mut places, mut again): (Vec<_>, Vec<_>) = unknown.filter_map(with_source).unzip();
        // What waits for replicas must stand behind what they are to have.
        let waits = batch.commands().iter().enumerate();
        for (at, wait) in waits.filter(|(_, command)| command.is_wait()) {
            places.push(at);
            again.push(wait.clone());
        }
        let answers = self.wire.request(&again.into_iter().collect()).await?;
        for (at, answer) in places.into_iter().zip(answers) {
            replies[at] = answer;
        }
        Ok(())
    }

    /// Enters or leaves channels, and waits for the server's confirmation; the inner errors are its refusals.
    pub(super) async fn update_subscriptions(
        &self,
        op: SubscribeOp,
        channels: &[Channel],
    ) -> Result<Vec<Result<(), ServerError>>, RequestError> {
        let updating = self.wire.update_subscriptions(op, channels);
        let replies = self.in_time(self.subscribe_timeout, updating).await?;
        let outcome = |reply| match reply {
            Reply::Refused(error) => Err(error),
            _ => Ok(()),
        };
        Ok(replies.into_iter().map(outcome).collect())
    }

    async fn in_time<T>(
        &self,
        timeout: Duration,
        exchange: impl Future<Output = Result<T, WireClosed>>,
    ) -> Result<T, RequestError> {
        let answers = self.wire.reply_count();
        match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(replies)) => Ok(replies),
            Ok(Err(WireClosed(reason))) => Err(RequestError::Unknown(reason.to_string().into())),
            Err(_) => {
                // Others were answered meanwhile: only this request is slow, not the connection.
                if self.wire.reply_count() == answers {
                    self.close();
                }
                Err(RequestError::Unknown(
                    format!("no reply within {timeout:?}").into(),
                ))
            }
        }
    }

    /// Asks one question about the server itself.
    pub(super) async fn question(
        &self,
        words: &[&str],
        timeout: Duration,
    ) -> Result<Reply, RequestError> {
        let command = Command::new(words[0]);
        let command = words[1..].iter().fold(command, Command::arg);
        let batch = [command].into_iter().collect();
        match self.exchange(batch, timeout).await?.pop() {
            Some(Reply::Refused(error)) => Err(RequestError::Refused(error)),
            Some(reply) => Ok(reply),
            None => Err(RequestError::malformed(words[0], &[])),
        }
    }
}

impl Drop for RedisConnection {
    /// Ends the reading task with the last handle.
    fn drop(&mut self) {
        self.close();
    }
}

impl Connection for RedisConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.facts.clone()
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(self.exchange(batch, timeout))
    }
}

/// Whether the server has become a replica: where the master is now is to be asked anew.
fn is_demoted(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(error) if error.message.contains("READONLY"))
}

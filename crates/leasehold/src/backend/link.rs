//! One live connection: sends requests, and notices when the server has fallen silent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::sync::Notify;

use super::origin::Origin;
use super::outbox::Outbox;
use super::reply::{Failure, Reply};
use super::{Batch, BoxFuture, Command, Facts, Link};
use crate::clock::Moment;

/// A connection of the driver with what the driver does not watch: whether it is still of use.
pub(super) struct LiveLink {
    number: u64,
    /// The server at the other end.
    server: String,
    connection: MultiplexedConnection,
    outbox: Outbox,
    facts: Arc<Facts>,
    /// When the last answer came in; any task that asks writes it.
    heard: AtomicU64,
    /// Set once, by whoever first finds the connection broken or silent.
    closed: AtomicBool,
    on_close: Notify,
}

impl LiveLink {
    /// Connects; `on_push` hears what the server sends unasked, with the connection's number. A connection that breaks while nobody
    /// uses it is found closed at once, and not by the next request.
    pub(super) async fn connect(
        origin: &Origin,
        name: &'static str,
        on_push: impl Fn(&PushInfo, u64) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Failure> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let broken = Arc::new(OnceLock::<Weak<Self>>::new());
        let breaks = broken.clone();
        let (endpoint, role) = origin.endpoint().await?;
        let (connection, facts) = endpoint
            .connect(name, role, move |push| match push.kind {
                PushKind::Disconnection => {
                    if let Some(link) = breaks.get().and_then(Weak::upgrade) {
                        link.close();
                    }
                }
                _ => on_push(&push, number),
            })
            .await?;
        let link = Arc::new(Self {
            number,
            server: format!("{endpoint:?}"),
            outbox: Outbox::new(connection.clone()),
            connection,
            heard: AtomicU64::new(facts.read_at.as_nanos()),
            facts: Arc::new(facts),
            closed: AtomicBool::new(false),
            on_close: Notify::new(),
        });
        // A break before this line is found by the first request.
        let _ = broken.set(Arc::downgrade(&link));
        Ok(link)
    }

    /// Whether new requests should go here. Those already sent may still be answered afterwards.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.on_close.notify_waiters();
        }
    }

    /// Waits until [`close`](Self::close) was called.
    pub(super) async fn closed(&self) {
        loop {
            let mut notified = std::pin::pin!(self.on_close.notified());
            notified.as_mut().enable();
            if !self.is_open() {
                return;
            }
            notified.await;
        }
    }

    /// Its address, as it is shown to people.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Sends `batch` with whatever else waits to be sent, and waits for its own answers.
    pub(super) async fn exchange(
        &self,
        batch: Batch,
        patience: Duration,
    ) -> Result<Vec<Reply>, Failure> {
        let sent = Moment::now();
        let answered = self.outbox.post(batch, patience);
        match tokio::time::timeout(patience, answered).await {
            Ok(Ok(Ok(replies))) => {
                self.heard
                    .fetch_max(Moment::now().as_nanos(), Ordering::Relaxed);
                if replies.iter().any(is_demoted) {
                    self.close();
                }
                Ok(replies)
            }
            Ok(Ok(Err(failure))) => {
                self.close();
                Err(failure)
            }
            // Not in time, or given up by its carrier.
            Err(_) | Ok(Err(_)) => {
                // Others were answered meanwhile: only this request is slow, not the connection.
                if self.heard.load(Ordering::Relaxed) < sent.as_nanos() {
                    self.close();
                }
                Err(Failure::Unknown(
                    format!("no answer within {patience:?}").into(),
                ))
            }
        }
    }

    /// Asks one question about the server itself.
    pub(super) async fn question(
        &self,
        words: &[&str],
        patience: Duration,
    ) -> Result<Reply, Failure> {
        let command = Command::new(words[0]);
        let command = words[1..].iter().fold(command, Command::arg);
        let batch = [command].into_iter().collect();
        match self.exchange(batch, patience).await?.pop() {
            Some(Reply::Refused(refusal)) => Err(Failure::Refused(refusal)),
            Some(reply) => Ok(reply),
            None => Err(Failure::malformed(words[0], &[])),
        }
    }
}

impl Link for LiveLink {
    fn facts(&self) -> Arc<Facts> {
        self.facts.clone()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn ask(&self, batch: Batch, patience: Duration) -> BoxFuture<'_, Result<Vec<Reply>, Failure>> {
        Box::pin(self.exchange(batch, patience))
    }
}

/// Whether the server has become a replica under us: where it is now is to be asked anew.
fn is_demoted(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(refusal) if refusal.message.contains("READONLY"))
}

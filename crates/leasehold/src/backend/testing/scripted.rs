//! A backend whose answers are written by the test, for paused clocks.
//!
//! A handler sees every pipeline with the purpose and connection it is sent on, and says what comes back and
//! after how long. Subscriptions are confirmed at once; the test speaks to listeners itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Connection, Listener, PubSubEvent, Purpose,
    Reply, RequestError, ServerFacts, Slot, Subscription, Unsubscribe,
};
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// One pipeline as the handler sees it.
pub(crate) struct Sent<'a> {
    pub(crate) purpose: Purpose,
    /// Which connection carried it; a new number after [`Scripted::break_links`].
    pub(crate) connection: u64,
    pub(crate) batch: &'a Batch,
}

impl Sent<'_> {
    /// The name of the first command.
    pub(crate) fn name(&self) -> String {
        name_of(self.batch, 0)
    }
}

/// The name of the command at `index`.
pub(crate) fn name_of(batch: &Batch, index: usize) -> String {
    String::from_utf8_lossy(batch.args(index).next().unwrap_or_default()).into_owned()
}

/// What comes back, and after how long.
pub(crate) type Answer = (Duration, Result<Vec<Reply>, RequestError>);

/// By channel.
type Listeners = Arc<Mutex<HashMap<Channel, Arc<dyn Listener>>>>;

type Handler = dyn FnMut(&Sent<'_>) -> Answer + Send;

/// See the module's documentation.
pub(crate) struct Scripted {
    handler: Arc<Mutex<Box<Handler>>>,
    connection: AtomicU64,
    listeners: Listeners,
}

impl Scripted {
    pub(crate) fn new(handler: impl FnMut(&Sent<'_>) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            handler: Arc::new(Mutex::new(Box::new(handler))),
            connection: AtomicU64::new(1),
            listeners: Arc::default(),
        })
    }

    /// Later requests get other connections.
    pub(crate) fn break_links(&self) {
        self.connection.fetch_add(1, Ordering::SeqCst);
    }

    /// Tells every listener that a message came in, on the connections of now.
    pub(crate) fn publish(&self, text: &[u8]) {
        let connection = self.connection.load(Ordering::SeqCst);
        for listener in self.listeners.lock().values() {
            listener.on_event(PubSubEvent::Message { text, connection });
        }
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.listeners.lock().len()
    }
}

impl Backend for Scripted {
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        let connection = self.open_connection(purpose, slot);
        Box::pin(async move { connection.ok_or(RequestError::ShutDown) })
    }

    fn open_connection(&self, purpose: Purpose, _slot: Slot) -> Option<Arc<dyn Connection>> {
        Some(Arc::new(ScriptedConnection {
            purpose,
            number: self.connection.load(Ordering::SeqCst),
            handler: self.handler.clone(),
            facts: Arc::new(ServerFacts {
                server_time: 0,
                read_at: BootInstant::now(),
                version: "scripted 1".to_owned(),
                run_id: None,
                capabilities: Capabilities {
                    delex: true,
                    ..Capabilities::default()
                },
            }),
        }))
    }

    fn acknowledged(
        &self,
        purpose: Purpose,
        slot: Slot,
        _wanted: ReplicaAck,
        _timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        self.connection(purpose, slot)
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        self.listeners.lock().insert(channel.clone(), listener);
        let listeners = self.listeners.clone();
        Box::pin(async move {
            Ok(Subscription::new(Box::new(ScriptedSubscription {
                channel,
                listeners,
            })))
        })
    }
}

struct ScriptedSubscription {
    channel: Channel,
    listeners: Listeners,
}

impl Unsubscribe for ScriptedSubscription {}

impl Drop for ScriptedSubscription {
    fn drop(&mut self) {
        self.listeners.lock().remove(&self.channel);
    }
}

struct ScriptedConnection {
    purpose: Purpose,
    number: u64,
    handler: Arc<Mutex<Box<Handler>>>,
    facts: Arc<ServerFacts>,
}

impl Connection for ScriptedConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.facts.clone()
    }

    fn id(&self) -> u64 {
        self.number
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move {
            let sent = Sent {
                purpose: self.purpose,
                connection: self.number,
                batch: &batch,
            };
            let (after, answer) = (self.handler.lock())(&sent);
            match tokio::time::timeout(timeout, tokio::time::sleep(after)).await {
                Ok(()) => answer,
                Err(_) => Err(RequestError::Unknown("no answer in time".into())),
            }
        })
    }
}

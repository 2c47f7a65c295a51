//! A backend whose replies are written by the test, for paused clocks.
//!
//! A handler receives every pipeline, with purpose and connection, and returns
//! the reply and a delay. Subscriptions are confirmed immediately; the test
//! calls the listeners itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Mutex;

use crate::backend::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Connection, Listener, PubSubEvent, Purpose,
    Reply, RequestError, ServerFacts, Slot, Subscription, Unsubscribe,
};
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// A pipeline that the handler receives.
pub(crate) struct Sent<'a> {
    pub(crate) purpose: Purpose,
    /// The id of its connection, which changes after [`Scripted::break_links`].
    pub(crate) connection: u64,
    pub(crate) batch: &'a Batch,
}

impl Sent<'_> {
    /// Returns the name of the first command.
    pub(crate) fn name(&self) -> String {
        name_of(self.batch, 0)
    }
}

/// Returns the name of the command at `index`.
pub(crate) fn name_of(batch: &Batch, index: usize) -> String {
    String::from_utf8_lossy(batch.args(index).next().unwrap_or_default()).into_owned()
}

/// The delay of a reply, and the reply.
pub(crate) type Answer = (Duration, Result<Vec<Reply>, RequestError>);

/// The listeners by channel.
type Listeners = Arc<Mutex<HashMap<Channel, Arc<dyn Listener>>>>;

type Handler = dyn FnMut(&Sent<'_>) -> Answer + Send;

/// See the module's documentation.
pub(crate) struct Scripted {
    handler: Arc<Mutex<Box<Handler>>>,
    connection: AtomicU64,
    is_slow: Arc<AtomicBool>,
    /// How long connecting takes.
    delay: Mutex<Duration>,
    listeners: Listeners,
}

impl Scripted {
    pub(crate) fn new(handler: impl FnMut(&Sent<'_>) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            handler: Arc::new(Mutex::new(Box::new(handler))),
            connection: AtomicU64::new(1),
            is_slow: Arc::default(),
            delay: Mutex::default(),
            listeners: Arc::default(),
        })
    }

    /// Makes every request connect first, which takes `delay`.
    #[cfg_attr(not(feature = "redisson"), expect(dead_code))]
    pub(crate) fn delay_connections(&self, delay: Duration) {
        *self.delay.lock() = delay;
    }

    fn connect(&self, purpose: Purpose) -> Arc<dyn Connection> {
        Arc::new(ScriptedConnection {
            purpose,
            id: self.connection.load(Ordering::SeqCst),
            handler: self.handler.clone(),
            is_slow: self.is_slow.clone(),
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
        })
    }

    /// Gives later requests a new connection.
    pub(crate) fn break_links(&self) {
        self.connection.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a server that is late with one reply reply to others meanwhile.
    pub(crate) fn slow_down(&self) {
        self.is_slow.store(true, Ordering::SeqCst);
    }

    /// Delivers a message to every listener, on the current connection.
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
        _slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let delay = *self.delay.lock();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Ok(self.connect(purpose))
        })
    }

    fn open_connection(&self, purpose: Purpose, _slot: Slot) -> Option<Arc<dyn Connection>> {
        self.delay.lock().is_zero().then(|| self.connect(purpose))
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
    id: u64,
    handler: Arc<Mutex<Box<Handler>>>,
    is_slow: Arc<AtomicBool>,
    facts: Arc<ServerFacts>,
}

impl Connection for ScriptedConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.facts.clone()
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn is_silent_for(&self, _time: Duration) -> bool {
        !self.is_slow.load(Ordering::SeqCst)
    }

    fn retire_if_silent(&self, _time: Duration) {}

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move {
            let sent = Sent {
                purpose: self.purpose,
                connection: self.id,
                batch: &batch,
            };
            let (delay, reply) = (self.handler.lock())(&sent);
            match tokio::time::timeout(timeout, tokio::time::sleep(delay)).await {
                Ok(()) => reply,
                Err(_) => Err(RequestError::Unknown("no reply in time".into())),
            }
        })
    }
}

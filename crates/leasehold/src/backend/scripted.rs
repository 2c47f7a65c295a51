//! A backend whose answers are written by the test, for paused clocks.
//!
//! A handler sees every pipeline with the lane and link it is sent on, and says what comes back and
//! after how long. Subscriptions are confirmed at once; the test speaks to listeners itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::subscriptions::{Subscription, Unsubscribe};
use super::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Facts, Failure, Lane, Link, Listener, News,
    Reply, Slot,
};
use crate::clock::Moment;
use crate::options::Acknowledgement;

/// One pipeline as the handler sees it.
pub(crate) struct Sent<'a> {
    pub(crate) lane: Lane,
    /// Which link carried it; a new number after [`Scripted::break_links`].
    pub(crate) link: u64,
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
pub(crate) type Answer = (Duration, Result<Vec<Reply>, Failure>);

/// By channel.
type Listeners = Arc<Mutex<HashMap<Channel, Arc<dyn Listener>>>>;

type Handler = dyn FnMut(&Sent<'_>) -> Answer + Send;

/// See the module's documentation.
pub(crate) struct Scripted {
    handler: Arc<Mutex<Box<Handler>>>,
    link: AtomicU64,
    listeners: Listeners,
}

impl Scripted {
    pub(crate) fn new(handler: impl FnMut(&Sent<'_>) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            handler: Arc::new(Mutex::new(Box::new(handler))),
            link: AtomicU64::new(1),
            listeners: Arc::default(),
        })
    }

    /// Later requests get other links.
    pub(crate) fn break_links(&self) {
        self.link.fetch_add(1, Ordering::SeqCst);
    }

    /// Tells every listener that a message came in, on the links of now.
    pub(crate) fn publish(&self, text: &[u8]) {
        let link = self.link.load(Ordering::SeqCst);
        for listener in self.listeners.lock().values() {
            listener.heard(News::Message { text, link });
        }
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.listeners.lock().len()
    }
}

impl Backend for Scripted {
    fn link(&self, lane: Lane, slot: Slot) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        let link = self.open_link(lane, slot);
        Box::pin(async move { link.ok_or(Failure::Closed) })
    }

    fn open_link(&self, lane: Lane, _slot: Slot) -> Option<Arc<dyn Link>> {
        Some(Arc::new(ScriptedLink {
            lane,
            number: self.link.load(Ordering::SeqCst),
            handler: self.handler.clone(),
            facts: Arc::new(Facts {
                server_time: 0,
                read_at: Moment::now(),
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
        lane: Lane,
        slot: Slot,
        _wanted: Acknowledgement,
        _patience: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        self.link(lane, slot)
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, Failure>> {
        self.listeners.lock().insert(channel.clone(), listener);
        let listeners = self.listeners.clone();
        Box::pin(async move { Ok(Subscription::new(Box::new(Ends { channel, listeners }))) })
    }
}

struct Ends {
    channel: Channel,
    listeners: Listeners,
}

impl Unsubscribe for Ends {}

impl Drop for Ends {
    fn drop(&mut self) {
        self.listeners.lock().remove(&self.channel);
    }
}

struct ScriptedLink {
    lane: Lane,
    number: u64,
    handler: Arc<Mutex<Box<Handler>>>,
    facts: Arc<Facts>,
}

impl Link for ScriptedLink {
    fn facts(&self) -> Arc<Facts> {
        self.facts.clone()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn ask(&self, batch: Batch, patience: Duration) -> BoxFuture<'_, Result<Vec<Reply>, Failure>> {
        Box::pin(async move {
            let sent = Sent {
                lane: self.lane,
                link: self.number,
                batch: &batch,
            };
            let (after, answer) = (self.handler.lock())(&sent);
            match tokio::time::timeout(patience, tokio::time::sleep(after)).await {
                Ok(()) => answer,
                Err(_) => Err(Failure::Unknown("no answer in time".into())),
            }
        })
    }
}

//! Pushed grants: routes the server's messages to the waiters of this client.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::backend::{Channel, Listener, PubSubEvent, RequestError, Slot, Subscription};
use crate::lease::context::Context;
use crate::owner::Owner;
use crate::protocol::{Grant, GrantDelivery};
use crate::sync::Mutex;
use crate::time::BootInstant;

/// Routes grants to the waiters of this client.
#[derive(Default)]
pub(in crate::lease) struct GrantRouter {
    /// The listener of every subscription. It does not own the subscriptions,
    /// or both would keep each other alive.
    waiters: Arc<GrantListener>,
    channels: Mutex<HashMap<Vec<u8>, Arc<tokio::sync::Mutex<GrantChannel>>>>,
}

#[derive(Default)]
struct GrantListener {
    senders: Mutex<HashMap<Owner, mpsc::UnboundedSender<QueueEvent>>>,
}

/// The subscription to one channel of grants.
#[derive(Default)]
struct GrantChannel {
    subscription: Option<Subscription>,
    /// When to subscribe again, after an attempt that took too long.
    not_before: Option<BootInstant>,
}

/// An event for a queued waiter.
#[derive(Debug)]
pub(super) enum QueueEvent {
    /// The server granted the lock. The number is the id of the connection
    /// that delivered the grant.
    Granted(Grant, u64),
    /// The waiter was woken, or may have missed a message: it must ask the
    /// server.
    Ask,
}

impl Listener for GrantListener {
    /// A grant names the owner, which is secret, so no other client can forge
    /// one.
    fn on_event(&self, event: PubSubEvent<'_>) {
        let senders = self.senders.lock();
        match event {
            PubSubEvent::Message { text, connection } => {
                if let Some(grant) = Grant::read(text)
                    && let Some(sender) = senders.get(&grant.owner)
                {
                    let _ = sender.send(QueueEvent::Granted(grant, connection));
                }
            }
            PubSubEvent::Resubscribed | PubSubEvent::Ended => {
                for sender in senders.values() {
                    let _ = sender.send(QueueEvent::Ask);
                }
            }
        }
    }
}

/// Wakes one waiter for every message on its own channel.
struct NotifyListener(mpsc::UnboundedSender<QueueEvent>);

impl Listener for NotifyListener {
    fn on_event(&self, _event: PubSubEvent<'_>) {
        // Every event is a wake-up; its content does not matter.
        let _ = self.0.send(QueueEvent::Ask);
    }
}

/// Receives the events of one owner until it is dropped.
pub(super) struct GrantReceiver<'a> {
    waiters: &'a GrantListener,
    owner: Owner,
    sender: mpsc::UnboundedSender<QueueEvent>,
    events: mpsc::UnboundedReceiver<QueueEvent>,
    /// The subscription to the waiter's own channel, for kinds that have one.
    own_channel: Option<Subscription>,
}

impl GrantRouter {
    /// Registers a waiter.
    pub(super) fn register(&self, owner: Owner) -> GrantReceiver<'_> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut senders = self.waiters.senders.lock();
        senders.insert(owner.clone(), sender.clone());
        GrantReceiver {
            waiters: &self.waiters,
            owner,
            sender,
            events,
            own_channel: None,
        }
    }

    /// Subscribes a waiter to its grants or wake-ups. If that takes too long,
    /// the waiter continues with heartbeats alone for now.
    pub(super) async fn subscribe(
        &self,
        context: &Context,
        delivery: GrantDelivery<'_>,
        slot: Slot,
        receiver: &mut GrantReceiver<'_>,
    ) -> Result<(), RequestError> {
        match delivery {
            GrantDelivery::Push(channel) => self.subscribe_shared(context, channel, slot).await,
            GrantDelivery::Wakeup(channel) => {
                let listener = Arc::new(NotifyListener(receiver.sender.clone()));
                let subscribing = context.backend.subscribe(channel, slot, listener);
                let limit = context.limits.request;
                if let Ok(subscribed) = tokio::time::timeout(limit, subscribing).await {
                    receiver.own_channel = Some(subscribed?);
                }
                Ok(())
            }
        }
    }

    async fn subscribe_shared(
        &self,
        context: &Context,
        channel: &[u8],
        slot: Slot,
    ) -> Result<(), RequestError> {
        let shared = {
            let mut channels = self.channels.lock();
            channels.entry(channel.to_vec()).or_default().clone()
        };
        // The limit covers the mutex too: another task may hold it and not be
        // polled.
        let subscribing = async {
            let mut shared = shared.lock().await;
            let is_early = shared.not_before.is_some_and(|at| BootInstant::now() < at);
            if is_early || shared.subscription.is_some() {
                return Ok(());
            }
            shared.not_before = Some(BootInstant::now() + context.limits.request * 2);
            let channel = Channel::Sharded(channel.to_vec());
            let listener = self.waiters.clone();
            let subscribed = context.backend.subscribe(channel, slot, listener).await;
            shared.not_before = None;
            shared.subscription = Some(subscribed?);
            Ok(())
        };
        let subscribed = tokio::time::timeout(context.limits.request, subscribing).await;
        subscribed.unwrap_or(Ok(()))
    }
}

impl GrantReceiver<'_> {
    pub(super) async fn next(&mut self) -> QueueEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => unreachable!("BUG: the receiver owns a sender"),
        }
    }
}

impl Drop for GrantReceiver<'_> {
    fn drop(&mut self) {
        self.waiters.senders.lock().remove(&self.owner);
    }
}

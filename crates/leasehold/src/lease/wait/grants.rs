//! Pushed grants: routes the server's messages to this client's waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::wakeup::unless_refused;
use crate::backend::{Channel, Listener, PubSubEvent, RequestError, Slot, Subscription};
use crate::lease::context::Context;
use crate::lease::keeper::{AcquireId, Keeper};
use crate::owner::Owner;
use crate::protocol::{Grant, GrantDelivery};
use crate::sync::Mutex;
use crate::time::BootInstant;

/// Routes grants to this client's waiters.
#[derive(Default)]
pub(crate) struct GrantRouter {
    /// The listener of every subscription. It does not own the subscriptions,
    /// or both would keep each other alive.
    waiters: Arc<GrantListener>,
    channels: Mutex<HashMap<Vec<u8>, Arc<GrantChannel>>>,
}

#[derive(Default)]
struct GrantListener {
    waiters: Mutex<HashMap<Owner, QueuedWaiter>>,
}

/// A waiter in a server's queue, as the connection's task sees it.
struct QueuedWaiter {
    sender: mpsc::UnboundedSender<QueueEvent>,
    /// Present if the waiter is a caller's task, which may not be polled.
    watch: Option<ClaimWatch>,
}

/// The time in which a caller must claim a grant.
struct ClaimWatch {
    keeper: Keeper,
    acquire: AcquireId,
    patience: Duration,
}

/// One channel of grants.
#[derive(Default)]
struct GrantChannel {
    is_subscribed: AtomicBool,
    /// Locked by the waiter that subscribes.
    subscription: tokio::sync::Mutex<Option<Subscription>>,
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
        let waiters = self.waiters.lock();
        match event {
            PubSubEvent::Message { text, connection } => {
                if let Some(grant) = Grant::read(text)
                    && let Some(waiter) = waiters.get(&grant.owner)
                {
                    // First: a caller that claims the grant at once ends the
                    // watch.
                    if let Some(watch) = &waiter.watch {
                        watch.begin();
                    }
                    // Cannot fail: a waiter leaves the map before the receiver
                    // is dropped.
                    let _ = waiter.sender.send(QueueEvent::Granted(grant, connection));
                }
            }
            PubSubEvent::Resubscribed | PubSubEvent::Ended => {
                for waiter in waiters.values() {
                    let _ = waiter.sender.send(QueueEvent::Ask);
                }
            }
        }
    }
}

impl ClaimWatch {
    fn begin(&self) {
        let due = BootInstant::now() + self.patience;
        self.keeper.set_due(self.acquire, due);
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
        let waiter = QueuedWaiter {
            sender: sender.clone(),
            watch: None,
        };
        self.waiters.waiters.lock().insert(owner.clone(), waiter);
        GrantReceiver {
            waiters: &self.waiters,
            owner,
            sender,
            events,
            own_channel: None,
        }
    }

    /// Subscribes a waiter to grants or wake-ups. If that takes too long, or
    /// the server has no such channels, the waiter continues with heartbeats
    /// alone.
    pub(super) async fn subscribe(
        &self,
        context: &Arc<Context>,
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
                    receiver.own_channel = unless_refused(subscribed)?;
                }
                Ok(())
            }
        }
    }

    async fn subscribe_shared(
        &self,
        context: &Arc<Context>,
        channel: &[u8],
        slot: Slot,
    ) -> Result<(), RequestError> {
        let shared = {
            let mut channels = self.channels.lock();
            channels.entry(channel.to_vec()).or_default().clone()
        };
        if shared.is_subscribed.load(Ordering::Acquire) {
            return Ok(());
        }
        // On the keeper's runtime: a caller that subscribes for others may not
        // be polled.
        let listener = self.waiters.clone();
        let subscribing = shared.subscribe(context.clone(), channel.to_vec(), slot, listener);
        let subscribing = context.keeper.runtime.spawn(subscribing);
        match tokio::time::timeout(context.limits.request, subscribing).await {
            Ok(subscribed) => {
                let subscribed = subscribed.unwrap_or(Err(RequestError::ShutDown));
                unless_refused(subscribed).map(drop)
            }
            Err(_) => Ok(()),
        }
    }
}

impl GrantChannel {
    /// Subscribes, unless another waiter does.
    async fn subscribe(
        self: Arc<Self>,
        context: Arc<Context>,
        channel: Vec<u8>,
        slot: Slot,
        listener: Arc<GrantListener>,
    ) -> Result<(), RequestError> {
        let mut subscription = self.subscription.lock().await;
        if subscription.is_some() {
            return Ok(());
        }
        let channel = Channel::Sharded(channel);
        let subscribed = context.backend.subscribe(channel, slot, listener).await;
        *subscription = Some(subscribed?);
        self.is_subscribed.store(true, Ordering::Release);
        Ok(())
    }
}

impl GrantReceiver<'_> {
    /// Lets the keeper cancel `acquire` when it is granted and not claimed
    /// within `patience`.
    pub(super) fn watch(&self, keeper: &Keeper, acquire: AcquireId, patience: Duration) {
        let watch = ClaimWatch {
            keeper: keeper.clone(),
            acquire,
            patience,
        };
        if let Some(waiter) = self.waiters.waiters.lock().get_mut(&self.owner) {
            waiter.watch = Some(watch);
        }
    }

    pub(super) async fn next(&mut self) -> QueueEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => unreachable!("BUG: the receiver owns a sender"),
        }
    }
}

impl Drop for GrantReceiver<'_> {
    fn drop(&mut self) {
        let removed = self.waiters.waiters.lock().remove(&self.owner);
        drop(removed);
    }
}

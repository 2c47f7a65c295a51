//! The subscriptions of a cluster, each at the node that owns the channel's
//! slot.
//!
//! A server ends a subscription when the slot moves away. After that, or when
//! the slot map names another owner, the client subscribes at the new owner and
//! notifies the listener. Failures are retried until they succeed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::nodes::{Node, Nodes};
use crate::backend::{
    Backoff, Channel, Listener, PubSubEvent, RequestError, Slot, Subscription, Unsubscribe,
};
use crate::time::BootInstant;

/// How long a node may take to confirm before the retry.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// How many nodes are tried in a row: a slot has one owner, which may just have
/// changed.
const MAX_ATTEMPTS: usize = 4;

/// All subscriptions of a client.
pub(super) struct ClusterSubscriptions {
    nodes: Arc<Nodes>,
    registrations: Mutex<HashMap<u64, Arc<ChannelRegistration>>>,
    last_id: AtomicU64,
}

/// One subscription and where it is placed.
struct ChannelRegistration {
    channel: Channel,
    slot: Slot,
    listener: Arc<CountingListener>,
    placement: tokio::sync::Mutex<Option<Placement>>,
    retry: Mutex<RetryTimer>,
}

/// A subscription that a node has confirmed.
struct Placement {
    node: Arc<Node>,
    _subscription: Subscription,
    /// `CountingListener::ended` before subscribing. The subscription has ended
    /// if the count is higher now.
    ended: u64,
}

/// When a failed subscription is retried.
struct RetryTimer {
    backoff: Backoff,
    due: BootInstant,
}

/// Forwards events, and counts how often a server ended the subscription.
struct CountingListener {
    listener: Arc<dyn Listener>,
    ended: AtomicU64,
    topology_changed: Arc<Notify>,
}

impl Listener for CountingListener {
    fn on_event(&self, event: PubSubEvent<'_>) {
        match event {
            PubSubEvent::Ended => {
                self.ended.fetch_add(1, Ordering::AcqRel);
                self.topology_changed.notify_one();
            }
            event => self.listener.on_event(event),
        }
    }
}

impl ClusterSubscriptions {
    pub(super) fn new(nodes: Arc<Nodes>) -> Self {
        Self {
            nodes,
            registrations: Mutex::default(),
            last_id: AtomicU64::new(0),
        }
    }

    pub(super) fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    pub(super) async fn subscribe(
        self: &Arc<Self>,
        channel: Channel,
        slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, RequestError> {
        let listener = CountingListener {
            listener,
            ended: AtomicU64::new(0),
            topology_changed: self.nodes.topology_changed.clone(),
        };
        let registration = Arc::new(ChannelRegistration {
            channel,
            slot,
            listener: Arc::new(listener),
            placement: tokio::sync::Mutex::default(),
            retry: Mutex::new(RetryTimer {
                backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10)),
                due: BootInstant::now(),
            }),
        });
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let on_drop = UnsubscribeOnDrop {
            id,
            subscriptions: self.clone(),
        };
        // Registered first, so that `on_drop` removes it again after a failure.
        self.registrations.lock().insert(id, registration.clone());
        registration.place(&self.nodes).await?;
        Ok(Subscription::new(Box::new(on_drop)))
    }

    /// Renews every misplaced subscription that is due, or all of them. They
    /// run concurrently, so a node that is down delays only its own.
    pub(super) async fn resubscribe(&self, all: bool) {
        let mut renewals = JoinSet::new();
        for registration in self.misplaced() {
            if !all && registration.retry.lock().due > BootInstant::now() {
                continue;
            }
            let nodes = self.nodes.clone();
            renewals.spawn(async move { registration.resubscribe(&nodes).await });
        }
        while renewals.join_next().await.is_some() {}
    }

    /// Returns when the next misplaced subscription is due.
    pub(super) fn next_retry(&self) -> BootInstant {
        let misplaced = self.misplaced().into_iter();
        let due = misplaced.map(|registration| registration.retry.lock().due);
        due.min().unwrap_or(BootInstant::NEVER)
    }

    fn misplaced(&self) -> Vec<Arc<ChannelRegistration>> {
        let registrations: Vec<_> = self.registrations.lock().values().cloned().collect();
        let misplaced = registrations.into_iter();
        let misplaced = misplaced.filter(|registration| !registration.is_placed(&self.nodes));
        misplaced.collect()
    }
}

impl ChannelRegistration {
    /// Returns whether the subscription is at the slot's owner. One that is
    /// being placed counts as placed, as does a new one: its caller places it.
    fn is_placed(&self, nodes: &Nodes) -> bool {
        let Ok(placement) = self.placement.try_lock() else {
            return true;
        };
        let Some(placement) = &*placement else {
            return true;
        };
        let owner = nodes.owner(self.slot);
        let is_at_owner = owner.is_none_or(|owner| Arc::ptr_eq(&placement.node, &owner));
        is_at_owner && placement.ended == self.listener.ended.load(Ordering::Acquire)
    }

    /// Places the subscription again. Notifies the listener, or schedules a
    /// retry.
    async fn resubscribe(&self, nodes: &Arc<Nodes>) {
        let placed = tokio::time::timeout(CONFIRM_TIMEOUT, self.place(nodes)).await;
        match placed {
            Ok(Ok(())) => {
                self.retry.lock().backoff.reset();
                self.listener.listener.on_event(PubSubEvent::Resubscribed);
            }
            _ => {
                let mut retry = self.retry.lock();
                retry.due = BootInstant::now() + retry.backoff.pause();
            }
        }
    }

    /// Subscribes at the owner of the slot, following redirections. After a
    /// failure or cancellation, the previous placement still counts as ended.
    async fn place(&self, nodes: &Arc<Nodes>) -> Result<(), RequestError> {
        let mut placement = self.placement.lock().await;
        let mut last_error = RequestError::ShutDown;
        for _ in 0..MAX_ATTEMPTS {
            // Read before subscribing: an end in between must count.
            let ended = self.listener.ended.load(Ordering::Acquire);
            let node = nodes.find_owner(self.slot).await?;
            let subscribing = node
                .connections
                .subscribe(self.channel.clone(), self.listener.clone());
            last_error = match subscribing.await {
                Ok(_subscription) => {
                    *placement = Some(Placement {
                        node,
                        _subscription,
                        ended,
                    });
                    return Ok(());
                }
                Err(error) => error,
            };
            if !nodes.record_redirect(&last_error, &node) {
                break;
            }
        }
        Err(last_error)
    }
}

/// Removes a registration when dropped.
struct UnsubscribeOnDrop {
    id: u64,
    subscriptions: Arc<ClusterSubscriptions>,
}

impl Unsubscribe for UnsubscribeOnDrop {}

impl Drop for UnsubscribeOnDrop {
    fn drop(&mut self) {
        self.subscriptions.registrations.lock().remove(&self.id);
    }
}

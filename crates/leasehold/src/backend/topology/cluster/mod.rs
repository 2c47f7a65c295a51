//! A cluster: each request goes to the node that owns the slot.
//!
//! Every node has connections of its own, so a node that is down delays no
//! other's requests. Every redirection updates the slot map. The client also
//! reads the map again whenever something indicates a change: a redirection, a
//! failed request, a node that is cut off from the cluster, a connection that
//! was made or lost, or a subscription that a node ended. It prefers nodes that
//! are not cut off (`view`). Every node reports when it loses slots
//! (`slot_watch`), so without such an event it is enough to read the map now
//! and then.

mod nodes;
mod pubsub;
mod redirect;
mod slot_map;
mod slot_watch;
mod view;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::url::cluster_urls;
use crate::backend::connection::{ConnectOptions, Endpoint, RedisConnection};
use crate::backend::{
    Backend, Backoff, BoxFuture, Channel, Connection, Listener, Purpose, RequestError, Slot,
    Subscription,
};
use crate::error::BoxError;
use crate::options::ReplicaAck;
use crate::rng;
use crate::time::BootInstant;
use nodes::Nodes;
use pubsub::ClusterSubscriptions;
use redirect::{RedirectRecorder, RedirectingConnection};

/// How often the slot map is read while a node does not report lost slots.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often the slot map is read otherwise: a random interval from this to
/// three times as long.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
    subscriptions: Arc<ClusterSubscriptions>,
}

/// The nodes named in a cluster URL.
pub(crate) struct Seeds(Vec<Endpoint>);

impl Seeds {
    /// Parses `redis+cluster://user:password@host:port,host:port`. Returns
    /// `None` for another scheme.
    pub(crate) fn new(url: &str, options: &ConnectOptions) -> Option<Result<Self, BoxError>> {
        let (scheme, rest) = url.split_once("+cluster://")?;
        let seed = |url: &String| Endpoint::new(url, options);
        let seeds = cluster_urls(scheme, rest).and_then(|urls| urls.iter().map(seed).collect());
        Some(seeds.map(Self))
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Seeds, keeper: &Handle) -> Self {
        let nodes = Arc::new(Nodes::new(seeds.0, keeper.clone()));
        let subscriptions = Arc::new(ClusterSubscriptions::new(nodes.clone()));
        let topology_changed = nodes.topology_changed.clone();
        keeper.spawn(maintain(Arc::downgrade(&subscriptions), topology_changed));
        Self {
            nodes,
            subscriptions,
        }
    }

    fn redirecting(
        &self,
        purpose: Purpose,
        connection: Arc<RedisConnection>,
    ) -> Arc<dyn Connection> {
        let nodes = self.nodes.clone();
        Arc::new(RedirectingConnection::new(nodes, purpose, connection))
    }
}

/// Keeps the slot map and the subscriptions up to date until the backend is
/// dropped.
async fn maintain(subscriptions: Weak<ClusterSubscriptions>, topology_changed: Arc<Notify>) {
    // Bounds the load on the nodes, however often the topology changes.
    let mut backoff = Backoff::new(Duration::from_millis(50), POLL_INTERVAL);
    let mut next_poll = BootInstant::now() + POLL_INTERVAL;
    let mut next_retry = BootInstant::NEVER;
    loop {
        tokio::time::sleep(backoff.pause()).await;
        let is_notified = tokio::select! {
            () = topology_changed.notified() => true,
            () = tokio::time::sleep_until(next_poll.min(next_retry).as_timer()) => false,
        };
        // A weak reference while we sleep: this task must not keep the backend
        // alive.
        let Some(subscriptions) = subscriptions.upgrade() else {
            return;
        };
        if is_notified || BootInstant::now() >= next_poll {
            let nodes = subscriptions.nodes();
            match nodes.refresh_slot_map().await {
                // A map that has just changed is likely to change again soon.
                Ok(true) => backoff.reset(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot read the slot map from any node"),
            }
            let is_idle = nodes.watch_slots().await;
            // Not after a notification: while the cluster is down, every
            // request notifies us, though all nodes are connected.
            if is_idle && !is_notified {
                backoff.reset();
            }
            next_poll = BootInstant::now() + poll_interval(is_idle);
        }
        subscriptions.resubscribe(is_notified).await;
        next_retry = subscriptions.next_retry();
    }
}

/// Returns the time until the slot map is read again. It is random, so that
/// clients started together do not query together.
fn poll_interval(is_idle: bool) -> Duration {
    match is_idle {
        true => IDLE_POLL_INTERVAL + IDLE_POLL_INTERVAL.mul_f64(2.0 * rng::jitter()),
        false => POLL_INTERVAL.mul_f64(0.75 + 0.5 * rng::jitter()),
    }
}

impl Backend for Cluster {
    fn open_connection(&self, purpose: Purpose, slot: Slot) -> Option<Arc<dyn Connection>> {
        let owner = self.nodes.owner(slot)?;
        let connection = owner.connections.open_connection(purpose)?;
        Some(self.redirecting(purpose, connection))
    }

    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let owner = self.nodes.find_owner(slot).await?;
            let connection = owner.connections.connection(purpose).await;
            // After an error, the slot may belong to another node.
            let connection =
                connection.inspect_err(|_| self.nodes.topology_changed.notify_one())?;
            Ok(self.redirecting(purpose, connection))
        })
    }

    /// Returns a connection that records redirections but does not follow them:
    /// the write to acknowledge was executed at the same node just before.
    fn acknowledged(
        &self,
        purpose: Purpose,
        slot: Slot,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let owner = self.nodes.find_owner(slot).await?;
            let connection = owner
                .connections
                .acknowledged(purpose, wanted, timeout)
                .await;
            let connection =
                connection.inspect_err(|_| self.nodes.topology_changed.notify_one())?;
            let recorder = RedirectRecorder::new(self.nodes.clone(), owner, connection);
            Ok(Arc::new(recorder) as Arc<dyn Connection>)
        })
    }

    fn node(&self, slot: Slot) -> usize {
        self.nodes.owner(slot).map_or(usize::MAX, |node| node.id)
    }

    fn shards(&self) -> BoxFuture<'_, Result<Vec<Slot>, RequestError>> {
        Box::pin(async {
            self.nodes.find_owner(0).await?;
            Ok(self.nodes.first_slots())
        })
    }

    fn subscribe(
        &self,
        channel: Channel,
        slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        Box::pin(self.subscriptions.subscribe(channel, slot, listener))
    }
}

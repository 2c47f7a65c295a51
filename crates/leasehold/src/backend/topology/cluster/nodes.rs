//! The nodes of a cluster, and which of them owns which slot.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

use super::slot_map::{NodeAddress, Redirect, is_cluster_down};
use super::slot_watch::SlotWatch;
use super::view::{ClusterView, NoCurrentView};
use crate::backend::connection::{Endpoint, NodeConnections, RedisConnection, Role};
use crate::backend::staggered::first_success;
use crate::backend::topology::{Master, run_on};
use crate::backend::{Purpose, Reply, RequestError, SLOTS, Slot};
use crate::rng;

/// How long a node may take to return the slot map, without a connect timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// All known nodes of a cluster.
pub(super) struct Nodes {
    /// The nodes named in the URL. Queried while no other node is connected.
    seeds: Vec<Endpoint>,
    keeper: Handle,
    ownership: RwLock<Ownership>,
    /// Held while reading the slot map, so that concurrent callers read it
    /// once.
    refreshing: Mutex<()>,
    /// Notified when the slot map may be outdated.
    pub(super) topology_changed: Arc<Notify>,
}

#[derive(Default)]
struct Ownership {
    nodes: HashMap<NodeAddress, Arc<Node>>,
    /// Indexed by slot; empty until the slot map was read.
    owners: Vec<Option<Arc<Node>>>,
    /// The epoch of the node that reported them.
    epoch: u64,
}

/// One node and the connections to it.
pub(super) struct Node {
    /// Unique in this process.
    pub(super) id: usize,
    pub(super) host: String,
    pub(super) connections: NodeConnections,
    slot_watch: SlotWatch,
}

impl Nodes {
    pub(super) fn new(seeds: Vec<Endpoint>, keeper: Handle) -> Self {
        Self {
            seeds,
            keeper,
            ownership: RwLock::default(),
            refreshing: Mutex::new(()),
            topology_changed: Arc::new(Notify::new()),
        }
    }

    /// Returns the owner of `slot`, if known.
    pub(super) fn owner(&self, slot: Slot) -> Option<Arc<Node>> {
        self.ownership.read().owners.get(usize::from(slot))?.clone()
    }

    /// Returns the owner of `slot`, reading the slot map if it is unknown.
    pub(super) async fn find_owner(
        self: &Arc<Self>,
        slot: Slot,
    ) -> Result<Arc<Node>, RequestError> {
        if let Some(node) = self.owner(slot) {
            return Ok(node);
        }
        // On the keeper's runtime: all callers wait for `refreshing`, and the
        // caller's runtime may not be driven any more while we hold it.
        let nodes = self.clone();
        run_on(&self.keeper, async move { nodes.read_owner(slot).await }).await
    }

    async fn read_owner(&self, slot: Slot) -> Result<Arc<Node>, RequestError> {
        let _guard = self.refreshing.lock().await;
        if self.owner(slot).is_none() {
            self.read_slot_map().await?;
        }
        let unowned = || RequestError::Unreachable(format!("no node owns slot {slot}").into());
        self.owner(slot).ok_or_else(unowned)
    }

    /// Returns whether `error` is a `MOVED` redirection by `node`, and records
    /// it. Reads the slot map again if the node is cut off from the cluster.
    pub(super) fn record_redirect(&self, error: &RequestError, node: &Node) -> bool {
        let RequestError::Refused(error) = error else {
            return false;
        };
        let reply = Reply::Refused(error.clone());
        if is_cluster_down(&reply) {
            self.topology_changed.notify_one();
        }
        let redirect = Redirect::from_reply(&reply);
        let Some(Redirect::Moved(slot, address)) = redirect else {
            return false;
        };
        match address.resolve(&node.host) {
            Some(address) => self.record_owner(slot, &address),
            None => self.topology_changed.notify_one(),
        }
        true
    }

    /// Records that the node at `address` owns `slot`.
    pub(super) fn record_owner(&self, slot: Slot, address: &NodeAddress) {
        let Some(node) = self.node_at(address) else {
            return;
        };
        // The redirection is newer than our map, which is read again soon.
        if let Some(owner) = self.ownership.write().owners.get_mut(usize::from(slot)) {
            *owner = Some(node);
        }
        self.topology_changed.notify_one();
    }

    /// Returns the node at `address`. Starts connecting if the node is new.
    pub(super) fn node_at(&self, address: &NodeAddress) -> Option<Arc<Node>> {
        static ID: AtomicUsize = AtomicUsize::new(0);
        let mut ownership = self.ownership.write();
        if let Some(node) = ownership.nodes.get(address) {
            return Some(node.clone());
        }
        // All nodes share credentials and TLS settings.
        let endpoint = self.seeds.first()?.at(&address.host, address.port);
        let master = Master::Fixed(Arc::new(endpoint), Role::Member);
        let topology_changed = self.topology_changed.clone();
        let on_state_change = Arc::new(move |_| topology_changed.notify_one());
        let node = Arc::new(Node {
            id: ID.fetch_add(1, Ordering::Relaxed),
            host: address.host.clone(),
            connections: NodeConnections::start(master, &self.keeper, on_state_change),
            slot_watch: SlotWatch::default(),
        });
        ownership.nodes.insert(address.clone(), node.clone());
        Some(node)
    }

    /// Reads the slot map. Returns whether it changed.
    pub(super) async fn refresh_slot_map(&self) -> Result<bool, RequestError> {
        let _guard = self.refreshing.lock().await;
        self.read_slot_map().await
    }

    /// Reads the slot map from a connected node, or else from a node of the
    /// URL. Returns whether it changed.
    ///
    /// A view that is not current is used only if no node has a better one.
    async fn read_slot_map(&self) -> Result<bool, RequestError> {
        let (known, masters) = {
            let ownership = self.ownership.read();
            (ownership.epoch, ownership.nodes.len())
        };
        let connected = self.connected_nodes();
        let query = |node| ClusterView::read(&self.keeper, node, known, self.timeout());
        let queries = connected.into_iter().map(query).collect();
        let mut stale = match first_success(queries, self.timeout()).await {
            Ok(view) => return Ok(self.install(view)),
            Err(stale) => stale,
        };
        let replied = stale.iter();
        let replied = replied.filter(|view| matches!(view, NoCurrentView::Stale(_)));
        // If most masters agree that the cluster is down, the seeds know no
        // more. We don't connect to them again and again then.
        if 2 * replied.count() <= masters {
            let query = |seed| self.query_seed(seed, known);
            let queries = self.seeds.iter().map(query).collect();
            match first_success(queries, self.timeout()).await {
                Ok(view) => return Ok(self.install(view)),
                Err(more) => stale.extend(more),
            }
        }
        let view = ClusterView::best_of(stale)?;
        // A node that is cut off knows nothing that we don't, unless we have
        // no map at all.
        let is_better = view.is_up || masters == 0;
        Ok(is_better && self.install(view))
    }

    /// Returns the keeper's connections to the nodes that have one, starting
    /// with a random node: which one is outdated is not known.
    fn connected_nodes(&self) -> Vec<Arc<RedisConnection>> {
        let ownership = self.ownership.read();
        let nodes = ownership.nodes.values();
        let connected = nodes.filter_map(|node| node.connections.open_connection(Purpose::Keeper));
        let mut connected: Vec<_> = connected.collect();
        rng::rotate(&mut connected);
        connected
    }

    /// Reads the view of a node of the URL, on a connection of its own.
    async fn query_seed(&self, seed: &Endpoint, known: u64) -> Result<ClusterView, NoCurrentView> {
        let name = "leasehold-layout";
        let connecting =
            RedisConnection::connect(seed, name, Role::Member, &self.keeper, |_, _| ());
        let connection = connecting.await.map_err(NoCurrentView::Failed)?;
        ClusterView::read(&self.keeper, connection, known, self.timeout()).await
    }

    /// Returns how long a node may take to return the slot map.
    fn timeout(&self) -> Duration {
        let seed = self.seeds.first();
        seed.map_or(DEFAULT_TIMEOUT, Endpoint::connect_timeout)
    }

    /// Replaces the slot map. Returns whether it changed.
    ///
    /// Closes the connections to nodes without slots. A master that is demoted
    /// and promoted again must not pass for a permanent master.
    fn install(&self, view: ClusterView) -> bool {
        let mut owners = vec![None; SLOTS];
        let mut masters = HashMap::new();
        for (address, ranges) in view.slot_map {
            let Some(node) = self.node_at(&address) else {
                continue;
            };
            for slot in ranges.into_iter().flatten() {
                if let Some(owner) = owners.get_mut(usize::from(slot)) {
                    *owner = Some(node.clone());
                }
            }
            masters.insert(address, node);
        }
        let mut ownership = self.ownership.write();
        let before = std::mem::replace(&mut ownership.nodes, masters);
        let id = |owner: &Option<Arc<Node>>| owner.as_ref().map(|node| node.id);
        let is_changed = !ownership.owners.iter().map(id).eq(owners.iter().map(id));
        ownership.owners = owners;
        ownership.epoch = view.epoch.unwrap_or(ownership.epoch);
        let is_gone = |address: &NodeAddress| !ownership.nodes.contains_key(address);
        for (_, node) in before.iter().filter(|(address, _)| is_gone(address)) {
            node.connections
                .open_connections()
                .iter()
                .for_each(|connection| connection.close());
        }
        is_changed
    }

    /// Returns the first slot of each node that owns any.
    pub(super) fn first_slots(&self) -> Vec<Slot> {
        self.masters().into_iter().map(|(slot, _)| slot).collect()
    }

    /// Returns every node that owns slots, and its first one.
    fn masters(&self) -> Vec<(Slot, Arc<Node>)> {
        let mut seen = HashSet::new();
        let ownership = self.ownership.read();
        let owners = (0..).zip(&ownership.owners);
        let owners = owners.filter_map(|(slot, owner)| Some((slot, owner.clone()?)));
        owners.filter(|(_, owner)| seen.insert(owner.id)).collect()
    }

    /// Watches the slots of every node that owns any. Returns whether all nodes
    /// are watched.
    pub(super) async fn watch_slots(self: &Arc<Self>) -> bool {
        let mut starting = JoinSet::new();
        for (_, node) in self.masters() {
            let nodes = self.clone();
            starting.spawn(async move { nodes.watch_slots_of(&node).await });
        }
        let mut are_all_watched = true;
        while let Some(is_watched) = starting.join_next().await {
            are_all_watched &= is_watched.unwrap_or(false);
        }
        are_all_watched
    }

    async fn watch_slots_of(&self, node: &Arc<Node>) -> bool {
        // A new connection notifies `topology_changed`, which starts the watch.
        if node.connections.open_connection(Purpose::Keeper).is_none() {
            return false;
        }
        let is_owned = |slot| {
            let owner = self.owner(slot);
            owner.is_some_and(|owner| Arc::ptr_eq(&owner, node))
        };
        if node.slot_watch.is_active(is_owned) {
            return true;
        }
        let watch = &node.slot_watch;
        let starting = watch.start(&node.connections, &self.topology_changed, is_owned);
        match starting.await {
            Ok(is_active) => is_active,
            Err(error) => {
                self.record_redirect(&error, node);
                tracing::debug!(%error, "cannot watch the slots of a node");
                false
            }
        }
    }
}

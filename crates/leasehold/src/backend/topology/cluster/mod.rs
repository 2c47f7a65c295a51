//! A cluster: each slot at the node that has it now.
//!
//! Every node has lanes of its own, so that a node that is down delays nobody else's requests. Who has which
//! slot is learnt from every redirection, and asked at once when something is amiss: a redirection, a request that failed,
//! a connection that was made or broke, a subscription that a node has ended. Every node is made to tell when its
//! slots go (`sentries`), so that where nothing happens it is enough to ask now and then.

mod pubsub;
mod redirect;
mod slot_map;
mod slot_watch;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};

use super::master::Master;
use super::url::cluster_urls;
use crate::backend::connection::{Endpoint, NodeConnections, RedisConnection, Role, Tls};
use crate::backend::{
    Backend, Backoff, BoxFuture, Channel, Connection, Listener, Purpose, Reply, RequestError, Slot,
    Subscription,
};
use crate::error::BoxError;
use crate::options::ReplicaAck;
use crate::rng;
use crate::time::BootInstant;
use pubsub::ClusterSubscriptions;
use redirect::{RedirectRecorder, RedirectingConnection};
use slot_map::{self as slots, Address, Redirect, SlotMap};
use slot_watch::{self as sentries, SlotWatch};

const SLOTS: usize = 16_384;

/// How often the nodes are asked who has which slot while one of them cannot be heard.
const WATCH: Duration = Duration::from_secs(1);

/// The same while all of them can: from this to three times as long, at random.
const CALM: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
}

/// What is known of the cluster.
pub(crate) struct Nodes {
    /// Nodes named in the URL: asked while no other is known.
    seeds: Vec<Endpoint>,
    keeper: Handle,
    map: RwLock<Map>,
    /// Held while asking for the layout, so that many who need it ask once.
    asking: Mutex<()>,
    pub(crate) homes: ClusterSubscriptions,
    /// Says that something has moved.
    pub(crate) topology_changed: Arc<Notify>,
}

#[derive(Default)]
struct Map {
    nodes: HashMap<Address, Arc<Node>>,
    /// By slot; empty until the first answer.
    owners: Vec<Option<Arc<Node>>>,
}

/// One node, with connections of its own.
pub(crate) struct Node {
    /// Tells it from all others of this process.
    number: usize,
    pub(crate) host: String,
    pub(crate) lanes: NodeConnections,
    pub(crate) sentry: SlotWatch,
}

/// Nodes by which a cluster is found.
pub(crate) struct Seeds(Vec<Endpoint>);

impl Seeds {
    /// Understands `redis+cluster://user:password@host:port,host:port`; `None` when `url` is of another
    /// scheme.
    pub(crate) fn new(
        url: &str,
        tls: &Tls,
        connect_timeout: Duration,
    ) -> Option<Result<Self, BoxError>> {
        let (scheme, rest) = url.split_once("+cluster://")?;
        let seed = |url: &String| Endpoint::new(url, tls, connect_timeout);
        let seeds = cluster_urls(scheme, rest).and_then(|urls| urls.iter().map(seed).collect());
        Some(seeds.map(Self))
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Seeds, keeper: &Handle) -> Self {
        let topology_changed = Arc::new(Notify::new());
        let nodes = Arc::new(Nodes {
            seeds: seeds.0,
            keeper: keeper.clone(),
            map: RwLock::default(),
            asking: Mutex::new(()),
            homes: ClusterSubscriptions::default(),
            topology_changed: topology_changed.clone(),
        });
        keeper.spawn(watch(Arc::downgrade(&nodes), topology_changed));
        Self { nodes }
    }
}

/// Keeps the map and the subscriptions up to date until nobody is left.
async fn watch(nodes: Weak<Nodes>, topology_changed: Arc<Notify>) {
    // However much is amiss, the nodes are not asked without a pause.
    let mut pauses = Backoff::new(Duration::from_millis(50), WATCH);
    let (mut next, mut due) = (BootInstant::now() + WATCH, BootInstant::NEVER);
    loop {
        tokio::time::sleep(pauses.pause()).await;
        let is_stirred = tokio::select! {
            () = topology_changed.notified() => true,
            () = tokio::time::sleep_until(next.min(due).as_timer()) => false,
        };
        let Some(nodes) = nodes.upgrade() else {
            return;
        };
        if is_stirred || BootInstant::now() >= next {
            match nodes.ask_layout().await {
                Ok(true) => pauses.reset(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "no node says who has which slot"),
            }
            let is_calm = sentries::post(&nodes).await;
            if is_calm {
                pauses.reset();
            }
            next = BootInstant::now() + interval(is_calm);
        }
        ClusterSubscriptions::settle(&nodes, is_stirred).await;
        due = nodes.homes.due(&nodes);
    }
}

/// How long until the nodes are asked again. At random, so that clients that were started together do not ask together.
fn interval(is_calm: bool) -> Duration {
    match is_calm {
        true => CALM + CALM.mul_f64(2.0 * rng::next_f64()),
        false => WATCH.mul_f64(0.75 + 0.5 * rng::next_f64()),
    }
}

impl Nodes {
    /// The node that has `slot`, as far as known.
    pub(crate) fn owner(&self, slot: Slot) -> Option<Arc<Node>> {
        self.map.read().owners.get(usize::from(slot))?.clone()
    }

    /// The node that has `slot`, asked for where none is known.
    pub(crate) async fn find_owner(&self, slot: Slot) -> Result<Arc<Node>, RequestError> {
        if let Some(node) = self.owner(slot) {
            return Ok(node);
        }
        let _one = self.asking.lock().await;
        if self.owner(slot).is_none() {
            self.learn_layout().await?;
        }
        let missing = || RequestError::Unreachable(format!("no node has the slot {slot}").into());
        self.owner(slot).ok_or_else(missing)
    }

    /// Whether `node` has refused something because the slot is another's now, which is noted.
    pub(crate) fn is_moved(&self, error: &RequestError, node: &Node) -> bool {
        let RequestError::Refused(error) = error else {
            return false;
        };
        let redirect = Redirect::of(&Reply::Refused(error.clone()));
        let Some(Redirect::Moved(slot, address)) = redirect else {
            return false;
        };
        match address.given_by(&node.host) {
            Some(address) => self.moved(slot, &address),
            None => self.topology_changed.notify_one(),
        }
        true
    }

    /// Notes that `slot` is at `address` now.
    pub(crate) fn moved(&self, slot: Slot, address: &Address) {
        let Some(node) = self.node_at(address) else {
            return;
        };
        if let Some(owner) = self.map.write().owners.get_mut(usize::from(slot)) {
            *owner = Some(node);
        }
        self.topology_changed.notify_one();
    }

    /// The node at `address`, whose connections are begun where it is new.
    pub(crate) fn node_at(&self, address: &Address) -> Option<Arc<Node>> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let mut map = self.map.write();
        if let Some(node) = map.nodes.get(address) {
            return Some(node.clone());
        }
        let endpoint = self.seeds.first()?.at(&address.host, address.port);
        let origin = Master::Fixed(Arc::new(endpoint), Role::Member);
        let topology_changed = self.topology_changed.clone();
        let on_state_change = Arc::new(move |_| topology_changed.notify_one());
        let node = Arc::new(Node {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            host: address.host.clone(),
            lanes: NodeConnections::start(origin, &self.keeper, on_state_change),
            sentry: SlotWatch::default(),
        });
        map.nodes.insert(address.clone(), node.clone());
        Some(node)
    }

    /// Learns who has which slot; whether that is event.
    async fn ask_layout(&self) -> Result<bool, RequestError> {
        let _one = self.asking.lock().await;
        self.learn_layout().await
    }

    /// Every node that has slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let mut seen = HashSet::new();
        let map = self.map.read();
        let owners = map.owners.iter().flatten();
        let masters = owners.filter(|owner| seen.insert(owner.number));
        masters.cloned().collect()
    }

    /// Asks the nodes that are connected, then those of the URL, until one replies; whether that is event.
    async fn learn_layout(&self) -> Result<bool, RequestError> {
        let known: Vec<_> = self.map.read().nodes.values().cloned().collect();
        for node in known {
            if let Some(connection) = node.lanes.open_connection(Purpose::Keeper)
                && let Ok(layout) = self.layout_by(&connection).await
            {
                return Ok(self.install(layout));
            }
        }
        let mut error = RequestError::Unreachable("no node is named".into());
        for seed in &self.seeds {
            let asked = async {
                let connecting =
                    RedisConnection::connect(seed, "leasehold-layout", Role::Member, |_, _| ());
                let connection = connecting.await?;
                self.layout_by(&connection).await
            };
            match asked.await {
                Ok(layout) => return Ok(self.install(layout)),
                Err(reason) => error = reason,
            }
        }
        Err(error)
    }

    async fn layout_by(&self, connection: &RedisConnection) -> Result<SlotMap, RequestError> {
        let timeout = self.seeds.first().map_or(WATCH, Endpoint::connect_timeout);
        let slots = connection.query(&["CLUSTER", "SLOTS"], timeout).await?;
        let layout = slots::layout(&slots, connection.host())?;
        match layout.is_empty() {
            true => Err(RequestError::Unreachable("no node has any slot yet".into())),
            false => Ok(layout),
        }
    }

    /// Takes `layout` for the truth, and returns whether it is event. Who has no slot any more is left, lest a master that
    /// was demoted and made master again be taken for one that never was away.
    fn install(&self, layout: SlotMap) -> bool {
        let mut owners = vec![None; SLOTS];
        let mut masters = HashMap::new();
        for (address, ranges) in layout {
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
        let mut map = self.map.write();
        let before = std::mem::replace(&mut map.nodes, masters);
        let number = |owner: &Option<Arc<Node>>| owner.as_ref().map(|node| node.number);
        let is_news = !map.owners.iter().map(number).eq(owners.iter().map(number));
        map.owners = owners;
        let gone = |address: &Address| !map.nodes.contains_key(address);
        for (_, node) in before.iter().filter(|(address, _)| gone(address)) {
            node.lanes
                .open_connections()
                .for_each(|connection| connection.close());
        }
        is_news
    }

    /// The first slot of each node that has any.
    fn first_slots(&self) -> Vec<Slot> {
        let map = self.map.read();
        let mut seen = HashSet::new();
        let owners = (0..).zip(&map.owners);
        let first = owners.filter_map(|(slot, owner)| {
            let owner = owner.as_ref()?;
            seen.insert(owner.number).then_some(slot)
        });
        first.collect()
    }
}

impl Backend for Cluster {
    fn open_connection(&self, purpose: Purpose, slot: Slot) -> Option<Arc<dyn Connection>> {
        let connection = self.nodes.owner(slot)?.lanes.open_connection(purpose)?;
        Some(Arc::new(RedirectingConnection::new(
            self.nodes.clone(),
            purpose,
            connection,
        )))
    }

    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let owner = self.nodes.find_owner(slot).await?;
            match owner.lanes.connection(purpose).await {
                Ok(connection) => Ok(Arc::new(RedirectingConnection::new(
                    self.nodes.clone(),
                    purpose,
                    connection,
                )) as Arc<dyn Connection>),
                Err(error) => {
                    // It may be another's by now.
                    self.nodes.topology_changed.notify_one();
                    Err(error)
                }
            }
        })
    }

    /// Does not follow redirections, but notes them: what is to be acknowledged was taken a moment ago at the same node.
    fn acknowledged(
        &self,
        purpose: Purpose,
        slot: Slot,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let owner = self.nodes.find_owner(slot).await?;
            let connection = owner.lanes.acknowledged(purpose, wanted, timeout).await;
            let connection =
                connection.inspect_err(|_| self.nodes.topology_changed.notify_one())?;
            Ok(
                Arc::new(RedirectRecorder::new(self.nodes.clone(), owner, connection))
                    as Arc<dyn Connection>,
            )
        })
    }

    fn node(&self, slot: Slot) -> usize {
        self.nodes
            .owner(slot)
            .map_or(usize::MAX, |node| node.number)
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
        Box::pin(ClusterSubscriptions::subscribe(
            &self.nodes,
            channel,
            slot,
            listener,
        ))
    }
}

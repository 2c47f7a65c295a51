//! A cluster of masters with one replica each.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::bus::{self, Bus};
use crate::flavor::Flavor;
use crate::resp::Reply;
use leasehold_testkit::{Port, Server};

use crate::server_ext::ServerExt;
use crate::setup::Setup;

/// The node timeout: long enough that a stalled machine does not cause a
/// failover.
const NODE_TIMEOUT_MS: u32 = 20_000;

/// The node timeout while the cluster starts and while a failover is expected.
const SHORT_TIMEOUT_MS: u32 = 2500;

const SLOTS: usize = 16_384;

/// A cluster. The slots are divided evenly among its masters at the start.
#[derive(Debug)]
pub struct Cluster {
    /// Masters first, then their replicas in the same order.
    servers: Vec<Server>,
    masters: usize,
    /// The ports of the cluster bus.
    buses: Vec<Port>,
    /// The proxies in front of them.
    bus_proxies: Option<Bus>,
}

impl Cluster {
    /// Starts `masters` masters, each with one replica if `replicated`.
    ///
    /// # Panics
    ///
    /// If the cluster is not up within a minute.
    #[must_use]
    pub fn start(setup: &Setup, flavor: &Flavor, masters: usize, replicated: bool) -> Self {
        Self::start_nodes(setup, flavor, masters, replicated, false)
    }

    /// Starts `masters` masters with one replica each, which a test can
    /// [`isolate`](Self::isolate).
    ///
    /// # Panics
    ///
    /// If the cluster is not up within a minute.
    #[must_use]
    pub fn start_isolatable(setup: &Setup, flavor: &Flavor, masters: usize) -> Self {
        Self::start_nodes(setup, flavor, masters, true, true)
    }

    fn start_nodes(
        setup: &Setup,
        flavor: &Flavor,
        masters: usize,
        replicated: bool,
        isolatable: bool,
    ) -> Self {
        let timeout = SHORT_TIMEOUT_MS.to_string();
        let count = if replicated { masters * 2 } else { masters };
        let buses: Vec<_> = (0..count)
            .map(|_| Port::reserve().expect("a free port"))
            .collect();
        let ports = buses.iter().map(Port::number).collect();
        let bus_proxies = isolatable.then(|| Bus::start(ports));
        let servers: Vec<_> = buses
            .iter()
            .enumerate()
            .map(|(node, bus)| {
                let setup = match &bus_proxies {
                    Some(proxies) => behind_proxy(setup, proxies, node),
                    None => setup.clone(),
                };
                let setup = setup.option("cluster-enabled", "yes");
                let setup = setup.option("cluster-node-timeout", &timeout);
                let setup = setup.option("cluster-port", &bus.number().to_string());
                let setup = setup.option("cluster-replica-validity-factor", "0");
                // Otherwise the death of one master stops all of them until it
                // is replaced.
                let setup = setup.option("cluster-require-full-coverage", "no");
                // A replica is listed for clients after the first message from
                // its master, such as a ping.
                let setup = setup.option("repl-ping-replica-period", "1");
                setup.option("repl-diskless-sync-delay", "0").start(flavor)
            })
            .collect();
        let cluster = Self {
            servers,
            masters,
            buses,
            bus_proxies,
        };
        cluster.meet();
        for (index, server) in cluster.servers.iter().take(masters).enumerate() {
            let (from, to) = (SLOTS * index / masters, SLOTS * (index + 1) / masters - 1);
            let (from, to) = (from.to_string(), to.to_string());
            server.tell(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]);
        }
        for (index, replica) in cluster.servers.iter().enumerate().skip(masters) {
            let master = cluster.id(index - masters);
            cluster.wait_until("each replica knows its master", || {
                replica.ask(&["CLUSTER", "REPLICATE", &master]) == Reply::Text("OK".to_owned())
            });
        }
        cluster.wait_until("every node is up", || {
            cluster.servers.iter().all(|one| cluster.is_up(one))
        });
        cluster.set_node_timeout(NODE_TIMEOUT_MS, None);
        cluster
    }

    fn meet(&self) {
        for server in &self.servers[1..] {
            let bus = match &self.bus_proxies {
                Some(proxies) => proxies.port(0),
                None => self.buses[0].number(),
            };
            let bus = bus.to_string();
            let port = self.servers[0].port().to_string();
            server.tell(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        self.wait_until("all nodes know each other", || {
            self.servers.iter().all(|server| {
                let nodes = server.ask(&["CLUSTER", "NODES"]);
                let known = nodes
                    .text()
                    .lines()
                    .filter(|line| !line.contains("handshake"));
                known.count() == self.servers.len()
            })
        });
    }

    fn is_up(&self, server: &Server) -> bool {
        let info = server.ask(&["CLUSTER", "INFO"]);
        let role = server.ask(&["ROLE"]);
        let linked = role.list()[0].text() == "master"
            || role
                .list()
                .get(3)
                .is_some_and(|state| state.text() == "connected");
        let slots = server.ask(&["CLUSTER", "SLOTS"]);
        let replicas = self.servers.len() / self.masters - 1;
        let complete = slots
            .list()
            .iter()
            .all(|range| range.list().len() == 3 + replicas);
        linked && complete && info.text().contains("cluster_state:ok")
    }

    /// Returns `host:port` of every node, separated by commas.
    #[must_use]
    pub fn hosts(&self) -> String {
        let hosts = self.servers.iter();
        let hosts: Vec<_> = hosts
            .map(|one| format!("127.0.0.1:{}", one.port()))
            .collect();
        hosts.join(",")
    }

    /// Returns the node at `index`.
    #[must_use]
    pub fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// Returns all nodes.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Kills the node at `index`.
    pub fn kill(&mut self, index: usize) {
        self.servers[index].kill();
    }

    /// Restarts the node at `index`.
    pub fn restart(&mut self, index: usize) {
        self.servers[index].restart().expect("the server starts");
    }

    /// Cuts the node at `index` off from its peers, but neither from clients
    /// nor from replication. The peers replace it after the short node timeout.
    ///
    /// # Panics
    ///
    /// If the cluster was not started for it.
    pub fn isolate(&self, index: usize) {
        self.set_node_timeout(SHORT_TIMEOUT_MS, None);
        let proxies = self.bus_proxies.as_ref();
        proxies.expect("an isolatable cluster").isolate(index);
    }

    /// Returns the index of the node that owns `slot`, according to node
    /// `observer`. Waits until it knows one.
    ///
    /// # Panics
    ///
    /// If it knows none within a minute.
    #[must_use]
    pub fn owner(&self, slot: u16, observer: usize) -> usize {
        self.wait_until("the slot has an owner", || {
            self.known_owner(slot, observer).is_some()
        });
        let owner = self.known_owner(slot, observer);
        owner.expect("the owner belongs to this cluster")
    }

    /// Returns the owner of `slot`, if node `observer` knows one.
    fn known_owner(&self, slot: u16, observer: usize) -> Option<usize> {
        let ranges = self.servers[observer].ask(&["CLUSTER", "SLOTS"]);
        let range = ranges.list().iter().find(|range| {
            let range = range.list();
            range[0].int() <= i64::from(slot) && i64::from(slot) <= range[1].int()
        });
        let port = range?.list()[2].list()[1].int();
        let mut servers = self.servers.iter();
        servers.position(|server| i64::from(server.port()) == port)
    }

    /// Returns a key's slot.
    ///
    /// # Panics
    ///
    /// If no node is running.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let server = self.servers.iter().find(|server| server.is_running());
        let slot = server
            .expect("a node")
            .ask(&["CLUSTER", "KEYSLOT", key])
            .int();
        u16::try_from(slot).expect("a slot")
    }

    /// Moves `slot` from one master to another, key by key, as the servers' own
    /// tools do.
    ///
    /// First waits until the masters agree on their configuration epochs. A
    /// node claims a slot with the highest epoch it knows plus one. If it
    /// missed the last move, that epoch is too low, and an old message can undo
    /// the claim: the slot has no owner, as each of two nodes redirects to the
    /// other permanently.
    ///
    /// # Panics
    ///
    /// If a node returns an error.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        let (source, target) = (&self.servers[from], &self.servers[to]);
        let target_id = self.id(to);
        let number = slot.to_string();
        let set_slot = |server: &Server, args: &[&str]| {
            server.tell(&[&["CLUSTER", "SETSLOT", number.as_str()], args].concat());
        };
        loop {
            let keys = source.ask(&["CLUSTER", "GETKEYSINSLOT", &number, "10"]);
            if keys.list().is_empty() {
                break;
            }
            let port = target.port().to_string();
            let keys: Vec<_> = keys.list().iter().map(Reply::text).collect();
            let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
            source.tell(&[&head, keys.as_slice()].concat());
        }
        set_slot(target, &["NODE", &target_id]);
        set_slot(source, &["NODE", &target_id]);
        let masters = self.servers.iter().filter(|server| server.is_master());
        masters.for_each(|server| set_slot(server, &["NODE", &target_id]));
    }

    /// Begins to move `slot` from one master to another. Its keys stay where
    /// they are, and new ones are created at the target.
    ///
    /// # Panics
    ///
    /// If a node returns an error.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.wait_until("the masters agree", || self.masters_agree());
        let set_slot = |at: usize, state: &str, other: usize| {
            let server = &self.servers[at];
            server.tell(&[
                "CLUSTER",
                "SETSLOT",
                &slot.to_string(),
                state,
                &self.id(other),
            ]);
        };
        set_slot(to, "IMPORTING", from);
        set_slot(from, "MIGRATING", to);
    }

    /// Moves `slot`, which has no keys, from one master to another while the
    /// source is paused for `pause`. The source processes the move among the
    /// requests that are pending in its sockets when it resumes.
    ///
    /// # Panics
    ///
    /// If a node returns an error.
    pub fn move_slot_while_paused(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        self.wait_until("the masters agree", || self.masters_agree());
        let (source, target) = (&self.servers[from], &self.servers[to]);
        let (source_id, target_id) = (self.id(from), self.id(to));
        let number = slot.to_string();
        let head = ["CLUSTER", "SETSLOT", number.as_str()];
        let words = |words: [&'static str; 1], id| [&head[..], &words, &[id]].concat();
        target.tell(&words(["IMPORTING"], &source_id));
        source.tell(&words(["MIGRATING"], &target_id));
        let mut control = source.connect();
        control.ask(&["PING"]).expect("the node is up");
        source.pause();
        let moved = control.send(&words(["NODE"], &target_id));
        target.tell(&words(["NODE"], &target_id));
        std::thread::sleep(pause);
        source.resume();
        moved.and_then(|()| control.receive()).expect("a reply");
        let masters = self.servers.iter().filter(|server| server.is_master());
        masters.for_each(|server| server.tell(&words(["NODE"], &target_id)));
    }

    /// Waits until a node other than `former`, which is killed or paused, owns
    /// `slot`, according to node `observer`. The node timeout is short only
    /// during this call.
    ///
    /// # Panics
    ///
    /// If no failover happens within a minute.
    pub fn wait_for_new_owner(&self, former: usize, slot: u16, observer: usize) {
        self.set_node_timeout(SHORT_TIMEOUT_MS, Some(former));
        let owner = || self.known_owner(slot, observer);
        self.wait_until("the slot has a new owner", || {
            owner().is_some_and(|owner| owner != former)
        });
        self.set_node_timeout(NODE_TIMEOUT_MS, Some(former));
    }

    fn set_node_timeout(&self, millis: u32, except: Option<usize>) {
        let setting = ["CONFIG", "SET", "cluster-node-timeout", &millis.to_string()];
        for (index, server) in self.servers.iter().enumerate() {
            if Some(index) != except && server.is_running() {
                server.tell(&setting);
            }
        }
    }

    /// Returns whether all masters see the same configuration epochs, and no
    /// two masters share one.
    fn masters_agree(&self) -> bool {
        let masters = self.servers.iter().filter(|server| server.is_master());
        let mut views = masters.map(|server| epochs(server.ask(&["CLUSTER", "NODES"]).text()));
        let Some(first) = views.next() else {
            return false;
        };
        let distinct: HashSet<_> = first.values().collect();
        distinct.len() == first.len() && views.all(|view| view == first)
    }

    fn id(&self, index: usize) -> String {
        self.servers[index]
            .ask(&["CLUSTER", "MYID"])
            .text()
            .to_owned()
    }

    fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(
                Instant::now() < end,
                "timed out after a minute waiting until {what}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Lets the peers of a node reach its bus through a proxy, which recognises
/// them by their addresses.
fn behind_proxy(setup: &Setup, proxies: &Bus, node: usize) -> Setup {
    let setup = setup.clone();
    let setup = setup.option("cluster-announce-bus-port", &proxies.port(node).to_string());
    let setup = setup.option("bind-source-addr", &bus::source_of(node).to_string());
    // The mode refuses replicas that connect from another loopback address.
    let setup = setup.option("protected-mode", "no");
    // Otherwise the peers take the address from which it connects.
    setup.option("cluster-announce-ip", "127.0.0.1")
}

/// Parses the configuration epoch of each master, by its node ID.
fn epochs(nodes: &str) -> HashMap<String, u64> {
    let epoch = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let (name, flags, epoch) = (words.first()?, words.get(2)?, words.get(6)?);
        let epoch = epoch.parse().ok()?;
        let is_master = flags.contains("master") && !flags.contains("fail");
        is_master.then(|| ((*name).to_owned(), epoch))
    };
    nodes.lines().filter_map(epoch).collect()
}

//! The deployments on which locks are tested.

use std::future::{Future, IntoFuture};
use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Pending, Quorum};
use testkit::sentinel_group::{GROUP, SENTINEL_PASSWORD, SentinelGroup};
use testkit::{Cluster, Flavor, Server, ServerExt, Setup};

use super::{
    AMPLE, LEASE, PASSWORD, SERVERS, channels, connect_at, eventually, key, least_privilege_rule,
    url_at, with_long_timeouts,
};
use crate::support::callers::{Caller, Tasks, Threads};
use crate::support::contract::{KINDS, ShutDown};

/// A deployment that stores locks.
pub(crate) trait Deployment: Sync {
    type Client: ShutDown;
    /// Who uses the clients.
    type Caller: Caller;

    /// Connects a client with the suite's permissions, and leases of this
    /// length.
    fn connect(&self, lease: Duration) -> Pending<'static, Self::Client>;
    /// Returns whether the lock's key exists.
    fn exists(&self, name: &str) -> bool;

    fn with_lease(&self, lease: Duration) -> impl Future<Output = Self::Client> + Send {
        let client = Self::Caller::complete(self.connect(lease));
        async { client.await.expect("the deployment is up") }
    }
    /// Connects a client with the suite's lease and permissions.
    fn client(&self) -> impl Future<Output = Self::Client> + Send {
        self.with_lease(LEASE)
    }
}

/// A deployment that threads use.
pub(crate) struct OnThreads<'a, D>(pub(crate) &'a D);

impl<D: Deployment> Deployment for OnThreads<'_, D> {
    type Client = D::Client;
    type Caller = Threads;

    fn connect(&self, lease: Duration) -> Pending<'static, D::Client> {
        self.0.connect(lease)
    }
    fn exists(&self, name: &str) -> bool {
        self.0.exists(name)
    }
}

impl Deployment for Server {
    type Client = Client;
    type Caller = Tasks;

    fn connect(&self, lease: Duration) -> Pending<'static, Client> {
        connect_at(self.port()).lease(lease).into_future()
    }
    fn exists(&self, name: &str) -> bool {
        self.ask(&["EXISTS", &key(name)]).int() == 1
    }
}

impl Deployment for SentinelGroup {
    type Client = Client;
    type Caller = Tasks;

    fn connect(&self, lease: Duration) -> Pending<'static, Client> {
        let connect = with_long_timeouts(connect_to_group(self, GROUP));
        connect.lease(lease).into_future()
    }
    fn exists(&self, name: &str) -> bool {
        self.server(self.master()).exists(name)
    }
}

impl Deployment for Cluster {
    type Client = Client;
    type Caller = Tasks;

    fn connect(&self, lease: Duration) -> Pending<'static, Client> {
        let connect = with_long_timeouts(Client::connect(&cluster_url(self)));
        connect.lease(lease).into_future()
    }
    fn exists(&self, name: &str) -> bool {
        let owner = self.owner(self.slot(&key(name)), 0);
        self.server(owner).exists(name)
    }
}

/// Five independent servers.
pub(crate) struct FiveServers {
    pub(crate) servers: Vec<Server>,
}

impl FiveServers {
    pub(crate) fn start(flavor: &Flavor) -> Self {
        Self::with(&Setup::default(), flavor)
    }

    pub(crate) fn with(setup: &Setup, flavor: &Flavor) -> Self {
        let rule = rule_with_grants(flavor, &["+info"]);
        let start = |_| setup.clone().user(&rule).start(flavor);
        let five = Self {
            servers: (0..5).map(start).collect(),
        };
        let bootstrapped = five.quorum().bootstrap().wait();
        bootstrapped.expect("all servers are up");
        five
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let servers = self.servers.iter();
        servers.map(|server| url_at(server.port())).collect()
    }

    /// Returns the settings of a client of these servers, not yet connected.
    pub(crate) fn quorum(&self) -> Connect<Quorum> {
        connect_to_quorum(self.urls())
    }

    /// Returns how many of the running servers have the lock's key.
    pub(crate) fn count_with_key(&self, name: &str) -> usize {
        let up = self.servers.iter().filter(|server| server.is_running());
        up.filter(|server| server.exists(name)).count()
    }
}

/// The maximum lease of a quorum, for which a node that lost its data does not
/// vote.
pub(crate) const LONGEST: Duration = LEASE.saturating_mul(4);

/// Returns the settings of a quorum, with the suite's leases, and timeouts that
/// survive a stall of the machine.
pub(crate) fn connect_to_quorum(urls: Vec<String>) -> Connect<Quorum> {
    with_long_timeouts(Quorum::connect(urls)).max_lease(LONGEST)
}

impl Deployment for FiveServers {
    type Client = Quorum;
    type Caller = Tasks;

    fn connect(&self, lease: Duration) -> Pending<'static, Quorum> {
        self.quorum().lease(lease).into_future()
    }
    fn exists(&self, name: &str) -> bool {
        self.count_with_key(name) > 2
    }
}

/// Returns the ACL rule of the guide with the commands that it adds for a
/// topology.
pub(crate) fn rule_with_grants(flavor: &Flavor, grants: &[&str]) -> String {
    for grant in grants {
        assert!(
            SERVERS.contains(&format!("`{grant}`")),
            "the guide names {grant}"
        );
    }
    format!("{} {}", least_privilege_rule(flavor), grants.join(" "))
}

/// Starts a master, two replicas and three sentinels.
pub(crate) fn group(flavor: &Flavor) -> SentinelGroup {
    let setup = Setup::default().user(&rule_with_grants(flavor, &["+wait"]));
    SentinelGroup::start(&setup, flavor, 2)
}

pub(crate) fn connect_to_group(group: &SentinelGroup, name: &str) -> Connect {
    connect_to_sentinels(&group.sentinels(), name)
}

/// Returns the settings of a client that asks these sentinels in this order.
pub(crate) fn connect_to_sentinels(sentinels: &str, name: &str) -> Connect {
    Client::connect(&sentinel_url(sentinels, name)).lease(LEASE)
}

/// Returns a URL that lists these sentinels in this order.
pub(crate) fn sentinel_url(sentinels: &str, name: &str) -> String {
    format!(
        "redis+sentinel://leasehold:{PASSWORD}@{sentinels}/{name}?sentinel_password={SENTINEL_PASSWORD}"
    )
}

/// Starts three masters with a replica each.
pub(crate) fn cluster(flavor: &Flavor) -> Cluster {
    cluster_with(Setup::default(), flavor)
}

pub(crate) fn cluster_with(setup: Setup, flavor: &Flavor) -> Cluster {
    let grants = ["+cluster|slots", "+cluster|info", "+asking", "+wait"];
    let rule = rule_with_grants(flavor, &[&grants[..], &["+cluster|nodes"]].concat());
    Cluster::start(&setup.user(&rule), flavor, 3, true)
}

pub(crate) fn cluster_url(cluster: &Cluster) -> String {
    format!("redis+cluster://leasehold:{PASSWORD}@{}", cluster.hosts())
}

/// Returns the oldest server, and the newest Redis and Valkey.
pub(crate) fn oldest_and_newest() -> Vec<Flavor> {
    let all = Flavor::all();
    let of_product = |name: &'static str| {
        let matches = move |flavor: &&Flavor| flavor.name.starts_with(name);
        all.iter().filter(matches)
    };
    let chosen = [
        of_product("redis").next(),
        of_product("redis").next_back(),
        of_product("valkey").next_back(),
    ];
    let mut chosen: Vec<_> = chosen.into_iter().flatten().cloned().collect();
    chosen.dedup();
    chosen
}

/// Waits until each lock type has a waiter, and clients subscribe to
/// `channel_count` channels.
pub(crate) async fn wait_for_waiters(server: &Server, channel_count: u64) {
    let all = || {
        let queues = server.ask(&["KEYS", "leasehold:queue:*"]).list().len() as u64;
        queues == KINDS - 1 && channels(server).len() as u64 == channel_count
    };
    eventually("each lock has a waiter", all).await;
}

/// Waits until a client finds the new master of `name`, a free lock, after a
/// failover.
pub(crate) async fn wait_for_new_master(client: &Client, name: &str) {
    let start = Instant::now();
    while let Err(error) = client.mutex(name).holder().await {
        assert!(start.elapsed() < AMPLE, "{error:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

//! The deployments on which locks are tested.

use std::future::Future;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Quorum, QuorumBuilder, ShutdownOutcome, blocking};
use testkit::sentinel_group::{GROUP, SENTINEL_PASSWORD, SentinelGroup};
use testkit::{Cluster, Flavor, Server, ServerExt, Setup};

use super::{
    AMPLE, LEASE, PASSWORD, SERVERS, builder_at, channels, eventually, key, least_privilege_rule,
    run, url_at, with_long_timeouts,
};
use crate::support::contract::{KINDS, ShutDown};
use crate::support::threads::on_thread;

/// A deployment that stores locks.
pub(crate) trait Deployment: Sync {
    type Client: ShutDown + 'static;

    /// Connects a client with the permissions of the suite, whose leases have
    /// this length.
    fn with_lease(&self, lease: Duration) -> impl Future<Output = Self::Client> + Send;
    /// Connects a client with the lease and the permissions of the suite.
    fn client(&self) -> impl Future<Output = Self::Client> + Send {
        self.with_lease(LEASE)
    }
    /// Returns whether the lock's key exists.
    fn exists(&self, name: &str) -> bool;
}

/// A deployment with one URL.
pub(crate) trait Addressed: Deployment {
    fn url(&self) -> String;
}

impl Addressed for Server {
    fn url(&self) -> String {
        url_at(self.port())
    }
}

impl Addressed for SentinelGroup {
    fn url(&self) -> String {
        sentinel_url(&self.sentinels(), GROUP)
    }
}

impl Addressed for Cluster {
    fn url(&self) -> String {
        cluster_url(self)
    }
}

/// A deployment whose clients are those of threads.
pub(crate) struct OnThreads<'a, D>(pub(crate) &'a D);

impl<D: Addressed> Deployment for OnThreads<'_, D> {
    type Client = blocking::Client;

    async fn with_lease(&self, lease: Duration) -> blocking::Client {
        let builder = blocking::Client::builder(&self.0.url())
            .lease(lease)
            .request_timeout(LEASE / 2)
            .connect_timeout(LEASE);
        let client = on_thread(|| builder.connect()).await;
        client.expect("the deployment is up")
    }
    fn exists(&self, name: &str) -> bool {
        self.0.exists(name)
    }
}

impl Deployment for OnThreads<'_, FiveServers> {
    type Client = blocking::Quorum;

    async fn with_lease(&self, lease: Duration) -> blocking::Quorum {
        let builder = blocking::Quorum::builder(self.0.urls())
            .lease(lease)
            .max_lease(LONGEST)
            .request_timeout(LEASE / 2)
            .connect_timeout(LEASE);
        let client = on_thread(|| builder.connect()).await;
        client.expect("the servers are up")
    }
    fn exists(&self, name: &str) -> bool {
        self.0.exists(name)
    }
}

impl Deployment for Server {
    type Client = Client;

    async fn with_lease(&self, lease: Duration) -> Client {
        let builder = builder_at(self.port()).lease(lease);
        builder.connect().await.expect("the deployment is up")
    }
    fn exists(&self, name: &str) -> bool {
        self.ask(&["EXISTS", &key(name)]).int() == 1
    }
}

impl Deployment for SentinelGroup {
    type Client = Client;

    async fn with_lease(&self, lease: Duration) -> Client {
        connected(sentinel_builder(self, GROUP), lease).await
    }
    fn exists(&self, name: &str) -> bool {
        self.server(self.master()).exists(name)
    }
}

impl Deployment for Cluster {
    type Client = Client;

    async fn with_lease(&self, lease: Duration) -> Client {
        connected(Client::builder(&cluster_url(self)), lease).await
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
        // On its own thread, since the test may already run on a runtime.
        let bootstrapped = std::thread::scope(|scope| {
            let bootstrapping = scope.spawn(|| run(five.builder().bootstrap()));
            bootstrapping.join().expect("no panic")
        });
        bootstrapped.expect("all servers are up");
        five
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let servers = self.servers.iter();
        servers.map(|server| url_at(server.port())).collect()
    }

    pub(crate) fn builder(&self) -> QuorumBuilder {
        quorum_builder(self.urls())
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

/// Returns a builder with the leases of the suite, and timeouts that survive a
/// stall of the machine.
pub(crate) fn quorum_builder(urls: Vec<String>) -> QuorumBuilder {
    Quorum::builder(urls)
        .lease(LEASE)
        .max_lease(LONGEST)
        .request_timeout(LEASE / 2)
        .connect_timeout(LEASE)
}

impl Deployment for FiveServers {
    type Client = Quorum;

    async fn with_lease(&self, lease: Duration) -> Quorum {
        let builder = self.builder().lease(lease);
        builder.connect().await.expect("the servers are up")
    }
    fn exists(&self, name: &str) -> bool {
        self.count_with_key(name) > 2
    }
}

impl ShutDown for Quorum {
    async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        Quorum::shutdown(self, limit).await
    }
}

async fn connected(builder: ClientBuilder, lease: Duration) -> Client {
    let builder = with_long_timeouts(builder).lease(lease);
    builder.connect().await.expect("the deployment is up")
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

pub(crate) fn sentinel_builder(group: &SentinelGroup, name: &str) -> ClientBuilder {
    builder_for_sentinels(&group.sentinels(), name)
}

/// Returns a builder whose URL lists these sentinels in this order.
pub(crate) fn builder_for_sentinels(sentinels: &str, name: &str) -> ClientBuilder {
    Client::builder(&sentinel_url(sentinels, name)).lease(LEASE)
}

/// Returns a URL that lists these sentinels in this order.
pub(crate) fn sentinel_url(sentinels: &str, name: &str) -> String {
    format!(
        "redis+sentinel://leasehold:{PASSWORD}@{sentinels}/{name}?sentinel_password={SENTINEL_PASSWORD}"
    )
}

/// Starts three masters with a replica each.
pub(crate) fn cluster(flavor: &Flavor) -> Cluster {
    let rule = rule_with_grants(
        flavor,
        &["+cluster|slots", "+asking", "+wait", "+cluster|nodes"],
    );
    Cluster::start(&Setup::default().user(&rule), flavor, 3, true)
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

//! The places where locks can be kept, and the whole contract at each of them.

use std::future::Future;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Quorum, QuorumBuilder, ShutdownOutcome};
use testkit::group::{GROUP, Group, SENTINEL_PASSWORD};
use testkit::{Cluster, Flavor, Server, Setup};

use super::{
    AMPLE, LEASE, PASSWORD, README, builder_at, channels, eventually, key, least_privilege_rule,
    patient, run, url_at,
};
use crate::support::contract::{Closes, KINDS};

/// A place where locks can be kept.
pub(crate) trait Deployment: Sync {
    type Client: Closes + 'static;

    /// A client of its own, with the suite's rights, whose locks have renewed leases of this length.
    fn with_lease(&self, lease: Duration) -> impl Future<Output = Self::Client> + Send;
    /// A client of its own, with the suite's lease and rights.
    fn client(&self) -> impl Future<Output = Self::Client> + Send {
        self.with_lease(LEASE)
    }
    /// Whether the lock's key is there.
    fn exists(&self, name: &str) -> bool;
}

impl Deployment for Server {
    type Client = Client;

    async fn with_lease(&self, lease: Duration) -> Client {
        let builder = builder_at(self.port()).lease(lease);
        builder.connect().await.expect("it is up")
    }
    fn exists(&self, name: &str) -> bool {
        self.ask(&["EXISTS", &key(name)]).int() == 1
    }
}

impl Deployment for Group {
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

/// Five servers that know nothing of each other.
pub(crate) struct Five {
    pub(crate) servers: Vec<Server>,
}

impl Five {
    pub(crate) fn start(flavor: &Flavor) -> Self {
        Self::with(&Setup::default(), flavor)
    }

    pub(crate) fn with(setup: &Setup, flavor: &Flavor) -> Self {
        let rule = rule_with(flavor, &["+info"]);
        let start = |_| setup.clone().user(&rule).start(flavor);
        let five = Self {
            servers: (0..5).map(start).collect(),
        };
        // On a thread of its own, since a test may be on a runtime already.
        let founded = std::thread::scope(|scope| {
            let founding = scope.spawn(|| run(five.builder().bootstrap()));
            founding.join().expect("no panic")
        });
        founded.expect("all are up");
        five
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let servers = self.servers.iter();
        servers.map(|server| url_at(server.port())).collect()
    }

    pub(crate) fn builder(&self) -> QuorumBuilder {
        builder_of(self.urls())
    }

    /// How many of them have the lock's key.
    pub(crate) fn having(&self, name: &str) -> usize {
        let up = self.servers.iter().filter(|server| server.is_running());
        up.filter(|server| server.exists(name)).count()
    }
}

/// The longest lease of a quorum's locks, which is how long a node that forgot has no vote.
pub(crate) const LONGEST: Duration = LEASE.saturating_mul(4);

/// With the suite's leases, and timeouts that are longer than a stall of the machine.
pub(crate) fn builder_of(urls: Vec<String>) -> QuorumBuilder {
    Quorum::builder(urls)
        .lease(LEASE)
        .max_lease(LONGEST)
        .request_timeout(LEASE / 2)
        .connect_timeout(LEASE)
}

impl Deployment for Five {
    type Client = Quorum;

    async fn with_lease(&self, lease: Duration) -> Quorum {
        let builder = self.builder().lease(lease);
        builder.connect().await.expect("they are up")
    }
    fn exists(&self, name: &str) -> bool {
        self.having(name) > 2
    }
}

impl Closes for Quorum {
    async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        Quorum::shutdown(self, limit).await
    }
}

async fn connected(builder: ClientBuilder, lease: Duration) -> Client {
    let builder = patient(builder).lease(lease);
    builder.connect().await.expect("it is up")
}

/// The rule of the README with the command that it adds for a topology.
pub(crate) fn rule_with(flavor: &Flavor, grants: &[&str]) -> String {
    for grant in grants {
        assert!(
            README.contains(&format!("`{grant}`")),
            "the README names {grant}"
        );
    }
    format!("{} {}", least_privilege_rule(flavor), grants.join(" "))
}

/// A master, two replicas and three sentinels.
pub(crate) fn group(flavor: &Flavor) -> Group {
    let setup = Setup::default().user(&rule_with(flavor, &["+wait"]));
    Group::start(&setup, flavor, 2)
}

pub(crate) fn sentinel_builder(group: &Group, name: &str) -> ClientBuilder {
    builder_by(&group.sentinels(), name)
}

/// With these sentinels, which stand in this order in the URL.
pub(crate) fn builder_by(sentinels: &str, name: &str) -> ClientBuilder {
    let url = format!(
        "redis+sentinel://leasehold:{PASSWORD}@{sentinels}/{name}?sentinel_password={SENTINEL_PASSWORD}"
    );
    Client::builder(&url).lease(LEASE)
}

/// Three masters with a replica each.
pub(crate) fn cluster(flavor: &Flavor) -> Cluster {
    let rule = rule_with(
        flavor,
        &["+cluster|slots", "+asking", "+wait", "+cluster|nodes"],
    );
    Cluster::start(&Setup::default().user(&rule), flavor, 3, true)
}

pub(crate) fn cluster_url(cluster: &Cluster) -> String {
    format!("redis+cluster://leasehold:{PASSWORD}@{}", cluster.hosts())
}

/// The oldest server there is, and the newest of each line.
pub(crate) fn old_and_new() -> Vec<Flavor> {
    let all = Flavor::all();
    let line = |name: &'static str| {
        let of_line = move |flavor: &&Flavor| flavor.name.starts_with(name);
        all.iter().filter(of_line)
    };
    let chosen = [
        line("redis").next(),
        line("redis").next_back(),
        line("valkey").next_back(),
    ];
    let mut chosen: Vec<_> = chosen.into_iter().flatten().cloned().collect();
    chosen.dedup();
    chosen
}

/// Waits until there is a waiter for one lock of each kind, and this many channels in which they listen.
pub(crate) async fn until_waited_for(server: &Server, listened_to: u64) {
    let all = || {
        let queues = server.ask(&["KEYS", "leasehold:queue:*"]).list().len() as u64;
        queues == KINDS - 1 && channels(server).len() as u64 == listened_to
    };
    eventually("a waiter for each lock", all).await;
}

/// Waits until a client has found the new master of `name`, which is free, after a failover.
pub(crate) async fn until_found(client: &Client, name: &str) {
    let start = Instant::now();
    while let Err(error) = client.mutex(name).holder().await {
        assert!(start.elapsed() < AMPLE, "{error:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

//! The places where locks can be kept, and the whole contract at each of them.

use std::future::Future;
use std::time::Duration;

use leasehold::{
    Client, ClientBuilder, FairMutex, Mutex, Quorum, QuorumBuilder, Reentrant, RwLock, Semaphore,
    ShutdownOutcome,
};
use testkit::sentinel_group::{GROUP, SENTINEL_PASSWORD, SentinelGroup};
use testkit::{Cluster, Flavor, Server, Setup};

use crate::conformance::{GATE, IN_TIME, Pace, timed, untimed};
use crate::contract::{Closes, Pair};
use crate::support::{
    LEASE, PASSWORD, builder_at, key, least_privilege_rule, patient, run, url_at,
};

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
    let readme = include_str!("../../../../README.md");
    for grant in grants {
        assert!(
            readme.contains(&format!("`{grant}`")),
            "the README names {grant}"
        );
    }
    format!("{} {}", least_privilege_rule(flavor), grants.join(" "))
}

/// A master, two replicas and three sentinels.
pub(crate) fn group(flavor: &Flavor) -> SentinelGroup {
    let setup = Setup::default().user(&rule_with(flavor, &["+wait"]));
    SentinelGroup::start(&setup, flavor, 2)
}

pub(crate) fn sentinel_builder(group: &SentinelGroup, name: &str) -> ClientBuilder {
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

async fn contract<D: Deployment<Client = Client>>(site: &D, pace: Pace) {
    tokio::join!(
        untimed::<D, Mutex>(site, pace),
        untimed::<D, Reentrant>(site, pace),
        untimed::<D, FairMutex>(site, pace),
        untimed::<D, Semaphore>(site, pace),
        untimed::<D, RwLock>(site, pace),
        untimed::<D, Pair>(site, pace),
    );
    tokio::join!(
        timed::<D, Mutex>(site, pace),
        timed::<D, Reentrant>(site, pace),
        timed::<D, FairMutex>(site, pace),
        timed::<D, Semaphore>(site, pace),
        timed::<D, RwLock>(site, pace),
        timed::<D, Pair>(site, pace),
    );
}

async fn quorum_contract(five: &Five, pace: Pace) {
    tokio::join!(
        untimed::<Five, Mutex>(five, pace),
        untimed::<Five, Reentrant>(five, pace),
    );
    tokio::join!(
        timed::<Five, Mutex>(five, pace),
        timed::<Five, Reentrant>(five, pace),
    );
}

#[test]
fn quorum_keeps_the_contract() {
    run(quorum_contract(&Five::start(&Flavor::one()), GATE));
}

#[test]
fn sentinel_keeps_the_contract() {
    run(contract(&group(&Flavor::one()), GATE));
}

#[test]
fn cluster_keeps_the_contract() {
    run(contract(&cluster(&Flavor::one()), GATE));
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn quorum_keeps_the_contract_in_time() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        run(quorum_contract(&Five::start(&flavor), IN_TIME));
    }
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn sentinel_keeps_the_contract_in_time() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        run(contract(&group(&flavor), IN_TIME));
    }
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn cluster_keeps_the_contract_in_time() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        run(contract(&cluster(&flavor), IN_TIME));
    }
}

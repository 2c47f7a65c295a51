//! The places where locks can be kept, and the whole contract at each of them.

use std::future::Future;
use std::time::Duration;

use leasehold::kinds::Reentrant;
use leasehold::{
    Client, ClientBuilder, FairMutex, Mutex, Quorum, QuorumBuilder, RwLock, Semaphore,
};
use testkit::group::{GROUP, Group, SENTINEL_PASSWORD};
use testkit::{Cluster, Flavor, Server, Setup};

use crate::conformance::{timed, untimed};
use crate::contract::{Closes, Pair};
use crate::support::{
    LEASE, PASSWORD, alone, beside_others, key, least_privilege_rule, run, url_at,
};

/// A place where locks can be kept.
pub(crate) trait Deployment: Sync {
    type Client: Closes + 'static;

    /// A client of its own, with the suite's lease and rights.
    fn client(&self) -> impl Future<Output = Self::Client> + Send;
    /// Whether the lock's key is there.
    fn exists(&self, name: &str) -> bool;
}

impl Deployment for Server {
    type Client = Client;

    async fn client(&self) -> Client {
        connected(&url_at(self.port())).await
    }
    fn exists(&self, name: &str) -> bool {
        self.ask(&["EXISTS", &key(name)]).int() == 1
    }
}

impl Deployment for Group {
    type Client = Client;

    async fn client(&self) -> Client {
        sentinel_builder(self, GROUP).connect().await.unwrap()
    }
    fn exists(&self, name: &str) -> bool {
        self.server(self.master()).exists(name)
    }
}

impl Deployment for Cluster {
    type Client = Client;

    async fn client(&self) -> Client {
        connected(&cluster_url(self)).await
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
            let founding = scope.spawn(|| run(five.builder().found()));
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

/// With the suite's leases.
pub(crate) fn builder_of(urls: Vec<String>) -> QuorumBuilder {
    let builder = Quorum::builder(urls).lease(LEASE);
    builder.longest_lease(LONGEST)
}

impl Deployment for Five {
    type Client = Quorum;

    async fn client(&self) -> Quorum {
        self.builder().connect().await.expect("they are up")
    }
    fn exists(&self, name: &str) -> bool {
        self.having(name) > 2
    }
}

impl Closes for Quorum {
    async fn shutdown(&self, limit: Duration) -> bool {
        Quorum::shutdown(self, limit).await
    }
}

async fn connected(url: &str) -> Client {
    let builder = Client::builder(url).lease(LEASE);
    builder.connect().await.expect("it is up")
}

/// The rule of the README with the command that it adds for a topology.
fn rule_with(flavor: &Flavor, grants: &[&str]) -> String {
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
pub(crate) fn group(flavor: &Flavor) -> Group {
    let setup = Setup::default().user(&rule_with(flavor, &["+wait"]));
    Group::start(&setup, flavor, 2)
}

pub(crate) fn sentinel_builder(group: &Group, name: &str) -> ClientBuilder {
    let sentinels = group.sentinels();
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

async fn contract<D: Deployment<Client = Client>>(site: &D) {
    tokio::join!(
        untimed::<D, Mutex>(site),
        untimed::<D, Reentrant>(site),
        untimed::<D, FairMutex>(site),
        untimed::<D, Semaphore>(site),
        untimed::<D, RwLock>(site),
        untimed::<D, Pair>(site),
    );
}

async fn contract_of_time<D: Deployment<Client = Client>>(site: &D) {
    tokio::join!(
        timed::<D, Mutex>(site),
        timed::<D, Reentrant>(site),
        timed::<D, FairMutex>(site),
        timed::<D, Semaphore>(site),
        timed::<D, RwLock>(site),
        timed::<D, Pair>(site),
    );
}

fn everywhere<D: Deployment<Client = Client>>(start: impl Fn(&Flavor) -> D) {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        let site = start(&flavor);
        beside_others(contract(&site));
    }
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        alone(|| run(contract_of_time(&start(&flavor))));
    }
}

#[test]
fn quorum_keeps_the_contract() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        let site = Five::start(&flavor);
        beside_others(async {
            tokio::join!(
                untimed::<Five, Mutex>(&site),
                untimed::<Five, Reentrant>(&site),
            )
        });
    }
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        alone(|| {
            let site = Five::start(&flavor);
            run(async {
                tokio::join!(timed::<Five, Mutex>(&site), timed::<Five, Reentrant>(&site),)
            })
        });
    }
}

#[test]
fn sentinel_keeps_the_contract() {
    everywhere(group);
}

#[test]
fn cluster_keeps_the_contract() {
    everywhere(cluster);
}

//! The servers that the locks are kept on, in each topology, and what can be done to them.

use std::time::Duration;

use testkit::sentinel_group::{GROUP, SENTINEL_PASSWORD, SentinelGroup};
use testkit::{Cluster, Connection, Flavor, Reply, Server, Setup};

use crate::plan::{Fault, Persistence, Plan, Topology};

/// What the workers are on every server, until their rights are revoked.
const USERS: [&str; 2] = [
    "default on nopass ~* &* +@all",
    "worker on nopass ~* &* +@all",
];

/// How long a master writes what no replica will have.
const UNNOTICED: Duration = Duration::from_millis(200);

/// How long a node sleeps while a slot moves: workers give up a connection that is silent for a quarter of a second.
const ASLEEP: Duration = Duration::from_millis(180);

/// The servers of a run.
pub(crate) enum Servers {
    Alone(Vec<Server>),
    Group(SentinelGroup),
    Cluster(Cluster),
}

/// The servers that have one lock.
struct Shard {
    master: usize,
    replicas: Vec<usize>,
    slot: u16,
}

impl Servers {
    pub(super) fn start(plan: &Plan) -> Self {
        let flavor = Flavor::one();
        let setup = setup(plan);
        match plan.topology {
            Topology::One => Self::Alone(vec![setup.start(&flavor)]),
            Topology::Quorum => Self::Alone((0..5).map(|_| setup.clone().start(&flavor)).collect()),
            Topology::Sentinel => Self::Group(SentinelGroup::start(&setup, &flavor, 2)),
            Topology::Cluster => Self::Cluster(Cluster::start(&setup, &flavor, 3, true)),
        }
    }

    /// Where clients of a group or a cluster find it; those of lone servers go through a network of ours.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::Alone(_) => None,
            Self::Group(group) => Some(format!(
                "redis+sentinel://worker:any@{}/{GROUP}?sentinel_password={SENTINEL_PASSWORD}",
                group.sentinels()
            )),
            Self::Cluster(cluster) => {
                Some(format!("redis+cluster://worker:any@{}", cluster.hosts()))
            }
        }
    }

    pub(crate) fn all(&self) -> &[Server] {
        match self {
            Self::Alone(servers) => servers,
            Self::Group(group) => group.servers(),
            Self::Cluster(cluster) => cluster.servers(),
        }
    }

    fn at(&self, nodes: &[usize]) -> impl Iterator<Item = &Server> {
        nodes.iter().map(|node| &self.all()[*node])
    }

    /// Tells a server something; it may be in no state to listen.
    pub(crate) fn tell(&self, node: usize, command: &str) {
        let words: Vec<_> = command.split(' ').collect();
        self.try_ask(node, &words);
    }

    fn try_ask(&self, node: usize, words: &[&str]) -> Option<Reply> {
        let mut connection = Connection::open(self.all()[node].port()).ok()?;
        connection.ask(words).ok()
    }

    pub(crate) fn kill(&mut self, node: usize) {
        match self {
            Self::Alone(servers) => servers[node].kill(),
            Self::Group(group) => group.kill(node),
            Self::Cluster(cluster) => cluster.kill(node),
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        match self {
            Self::Alone(servers) => servers[node].restart(),
            Self::Group(group) => group.restart(node),
            Self::Cluster(cluster) => cluster.restart(node),
        }
    }

    /// Starts a server of a quorum again without its data, if a majority still knows what it granted then.
    pub(crate) fn restart_if_spare(&mut self, node: usize) -> bool {
        let knowing = self.all().iter().filter(|server| votes(server)).count();
        if knowing >= 4 {
            self.restart(node);
        }
        knowing >= 4
    }

    /// Kills the master of a lock when its replicas do not have its last writes, and starts it again as one of them; false where
    /// not all are there.
    pub(crate) fn fail_over(&mut self, lock: &str) -> bool {
        let Some(shard) = self.shard(lock) else {
            return false;
        };
        self.at(&shard.replicas).for_each(Server::pause);
        self.tell(shard.master, "CLIENT KILL TYPE replica");
        std::thread::sleep(UNNOTICED);
        self.kill(shard.master);
        self.at(&shard.replicas).for_each(Server::resume);
        self.until_taken_over(&shard);
        self.restart(shard.master);
        self.follow(shard.master);
        true
    }

    /// Stops the master of a lock until another has taken over; then it goes on where it was, for a while; false where not all are
    /// there.
    pub(crate) fn sleep_through_failover(&self, lock: &str) -> bool {
        let Some(shard) = self.shard(lock) else {
            return false;
        };
        self.all()[shard.master].pause();
        self.until_taken_over(&shard);
        self.all()[shard.master].resume();
        std::thread::sleep(UNNOTICED);
        self.follow(shard.master);
        true
    }

    /// Where a lock is; `None` where nobody would take over, or not all are there.
    fn shard(&self, lock: &str) -> Option<Shard> {
        let whole = self.is_whole();
        match self {
            Self::Group(group) if whole => {
                let master = group.master();
                let replicas = (0..3).filter(|node| *node != master).collect();
                Some(Shard {
                    master,
                    replicas,
                    slot: 0,
                })
            }
            Self::Cluster(cluster) if whole => {
                let slot = cluster.slot(lock);
                let master = cluster.owner(slot, 0);
                Some(Shard {
                    master,
                    replicas: vec![(master + 3) % 6],
                    slot,
                })
            }
            _ => None,
        }
    }

    fn until_taken_over(&self, shard: &Shard) {
        match self {
            Self::Cluster(cluster) => {
                cluster.wait_for_new_owner(shard.master, shard.slot, shard.replicas[0]);
            }
            Self::Group(group) => {
                group.wait_for_new_master(shard.master);
                group.wait_until_agreed();
            }
            Self::Alone(_) => {}
        }
    }

    /// Has a former master follow the new one. The sentinels would do it too, ten seconds later; in a cluster it is told at once.
    fn follow(&self, former: usize) {
        if let Self::Group(group) = self {
            let port = group.server(group.master()).port().to_string();
            let former = group.server(former);
            former.tell(&["REPLICAOF", "127.0.0.1", &port]);
        }
    }

    /// Moves the slot of a lock to another master; false where not all are there.
    pub(crate) fn move_slot(&self, lock: &str, further: usize) -> bool {
        let Self::Cluster(cluster) = self else {
            return false;
        };
        if !self.is_whole() {
            return false;
        }
        let slot = cluster.slot(lock);
        let from = cluster.owner(slot, 0);
        let is_other = |node: &usize| *node != from && self.all()[*node].is_master();
        let masters = (0..6).filter(is_other);
        let masters: Vec<_> = masters.collect();
        // A failover may be under way.
        match masters.is_empty() || !self.all()[from].is_master() {
            true => false,
            false => {
                cluster.move_slot(slot, from, masters[further % masters.len()]);
                true
            }
        }
    }

    /// Moves the slot of a client's channel while its node sleeps; false where not all are there, or a lock has
    /// that slot: its keys would stay behind.
    pub(crate) fn move_slot_while_paused(&self, locks: u32, further: usize) -> bool {
        let Self::Cluster(cluster) = self else {
            return false;
        };
        if !self.is_whole() {
            return false;
        }
        let masters: Vec<_> = (0..6)
            .filter(|node| self.all()[*node].is_master())
            .collect();
        let (from, to) = (masters[further % 3], masters[(further + 1) % 3]);
        let channels = self.all()[from].ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"]);
        let Some(channel) = channels.list().get(further % channels.list().len().max(1)) else {
            return false;
        };
        let slot = cluster.slot(channel.text());
        let is_free = (0..locks).all(|lock| cluster.slot(&format!("lock:torture:{lock}")) != slot);
        if is_free {
            cluster.move_slot_while_paused(slot, from, to, ASLEEP);
        }
        is_free
    }

    /// Whether every server is up, and every replica follows its master.
    fn is_whole(&self) -> bool {
        let mut masters = 0;
        for node in 0..self.all().len() {
            match self.try_ask(node, &["ROLE"]) {
                Some(Reply::List(role)) if role[0].text() == "master" => masters += 1,
                Some(Reply::List(role)) if role[3].text() == "connected" => {}
                _ => return false,
            }
        }
        let wanted = match self {
            Self::Alone(servers) => servers.len(),
            Self::Group(group) if group.agreed_master().is_none() => return false,
            Self::Group(_) => 1,
            Self::Cluster(_) => 3,
        };
        masters == wanted
    }
}

fn setup(plan: &Plan) -> Setup {
    let mut setup = USERS
        .iter()
        .fold(Setup::default(), |setup, user| setup.user(user));
    let fsync = match plan.persistence {
        Persistence::None => None,
        Persistence::Everysec => Some("everysec"),
        Persistence::Always => Some("always"),
    };
    if let Some(fsync) = fsync {
        setup = setup.option("appendonly", "yes");
        setup = setup.option("appendfsync", fsync);
    }
    if plan.faults.contains(&Fault::StepClock) {
        setup = setup.movable_clock();
    }
    setup
}

/// Whether a server of a quorum knows what it granted: it has not been started since it was let in.
fn votes(server: &Server) -> bool {
    let ask = |words: &[&str]| Connection::open(server.port()).and_then(|mut it| it.ask(words));
    let (Ok(Reply::Text(info)), Ok(Reply::List(keys))) = (
        ask(&["INFO", "server"]),
        ask(&["KEYS", "leasehold:standing:*"]),
    ) else {
        return false;
    };
    let Some(standing) = keys.first() else {
        return false;
    };
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    let admitted = ask(&["HGET", standing.text(), "run"]);
    matches!(admitted, Ok(Reply::Text(admitted)) if Some(admitted.as_str()) == run)
}

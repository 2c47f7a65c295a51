//! The servers of each topology, and the faults that apply to them.

use std::time::Duration;

use testkit::sentinel_group::{GROUP, SENTINEL_PASSWORD, SentinelGroup};
use testkit::{Cluster, Connection, Flavor, Reply, Server, ServerExt, Setup};

use crate::plan::{Fault, Persistence, Plan, Topology};

/// The users of every server. Faults revoke rights of `worker`.
const USERS: [&str; 2] = [
    "default on nopass ~* &* +@all",
    "worker on nopass ~* &* +@all",
];

/// How long a master accepts writes that no replica receives.
const DIVERGENCE: Duration = Duration::from_millis(200);

/// How long a node is paused while its slot moves. Workers close a connection
/// without a reply after a quarter of a second.
const SLOT_PAUSE: Duration = Duration::from_millis(180);

/// The servers of a run.
pub(crate) enum Servers {
    Independent(Vec<Server>),
    Group(SentinelGroup),
    Cluster(Cluster),
}

/// The servers that store one lock.
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
            Topology::Standalone => Self::Independent(vec![setup.start(&flavor)]),
            Topology::Quorum => {
                Self::Independent((0..5).map(|_| setup.clone().start(&flavor)).collect())
            }
            Topology::Sentinel => Self::Group(SentinelGroup::start(&setup, &flavor, 2)),
            Topology::Cluster => Self::Cluster(Cluster::start(&setup, &flavor, 3, true)),
        }
    }

    /// Returns the URL of a Sentinel group or a cluster. Clients of independent
    /// servers connect through a faulty network instead.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::Independent(_) => None,
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
            Self::Independent(servers) => servers,
            Self::Group(group) => group.servers(),
            Self::Cluster(cluster) => cluster.servers(),
        }
    }

    fn at(&self, nodes: &[usize]) -> impl Iterator<Item = &Server> {
        nodes.iter().map(|node| &self.all()[*node])
    }

    /// Sends a command to a server, and ignores errors: it may be down.
    pub(crate) fn try_command(&self, node: usize, command: &str) {
        let words: Vec<_> = command.split(' ').collect();
        self.try_ask(node, &words);
    }

    fn try_ask(&self, node: usize, words: &[&str]) -> Option<Reply> {
        let mut connection = Connection::open(self.all()[node].port()).ok()?;
        connection.ask(words).ok()
    }

    pub(crate) fn kill(&mut self, node: usize) {
        match self {
            Self::Independent(servers) => servers[node].kill(),
            Self::Group(group) => group.kill(node),
            Self::Cluster(cluster) => cluster.kill(node),
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        match self {
            Self::Independent(servers) => servers[node].restart().expect("the server starts"),
            Self::Group(group) => group.restart(node),
            Self::Cluster(cluster) => cluster.restart(node),
        }
    }

    /// Restarts a server of a quorum without its data, if a majority still
    /// knows what it granted. Returns whether it did.
    pub(crate) fn restart_if_spare(&mut self, node: usize) -> bool {
        let voters = self.all().iter().filter(|server| is_voter(server)).count();
        if voters >= 4 {
            self.restart(node);
        }
        voters >= 4
    }

    /// Kills a lock's master before its replicas receive its last writes, and
    /// restarts it as a replica. Returns false if a server is missing.
    pub(crate) fn fail_over(&mut self, lock: &str) -> bool {
        let Some(shard) = self.shard(lock) else {
            return false;
        };
        self.at(&shard.replicas).for_each(Server::pause);
        self.try_command(shard.master, "CLIENT KILL TYPE replica");
        std::thread::sleep(DIVERGENCE);
        self.kill(shard.master);
        self.at(&shard.replicas).for_each(Server::resume);
        self.wait_for_failover(&shard);
        self.restart(shard.master);
        self.follow(shard.master);
        true
    }

    /// Pauses the master of a lock until another has taken over. It then
    /// resumes as a master for a while. Returns false if a server is missing.
    pub(crate) fn pause_through_failover(&self, lock: &str) -> bool {
        let Some(shard) = self.shard(lock) else {
            return false;
        };
        self.all()[shard.master].pause();
        self.wait_for_failover(&shard);
        self.all()[shard.master].resume();
        std::thread::sleep(DIVERGENCE);
        self.follow(shard.master);
        true
    }

    /// Returns the servers that store a lock, or `None` if no replica would
    /// take over or a server is missing.
    fn shard(&self, lock: &str) -> Option<Shard> {
        let intact = self.is_intact();
        match self {
            Self::Group(group) if intact => {
                let master = group.master();
                let replicas = (0..3).filter(|node| *node != master).collect();
                Some(Shard {
                    master,
                    replicas,
                    slot: 0,
                })
            }
            Self::Cluster(cluster) if intact => {
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

    fn wait_for_failover(&self, shard: &Shard) {
        match self {
            Self::Cluster(cluster) => {
                cluster.wait_for_new_owner(shard.master, shard.slot, shard.replicas[0]);
            }
            Self::Group(group) => {
                group.wait_for_new_master(shard.master);
                group.wait_until_agreed();
            }
            Self::Independent(_) => {}
        }
    }

    /// Makes a former master a replica of the new one. Sentinels would do so
    /// ten seconds later; a cluster does it at once.
    fn follow(&self, former: usize) {
        if let Self::Group(group) = self {
            let port = group.server(group.master()).port().to_string();
            let former = group.server(former);
            former.tell(&["REPLICAOF", "127.0.0.1", &port]);
        }
    }

    /// Moves the slot of a lock to another master. Returns false if a server is
    /// missing.
    pub(crate) fn move_slot(&self, lock: &str, offset: usize) -> bool {
        let Self::Cluster(cluster) = self else {
            return false;
        };
        if !self.is_intact() {
            return false;
        }
        let slot = cluster.slot(lock);
        let from = cluster.owner(slot, 0);
        let is_other = |node: &usize| *node != from && self.all()[*node].is_master();
        let masters = (0..6).filter(is_other);
        let masters: Vec<_> = masters.collect();
        // A failover may be in progress.
        match masters.is_empty() || !self.all()[from].is_master() {
            true => false,
            false => {
                cluster.move_slot(slot, from, masters[offset % masters.len()]);
                true
            }
        }
    }

    /// Moves the slot of a client's channel while its node is paused. Returns
    /// false if a server is missing, or if the slot contains a lock: its keys
    /// would stay behind.
    pub(crate) fn move_slot_while_paused(&self, locks: u32, offset: usize) -> bool {
        let Self::Cluster(cluster) = self else {
            return false;
        };
        if !self.is_intact() {
            return false;
        }
        let masters: Vec<_> = (0..6)
            .filter(|node| self.all()[*node].is_master())
            .collect();
        let (from, to) = (masters[offset % 3], masters[(offset + 1) % 3]);
        let channels = self.all()[from].ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"]);
        let Some(channel) = channels.list().get(offset % channels.list().len().max(1)) else {
            return false;
        };
        let slot = cluster.slot(channel.text());
        let is_free = (0..locks).all(|lock| cluster.slot(&format!("lock:torture:{lock}")) != slot);
        if is_free {
            cluster.move_slot_while_paused(slot, from, to, SLOT_PAUSE);
        }
        is_free
    }

    /// Returns whether every server is up, and every replica follows its
    /// master.
    fn is_intact(&self) -> bool {
        let mut masters = 0;
        for node in 0..self.all().len() {
            match self.try_ask(node, &["ROLE"]) {
                Some(Reply::List(role)) if role[0].text() == "master" => masters += 1,
                Some(Reply::List(role)) if role[3].text() == "connected" => {}
                _ => return false,
            }
        }
        let expected = match self {
            Self::Independent(servers) => servers.len(),
            Self::Group(group) if group.agreed_master().is_none() => return false,
            Self::Group(_) => 1,
            Self::Cluster(_) => 3,
        };
        masters == expected
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

/// Returns whether a server of a quorum knows what it granted: it has not
/// restarted since it joined.
fn is_voter(server: &Server) -> bool {
    let ask = |words: &[&str]| Connection::open(server.port()).and_then(|mut it| it.ask(words));
    let (Ok(Reply::Text(info)), Ok(Reply::List(keys))) = (
        ask(&["INFO", "server"]),
        ask(&["KEYS", "leasehold:voter:*"]),
    ) else {
        return false;
    };
    let Some(voter) = keys.first() else {
        return false;
    };
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    let voting = ask(&["HGET", voter.text(), "run"]);
    matches!(voting, Ok(Reply::Text(voting)) if Some(voting.as_str()) == run)
}

//! What a run is to be: a file that says where, what, which faults, how long, from which seed.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// A run. Everything but the machine's own timing follows from it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) topology: Topology,
    pub(crate) processes: usize,
    /// In each process.
    pub(crate) tasks: u64,
    pub(crate) locks: u32,
    /// Lock `n` is of the `n`th kind, and so on in turn.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) lease_ms: u64,
    /// How long a lock that nobody holds may stay out of reach for one who waits, faults of the moment aside.
    pub(crate) stuck_ms: u64,
    /// Whether all wait for as long as need be; else most give up soon, so that they do not all wait for the same.
    #[serde(default)]
    pub(crate) patient: bool,
    /// How long a process may acquire nothing, outages aside; not judged where it is 0.
    #[serde(default)]
    pub(crate) served_ms: u64,
    /// How many connections to one server each process may have; not judged where it is 0.
    #[serde(default)]
    pub(crate) connections: u64,
    /// One in so many holds for longer than a lease, perhaps.
    #[serde(default = "now_and_then")]
    pub(crate) long_holds: u64,
    #[serde(default)]
    pub(crate) persistence: Persistence,
    /// Whether every replica must acknowledge.
    #[serde(default)]
    pub(crate) replicas: bool,
    /// One waiter in so many is not polled for twice as long as another may be stuck; none where it is 0.
    #[serde(default)]
    pub(crate) unpolled: u64,
    /// Whether each worker also takes locks on runtimes that block and end.
    #[serde(default)]
    pub(crate) runtimes: bool,
    /// How many children each worker forks again and again after it has used a client; it locks by itself
    /// where it is 0.
    #[serde(default)]
    pub(crate) forks: u64,
    /// Whether each worker also wraps programs by the command `leasehold`.
    #[serde(default)]
    pub(crate) commands: bool,
    /// How many requests in a thousand are cut, swallowed, repeated or late.
    #[serde(default)]
    pub(crate) bad_requests: u64,
    /// How long it takes from one fault to the next, on average.
    pub(crate) pace_ms: u64,
    pub(crate) faults: Vec<Fault>,
    /// Whether two must be seen holding the same: a run that shows that the rig can see it.
    #[serde(default)]
    pub(crate) control: bool,
    /// With fewer acquisitions a second a run proves nothing.
    #[serde(default = "enough")]
    pub(crate) least: u32,
}

fn now_and_then() -> u64 {
    300
}

fn enough() -> u32 {
    500
}

/// Where the locks are kept.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// One server, and a bad network between it and each worker.
    One,
    /// A master, two replicas, three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
    /// Five servers that know nothing of each other, each behind a bad network.
    Quorum,
}

/// What is locked.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Mutex,
    Fair,
    ReadWrite,
    Semaphore,
    RedissonLock,
    RedissonFenced,
    RedissonFair,
    RedissonReadWrite,
}

/// How many may be inside a semaphore.
pub(crate) const PERMITS: u32 = 3;

/// More readers than there can be: a writer needs the room of all of them.
const ROOM: u32 = 1_000_000;

impl Kind {
    /// How much can be held at the same time; a mutex is a semaphore of one.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::ReadWrite | Self::RedissonReadWrite => ROOM,
            Self::Semaphore => PERMITS,
            _ => 1,
        }
    }

    /// Whether whoever holds all of it has a token that nobody else has.
    pub(crate) fn is_fenced(self) -> bool {
        !matches!(
            self,
            Self::RedissonLock | Self::RedissonFair | Self::RedissonReadWrite
        )
    }

    /// Whether those who wait are served in the order in which they came.
    pub(crate) fn is_fair(self) -> bool {
        matches!(self, Self::Fair)
    }
}

/// When what a server was told is on disk.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Persistence {
    #[default]
    None,
    Everysec,
    Always,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    KillWorker,
    PauseWorker,
    PauseServer,
    /// By `kill -9`; with the data that it has on disk.
    RestartServer,
    BlackHole,
    Sever,
    FlushScripts,
    KillClients,
    KillSubscribers,
    PauseClients,
    FullMemory,
    RevokeRights,
    RevokeChannels,
    /// A master dies before its replicas have its last writes.
    FailOver,
    /// A master sleeps until another has taken over, and wakes believing that it is one.
    SleepMaster,
    MoveSlot,
    /// A slot moves while its node sleeps with requests in its sockets.
    MoveSlotAsleep,
    /// A sentinel forgets the group while clients reconnect.
    ForgetSentinel,
    /// A sentinel sleeps while clients reconnect, and lags when it wakes.
    SleepSentinel,
    /// Breaks what exclusion rests on: only tokens are promised then.
    FlushData,
    /// Breaks it too: the server's clock goes ahead.
    StepClock,
    /// Made by nobody here, so no plan names it.
    #[serde(skip)]
    MachineTaken,
}

impl Fault {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::KillWorker => "kill -9 of a worker",
            Self::PauseWorker => "a worker stops",
            Self::PauseServer => "a server stops",
            Self::RestartServer => "kill -9 of a server",
            Self::BlackHole => "nothing gets through",
            Self::Sever => "connections cut",
            Self::FlushScripts => "SCRIPT FLUSH",
            Self::KillClients => "CLIENT KILL",
            Self::KillSubscribers => "CLIENT KILL TYPE pubsub",
            Self::PauseClients => "CLIENT PAUSE",
            Self::FullMemory => "full memory",
            Self::RevokeRights => "rights revoked",
            Self::RevokeChannels => "channels revoked",
            Self::FailOver => "failover, writes lost",
            Self::SleepMaster => "failover while a master sleeps",
            Self::MoveSlot => "slot moved",
            Self::MoveSlotAsleep => "slot moved while its node sleeps",
            Self::ForgetSentinel => "a sentinel forgets the group",
            Self::SleepSentinel => "a sentinel sleeps",
            Self::FlushData => "FLUSHALL",
            Self::StepClock => "clock ahead",
            Self::MachineTaken => "the machine given to others",
        }
    }
}

impl Plan {
    /// What the file says, or `TORTURE_SECONDS` and `TORTURE_SEED` in its place.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let mut plan: Self = toml::from_str(&text).map_err(|error| error.to_string())?;
        let knob = |name: &str| std::env::var(name).ok()?.parse().ok();
        plan.seconds = knob("TORTURE_SECONDS").unwrap_or(plan.seconds);
        plan.seed = knob("TORTURE_SEED").unwrap_or(plan.seed);
        match plan.kinds.is_empty() || plan.locks == 0 || plan.processes == 0 {
            true => Err("a plan needs kinds, locks and processes".to_owned()),
            false => Ok(plan),
        }
    }

    pub(crate) fn kind(&self, lock: u32) -> Kind {
        self.kinds[lock as usize % self.kinds.len()]
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// The longest that a waiter may wait for a free lock.
    pub(crate) fn stuck(&self) -> Duration {
        Duration::from_millis(self.stuck_ms)
    }

    /// Whether exclusion is promised throughout.
    pub(crate) fn promises_exclusion(&self) -> bool {
        self.faults.iter().all(|fault| match fault {
            Fault::FlushData | Fault::StepClock => false,
            Fault::FailOver | Fault::SleepMaster => self.replicas,
            Fault::RestartServer => {
                self.topology == Topology::Quorum || self.persistence != Persistence::None
            }
            _ => true,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan for locks of one kind, for those who check.
    pub(crate) fn plan_of(kind: Kind) -> Plan {
        Plan {
            name: "an example".to_owned(),
            seed: 1,
            seconds: 1,
            topology: Topology::One,
            processes: 1,
            tasks: 1,
            locks: 1,
            kinds: vec![kind],
            lease_ms: 1000,
            stuck_ms: 2000,
            patient: false,
            served_ms: 0,
            connections: 0,
            long_holds: 1,
            persistence: Persistence::None,
            replicas: false,
            unpolled: 0,
            runtimes: false,
            forks: 0,
            commands: false,
            bad_requests: 0,
            pace_ms: 100,
            faults: Vec::new(),
            control: false,
            least: 1,
        }
    }

    #[test]
    fn every_plan_can_be_read() {
        let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
        let mut count = 0;
        for plan in std::fs::read_dir(plans).unwrap() {
            let path = plan.unwrap().path();
            let plan = Plan::read(&path);
            assert!(plan.is_ok(), "{}: {plan:?}", path.display());
            count += 1;
        }
        assert!(count > 0);
    }
}

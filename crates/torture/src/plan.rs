//! The plan of a run: topology, workload, faults, duration and seed.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// A run. It determines everything but the timing of the machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) topology: Topology,
    pub(crate) processes: usize,
    /// Tasks in each process.
    pub(crate) tasks: u64,
    pub(crate) locks: u32,
    /// The kinds of the locks, assigned round-robin.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) lease_ms: u64,
    /// How long a waiter may wait for a lock that no owner holds, not counting
    /// outages.
    pub(crate) max_wait_ms: u64,
    /// Whether every request waits. Otherwise most time out soon, so tasks do
    /// not all end up waiting for the same lock.
    #[serde(default)]
    pub(crate) always_wait: bool,
    /// How long a process may go without acquiring a lock, not counting
    /// outages. 0 disables the check.
    #[serde(default)]
    pub(crate) max_idle_ms: u64,
    /// How many connections to one server each process may have. 0 disables the
    /// check.
    #[serde(default)]
    pub(crate) max_connections: u64,
    /// One hold in `n` may last longer than a lease.
    #[serde(default = "default_long_hold_every")]
    pub(crate) long_hold_every: u64,
    #[serde(default)]
    pub(crate) persistence: Persistence,
    /// Whether every replica must acknowledge each acquisition.
    #[serde(default)]
    pub(crate) replica_acks: bool,
    /// One hold in `n` of a mutex or fair mutex is handed over to a task of any
    /// process. 0 disables it.
    #[serde(default)]
    pub(crate) hand_over_every: u64,
    /// One waiter in `n` is not polled for twice `max_wait_ms`. 0 disables it.
    #[serde(default)]
    pub(crate) unpolled_every: u64,
    /// Whether each worker also acquires locks on runtimes that block and shut
    /// down.
    #[serde(default)]
    pub(crate) short_runtimes: bool,
    /// How many children each worker forks at a time, after it has used a
    /// client itself. 0 disables forking.
    #[serde(default)]
    pub(crate) forks: u64,
    /// Whether each worker also runs programs under `leasehold run`.
    #[serde(default)]
    pub(crate) cli: bool,
    /// How many requests in a thousand are cut, dropped, duplicated or delayed.
    #[serde(default)]
    pub(crate) faulty_requests: u64,
    /// The average time between two faults.
    pub(crate) fault_interval_ms: u64,
    pub(crate) faults: Vec<Fault>,
    /// Whether the run must violate exclusion, to show that the checkers detect
    /// it.
    #[serde(default)]
    pub(crate) control: bool,
    /// A run with fewer acquisitions per second is void.
    #[serde(default = "default_min_rate")]
    pub(crate) min_rate: u32,
}

fn default_long_hold_every() -> u64 {
    300
}

fn default_min_rate() -> u32 {
    500
}

/// The servers that hold the locks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// One server, with a faulty network between it and each worker.
    Standalone,
    /// A master, two replicas and three sentinels.
    Sentinel,
    /// Three masters with one replica each.
    Cluster,
    /// Five independent servers, each behind a faulty network.
    Quorum,
}

/// A kind of lock.
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

/// A semaphore's permits.
pub(crate) const PERMITS: u32 = 3;

/// The capacity of a read-write lock: more than the number of readers. A writer
/// takes all of it.
const RW_CAPACITY: u32 = 1_000_000;

impl Kind {
    /// Returns the total weight that may be held at the same time.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::ReadWrite | Self::RedissonReadWrite => RW_CAPACITY,
            Self::Semaphore => PERMITS,
            _ => 1,
        }
    }

    /// Returns whether an exclusive holder has a unique fencing token.
    pub(crate) fn is_fenced(self) -> bool {
        !matches!(
            self,
            Self::RedissonLock | Self::RedissonFair | Self::RedissonReadWrite
        )
    }

    /// Returns whether the lock can be handed over to another process.
    pub(crate) fn can_be_handed_over(self) -> bool {
        matches!(self, Self::Mutex | Self::Fair)
    }

    /// Returns whether waiters are served in FIFO order.
    pub(crate) fn is_fair(self) -> bool {
        matches!(self, Self::Fair)
    }
}

/// The `appendfsync` setting of the servers.
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
    /// Kills a server and restarts it with the data that it has on disk.
    RestartServer,
    BlackHole,
    Disconnect,
    FlushScripts,
    KillClients,
    KillSubscribers,
    PauseClients,
    OutOfMemory,
    RevokeCommands,
    RevokeChannels,
    /// A master dies before its replicas receive its last writes.
    Failover,
    /// A master is paused until another takes over, and then resumes in the
    /// belief that it is still the master.
    PauseMaster,
    MoveSlot,
    /// A slot moves while its node is paused with requests in its sockets.
    MoveSlotPaused,
    /// A sentinel loses the group while clients reconnect.
    ResetSentinel,
    /// A sentinel is paused while clients reconnect, and lags when it resumes.
    PauseSentinel,
    /// Breaks exclusion: only increasing tokens are promised.
    FlushAll,
    /// Moves the server's clock ahead. Breaks exclusion as well.
    StepClock,
    /// Observed rather than injected, so no plan names it.
    #[serde(skip)]
    CpuSteal,
}

impl Fault {
    /// Returns the name of the fault in reports.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::KillWorker => "worker killed",
            Self::PauseWorker => "worker paused",
            Self::PauseServer => "server paused",
            Self::RestartServer => "server killed",
            Self::BlackHole => "network black hole",
            Self::Disconnect => "connections closed",
            Self::FlushScripts => "SCRIPT FLUSH",
            Self::KillClients => "CLIENT KILL",
            Self::KillSubscribers => "CLIENT KILL TYPE pubsub",
            Self::PauseClients => "CLIENT PAUSE",
            Self::OutOfMemory => "out of memory",
            Self::RevokeCommands => "commands revoked",
            Self::RevokeChannels => "channels revoked",
            Self::Failover => "failover, writes lost",
            Self::PauseMaster => "failover, master paused",
            Self::MoveSlot => "slot moved",
            Self::MoveSlotPaused => "slot moved, node paused",
            Self::ResetSentinel => "sentinel reset",
            Self::PauseSentinel => "sentinel paused",
            Self::FlushAll => "FLUSHALL",
            Self::StepClock => "clock stepped ahead",
            Self::CpuSteal => "CPU steal",
        }
    }
}

impl Plan {
    /// Reads a plan. `TORTURE_SECONDS` and `TORTURE_SEED` override the file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let mut plan: Self = toml::from_str(&text).map_err(|error| error.to_string())?;
        let override_of = |name: &str| std::env::var(name).ok()?.parse().ok();
        plan.seconds = override_of("TORTURE_SECONDS").unwrap_or(plan.seconds);
        plan.seed = override_of("TORTURE_SEED").unwrap_or(plan.seed);
        match plan.kinds.is_empty() || plan.locks == 0 || plan.processes == 0 {
            true => Err("invalid plan: `kinds`, `locks` and `processes` are required".to_owned()),
            false => Ok(plan),
        }
    }

    pub(crate) fn kind(&self, lock: u32) -> Kind {
        self.kinds[lock as usize % self.kinds.len()]
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Returns the limit on waiting for a free lock.
    pub(crate) fn max_wait(&self) -> Duration {
        Duration::from_millis(self.max_wait_ms)
    }

    /// Returns the maximum lease of a quorum: a restarted server is quarantined
    /// for this long.
    pub(crate) fn max_lease(&self) -> Duration {
        self.lease() * 2
    }

    /// Returns whether exclusion is promised under the plan's faults.
    pub(crate) fn promises_exclusion(&self) -> bool {
        self.faults.iter().all(|fault| match fault {
            Fault::FlushAll | Fault::StepClock => false,
            Fault::Failover | Fault::PauseMaster => self.replica_acks,
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

    /// Returns a plan with locks of one kind, for the tests of the checkers.
    pub(crate) fn plan_of(kind: Kind) -> Plan {
        Plan {
            name: "an example".to_owned(),
            seed: 1,
            seconds: 1,
            topology: Topology::Standalone,
            processes: 1,
            tasks: 1,
            locks: 1,
            kinds: vec![kind],
            lease_ms: 1000,
            max_wait_ms: 2000,
            always_wait: false,
            max_idle_ms: 0,
            max_connections: 0,
            long_hold_every: 1,
            persistence: Persistence::None,
            replica_acks: false,
            hand_over_every: 0,
            unpolled_every: 0,
            short_runtimes: false,
            forks: 0,
            cli: false,
            faulty_requests: 0,
            fault_interval_ms: 100,
            faults: Vec::new(),
            control: false,
            min_rate: 1,
        }
    }

    #[test]
    fn every_plan_parses() {
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

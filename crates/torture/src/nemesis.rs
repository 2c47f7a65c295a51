//! The nemesis injects faults chosen by a seed. Several may overlap, each is
//! repaired after a while, and periods of calm separate them.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::{SeededRng, ServerExt};

use crate::environment::{Environment, SENTINELS, SentinelFault};
use crate::fault_log::{FaultLog, InjectedFault};
use crate::history::{Timestamp, now};
use crate::plan::{Fault, Plan, Topology};

/// How long faults are injected before the next calm.
const STORM: Duration = Duration::from_secs(8);

/// How long a calm lasts. Checks that need an intact environment apply to it.
const CALM: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(5);

/// Injects faults for the duration of the plan.
pub(crate) fn run(plan: &Plan, environment: &mut Environment) -> FaultLog {
    let end = Instant::now() + Duration::from_secs(plan.seconds);
    let mut nemesis = Nemesis {
        plan,
        rng: SeededRng::new(plan.seed),
        active: Vec::new(),
        log: FaultLog::default(),
        clock: 0,
    };
    while Instant::now() < end {
        nemesis.storm(environment, (Instant::now() + STORM).min(end));
        environment.set_calm(true);
        let from = now();
        std::thread::sleep(CALM.min(end.saturating_duration_since(Instant::now())));
        nemesis.log.calms.push((from, now()));
        environment.set_calm(false);
    }
    nemesis.log
}

struct Nemesis<'a> {
    plan: &'a Plan,
    rng: SeededRng,
    active: Vec<ActiveFault>,
    log: FaultLog,
    /// How far the server's clock is ahead, in seconds.
    clock: i64,
}

/// A fault that is not repaired yet.
struct ActiveFault {
    fault: Fault,
    target: Target,
    from: Timestamp,
    repair_at: Instant,
}

/// The target of a fault. A target has at most one active fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Worker(usize),
    Network(usize),
    Server(usize),
    Sentinel(usize),
    /// Requires that no server has an active fault.
    Servers,
}

impl Nemesis<'_> {
    fn storm(&mut self, environment: &mut Environment, end: Instant) {
        let mut next = Instant::now();
        while Instant::now() < end {
            self.repair(environment, |active| active.repair_at <= Instant::now());
            if Instant::now() >= next && !self.plan.faults.is_empty() {
                let interval = self.plan.fault_interval_ms;
                let pause = interval / 2 + self.rng.below(interval);
                next = Instant::now() + Duration::from_millis(pause);
                self.strike(environment);
            }
            std::thread::sleep(TICK);
        }
        self.repair(environment, |_| true);
    }

    /// Injects one fault, unless its target already has one.
    fn strike(&mut self, environment: &mut Environment) {
        let fault = self.plan.faults[self.below(self.plan.faults.len())];
        let target = self.target(fault, environment);
        let length = match fault {
            // Exceeds the limit for clients that stay with this sentinel.
            Fault::ResetSentinel | Fault::PauseSentinel => self.plan.max_idle_ms + 2000,
            _ => self.rng.below(self.max_length(fault)) + 1,
        };
        let is_intact = |target| self.active.iter().all(|active| active.target != target);
        let servers = 0..environment.servers.all().len();
        let intact = match target {
            Target::Servers => servers.map(Target::Server).all(is_intact),
            // The other sentinels must know the master.
            Target::Sentinel(_) => (0..SENTINELS).map(Target::Sentinel).all(is_intact),
            target => is_intact(target),
        };
        let from = now();
        if intact && self.inject(fault, target, length, environment) {
            let repair_at = Instant::now() + Duration::from_millis(length);
            self.active.push(ActiveFault {
                fault,
                target,
                from,
                repair_at,
            });
        }
    }

    fn target(&mut self, fault: Fault, environment: &Environment) -> Target {
        match fault {
            Fault::KillWorker | Fault::PauseWorker => {
                Target::Worker(self.below(self.plan.processes))
            }
            Fault::BlackHole | Fault::Disconnect => {
                Target::Network(self.below(environment.networks.len()))
            }
            Fault::Failover | Fault::PauseMaster | Fault::MoveSlot | Fault::MoveSlotPaused => {
                Target::Servers
            }
            Fault::ResetSentinel | Fault::PauseSentinel => Target::Sentinel(self.below(SENTINELS)),
            // Whether a quorum can spare a server depends on all of them.
            Fault::RestartServer if self.plan.topology == Topology::Quorum => Target::Servers,
            _ => Target::Server(self.below(environment.servers.all().len())),
        }
    }

    /// Returns the maximum length of a fault in milliseconds.
    fn max_length(&self, fault: Fault) -> u64 {
        let lease = self.plan.lease_ms.min(2000);
        match (fault, self.plan.topology) {
            (Fault::PauseWorker, _) => lease * 2,
            // A longer pause would cause a failover.
            (Fault::PauseServer, Topology::Sentinel | Topology::Cluster) => 300,
            (Fault::PauseServer | Fault::BlackHole, _) => lease,
            (Fault::PauseClients, _) => lease / 2,
            (Fault::RestartServer, _) => 200,
            (Fault::OutOfMemory | Fault::RevokeCommands | Fault::RevokeChannels, _) => 400,
            _ => 1,
        }
    }

    /// Injects a fault. Returns false if it is not possible now.
    fn inject(
        &mut self,
        fault: Fault,
        target: Target,
        millis: u64,
        environment: &mut Environment,
    ) -> bool {
        let lock = format!("lock:torture:{}", self.below(self.plan.locks as usize));
        match (fault, target) {
            (Fault::KillWorker, Target::Worker(index)) => environment.replace_worker(index),
            (Fault::PauseWorker, Target::Worker(index)) => {
                environment.signal_worker(index, Signal::STOP);
            }
            (Fault::BlackHole, Target::Network(index)) => {
                environment.networks[index].black_hole(true);
            }
            (Fault::Disconnect, Target::Network(index)) => environment.networks[index].sever(),
            (Fault::PauseServer, Target::Server(node)) => environment.servers.all()[node].pause(),
            (Fault::RestartServer, Target::Server(node)) => {
                environment.servers.kill(node);
                std::thread::sleep(Duration::from_millis(millis));
                environment.servers.restart(node);
            }
            (Fault::RestartServer, _) => {
                let node = self.below(environment.servers.all().len());
                return environment.servers.restart_if_spare(node);
            }
            (Fault::Failover, _) => return environment.servers.fail_over(&lock),
            (Fault::PauseMaster, _) => return environment.servers.pause_through_failover(&lock),
            (Fault::MoveSlot, _) => {
                let offset = self.below(16);
                return environment.servers.move_slot(&lock, offset);
            }
            (Fault::MoveSlotPaused, _) => {
                let offset = self.below(16);
                return environment
                    .servers
                    .move_slot_while_paused(self.plan.locks, offset);
            }
            (Fault::ResetSentinel, Target::Sentinel(index)) => {
                return environment
                    .servers
                    .break_sentinel(index, SentinelFault::Reset);
            }
            (Fault::PauseSentinel, Target::Sentinel(index)) => {
                return environment
                    .servers
                    .break_sentinel(index, SentinelFault::Pause);
            }
            (Fault::StepClock, Target::Server(node)) => {
                self.clock += 1 + self.rng.below(3).cast_signed();
                environment.servers.all()[node].set_clock(self.clock);
            }
            (_, Target::Server(node)) => match command(fault, millis) {
                Some(command) => environment.servers.try_command(node, &command),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    fn repair(&mut self, environment: &Environment, which: impl Fn(&ActiveFault) -> bool) {
        let (due, active): (Vec<_>, _) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|active| which(active));
        self.active = active;
        for ActiveFault {
            fault,
            target,
            from,
            ..
        } in due
        {
            undo(fault, target, environment);
            let until = now();
            self.log.faults.push(InjectedFault { fault, from, until });
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.rng.below(limit.max(1) as u64)).unwrap_or_default()
    }
}

/// Returns the server command that injects a fault, if one does.
fn command(fault: Fault, millis: u64) -> Option<String> {
    let command = match fault {
        Fault::FlushScripts => "SCRIPT FLUSH",
        Fault::FlushAll => "FLUSHALL",
        Fault::KillClients => "CLIENT KILL TYPE normal SKIPME yes",
        Fault::KillSubscribers => "CLIENT KILL TYPE pubsub",
        Fault::OutOfMemory => "CONFIG SET maxmemory 1",
        Fault::RevokeCommands => "ACL SETUSER worker -eval -evalsha",
        Fault::RevokeChannels => "ACL SETUSER worker resetchannels",
        Fault::PauseClients => return Some(format!("CLIENT PAUSE {millis} WRITE")),
        _ => return None,
    };
    Some(command.to_owned())
}

fn undo(fault: Fault, target: Target, environment: &Environment) {
    let servers = &environment.servers;
    match (fault, target) {
        (Fault::PauseWorker, Target::Worker(index)) => {
            environment.signal_worker(index, Signal::CONT);
        }
        (Fault::PauseServer, Target::Server(node)) => servers.all()[node].resume(),
        (Fault::BlackHole, Target::Network(index)) => {
            environment.networks[index].black_hole(false);
        }
        (Fault::ResetSentinel, Target::Sentinel(index)) => {
            servers.repair_sentinel(index, SentinelFault::Reset);
        }
        (Fault::PauseSentinel, Target::Sentinel(index)) => {
            servers.repair_sentinel(index, SentinelFault::Pause);
        }
        (Fault::OutOfMemory, Target::Server(node)) => {
            servers.try_command(node, "CONFIG SET maxmemory 0");
        }
        (Fault::RevokeCommands, Target::Server(node)) => {
            servers.try_command(node, "ACL SETUSER worker +@all");
        }
        (Fault::RevokeChannels, Target::Server(node)) => {
            servers.try_command(node, "ACL SETUSER worker allchannels");
        }
        _ => {}
    }
}

//! The one who breaks things, from a seed: several at once, each mended after a while, and now and then nothing at all.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::SeededRng;

use crate::history::{Moment, now};
use crate::plan::{Fault, Plan, Topology};
use crate::site::{SENTINELS, Site};

/// How often everything is whole for a while, and for how long: what must be prompt is judged then.
const STORM: Duration = Duration::from_secs(8);
const CALM: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(5);

/// A fault that was made, and mended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deed {
    pub(crate) fault: Fault,
    pub(crate) from: Moment,
    pub(crate) until: Moment,
}

/// When nothing was broken.
pub(crate) type Calm = (Moment, Moment);

/// What was done.
#[derive(Default)]
pub(crate) struct Deeds {
    pub(crate) deeds: Vec<Deed>,
    pub(crate) calms: Vec<Calm>,
}

/// Breaks things until the time is over.
pub(crate) fn rage(plan: &Plan, site: &mut Site) -> Deeds {
    let end = Instant::now() + Duration::from_secs(plan.seconds);
    let mut nemesis = Nemesis {
        plan,
        rng: SeededRng::new(plan.seed),
        broken: Vec::new(),
        done: Deeds::default(),
        clock: 0,
    };
    while Instant::now() < end {
        nemesis.storm(site, (Instant::now() + STORM).min(end));
        site.calm(true);
        let from = now();
        std::thread::sleep(CALM.min(end.saturating_duration_since(Instant::now())));
        nemesis.done.calms.push((from, now()));
        site.calm(false);
    }
    nemesis.done
}

struct Nemesis<'a> {
    plan: &'a Plan,
    rng: SeededRng,
    broken: Vec<Broken>,
    done: Deeds,
    /// How far the server's clock is ahead, in seconds.
    clock: i64,
}

/// Something that is broken at present.
struct Broken {
    fault: Fault,
    target: Target,
    from: Moment,
    due: Instant,
}

/// What a fault is done to. What is broken is not broken again, nor asked anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Worker(usize),
    Network(usize),
    Server(usize),
    Sentinel(usize),
    /// Needs all servers to be well.
    Servers,
}

impl Nemesis<'_> {
    fn storm(&mut self, site: &mut Site, end: Instant) {
        let mut next = Instant::now();
        while Instant::now() < end {
            self.mend(site, |broken| broken.due <= Instant::now());
            if Instant::now() >= next && !self.plan.faults.is_empty() {
                let pace = self.plan.pace_ms;
                next = Instant::now() + Duration::from_millis(pace / 2 + self.rng.below(pace));
                self.strike(site);
            }
            std::thread::sleep(TICK);
        }
        self.mend(site, |_| true);
    }

    /// Makes one fault, unless what it would break is broken already.
    fn strike(&mut self, site: &mut Site) {
        let fault = self.plan.faults[self.below(self.plan.faults.len())];
        let target = self.target(fault, site);
        let length = match fault {
            // Clients that stay with it are blocked for longer than the plan allows.
            Fault::ForgetSentinel | Fault::SleepSentinel => self.plan.served_ms + 2000,
            _ => self.rng.below(self.longest(fault)) + 1,
        };
        let is_well = |target| self.broken.iter().all(|broken| broken.target != target);
        let servers = 0..site.servers.all().len();
        let well = match target {
            Target::Servers => servers.map(Target::Server).all(is_well),
            // The others know the master.
            Target::Sentinel(_) => (0..SENTINELS).map(Target::Sentinel).all(is_well),
            one => is_well(one),
        };
        let from = now();
        if well && self.commit(fault, target, length, site) {
            let due = Instant::now() + Duration::from_millis(length);
            self.broken.push(Broken {
                fault,
                target,
                from,
                due,
            });
        }
    }

    fn target(&mut self, fault: Fault, site: &Site) -> Target {
        match fault {
            Fault::KillWorker | Fault::PauseWorker => {
                Target::Worker(self.below(self.plan.processes))
            }
            Fault::BlackHole | Fault::Sever => Target::Network(self.below(site.networks.len())),
            Fault::FailOver | Fault::SleepMaster | Fault::MoveSlot | Fault::MoveSlotAsleep => {
                Target::Servers
            }
            Fault::ForgetSentinel | Fault::SleepSentinel => Target::Sentinel(self.below(SENTINELS)),
            // Whether a quorum can spare one is asked of all.
            Fault::RestartServer if self.plan.topology == Topology::Quorum => Target::Servers,
            _ => Target::Server(self.below(site.servers.all().len())),
        }
    }

    /// How long a fault lasts at most, in milliseconds.
    fn longest(&self, fault: Fault) -> u64 {
        let lease = self.plan.lease_ms.min(2000);
        match (fault, self.plan.topology) {
            (Fault::PauseWorker, _) => lease * 2,
            // They take a server for dead that is silent for long.
            (Fault::PauseServer, Topology::Sentinel | Topology::Cluster) => 300,
            (Fault::PauseServer | Fault::BlackHole, _) => lease,
            (Fault::PauseClients, _) => lease / 2,
            (Fault::RestartServer, _) => 200,
            (Fault::FullMemory | Fault::RevokeRights | Fault::RevokeChannels, _) => 400,
            _ => 1,
        }
    }

    /// Breaks it; false when that must not be now.
    fn commit(&mut self, fault: Fault, target: Target, millis: u64, site: &mut Site) -> bool {
        let lock = format!("lock:torture:{}", self.below(self.plan.locks as usize));
        match (fault, target) {
            (Fault::KillWorker, Target::Worker(place)) => site.replace_worker(place),
            (Fault::PauseWorker, Target::Worker(place)) => site.signal_worker(place, Signal::STOP),
            (Fault::BlackHole, Target::Network(network)) => site.networks[network].black_hole(true),
            (Fault::Sever, Target::Network(network)) => site.networks[network].sever(),
            (Fault::PauseServer, Target::Server(node)) => site.servers.all()[node].pause(),
            (Fault::RestartServer, Target::Server(node)) => {
                site.servers.kill(node);
                std::thread::sleep(Duration::from_millis(millis));
                site.servers.restart(node);
            }
            (Fault::RestartServer, _) => {
                let node = self.below(site.servers.all().len());
                return site.servers.restart_if_spare(node);
            }
            (Fault::FailOver, _) => return site.servers.fail_over(&lock),
            (Fault::SleepMaster, _) => return site.servers.sleep_through_failover(&lock),
            (Fault::MoveSlot, _) => {
                let further = self.below(16);
                return site.servers.move_slot(&lock, further);
            }
            (Fault::MoveSlotAsleep, _) => {
                let further = self.below(16);
                return site
                    .servers
                    .move_slot_while_paused(self.plan.locks, further);
            }
            (Fault::ForgetSentinel, Target::Sentinel(at)) => {
                return site.servers.forget_sentinel(at);
            }
            (Fault::SleepSentinel, Target::Sentinel(at)) => return site.servers.pause_sentinel(at),
            (Fault::StepClock, Target::Server(node)) => {
                self.clock += 1 + self.rng.below(3).cast_signed();
                site.servers.all()[node].set_clock(self.clock);
            }
            (_, Target::Server(node)) => match command(fault, millis) {
                Some(command) => site.servers.tell(node, &command),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    fn mend(&mut self, site: &Site, which: impl Fn(&Broken) -> bool) {
        let (mended, broken): (Vec<_>, _) = std::mem::take(&mut self.broken)
            .into_iter()
            .partition(|broken| which(broken));
        self.broken = broken;
        for Broken {
            fault,
            target,
            from,
            ..
        } in mended
        {
            undo(fault, target, site);
            let until = now();
            self.done.deeds.push(Deed { fault, from, until });
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.rng.below(limit.max(1) as u64)).unwrap_or_default()
    }
}

/// What a server is told that does it harm.
fn command(fault: Fault, millis: u64) -> Option<String> {
    let command = match fault {
        Fault::FlushScripts => "SCRIPT FLUSH",
        Fault::FlushData => "FLUSHALL",
        Fault::KillClients => "CLIENT KILL TYPE normal SKIPME yes",
        Fault::KillSubscribers => "CLIENT KILL TYPE pubsub",
        Fault::FullMemory => "CONFIG SET maxmemory 1",
        Fault::RevokeRights => "ACL SETUSER worker -eval -evalsha",
        Fault::RevokeChannels => "ACL SETUSER worker resetchannels",
        Fault::PauseClients => return Some(format!("CLIENT PAUSE {millis} WRITE")),
        _ => return None,
    };
    Some(command.to_owned())
}

fn undo(fault: Fault, target: Target, site: &Site) {
    match (fault, target) {
        (Fault::PauseWorker, Target::Worker(place)) => site.signal_worker(place, Signal::CONT),
        (Fault::PauseServer, Target::Server(node)) => site.servers.all()[node].resume(),
        (Fault::BlackHole, Target::Network(network)) => site.networks[network].black_hole(false),
        (Fault::ForgetSentinel, Target::Sentinel(at)) => site.servers.remind_sentinel(at),
        (Fault::SleepSentinel, Target::Sentinel(at)) => site.servers.resume_sentinel(at),
        (Fault::FullMemory, Target::Server(node)) => {
            site.servers.tell(node, "CONFIG SET maxmemory 0");
        }
        (Fault::RevokeRights, Target::Server(node)) => {
            site.servers.tell(node, "ACL SETUSER worker +@all");
        }
        (Fault::RevokeChannels, Target::Server(node)) => {
            site.servers.tell(node, "ACL SETUSER worker allchannels");
        }
        _ => {}
    }
}

//! Jobs on ten hosts whose clocks differ and that crash: each tick runs at most
//! once, and each tick that did not run has a known reason.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use testkit::{SeededRng, Server};

use super::{Journal, Process};
use crate::support::worker;
use crate::support::{scaled, server};

const HOSTS: usize = 10;

const JOBS: u64 = 20;

const PERIOD: Duration = Duration::from_millis(250);

/// A crashed runner keeps its job busy for this long.
const LEASE: Duration = Duration::from_secs(1);

/// What the hosts recorded of one tick of a job.
#[derive(Debug, Default)]
struct Record {
    asked: u32,
    ran: u32,
    done: bool,
    /// A host found a run of this tick.
    found: bool,
    /// A host found a run of a later tick.
    later: bool,
    busy: bool,
    failed: bool,
}

impl Record {
    /// Returns why the tick did not run. `last_run` is the run before it.
    fn reason(&self, last_run: Option<&Self>) -> &'static str {
        let was_killed = last_run.is_some_and(|run| !run.done);
        match self {
            Self { found: true, .. } => "runner killed after its claim",
            Self { busy: true, .. } if was_killed => "busy: an earlier runner was killed",
            Self { busy: true, .. } => "busy: a host held the lock without a run",
            Self { later: true, .. } => "a later tick was first",
            Self { failed: true, .. } => "error",
            Self { asked: 1.., .. } => "every asking host was killed",
            _ => "no host asked",
        }
    }
}

/// Returns the record of each job and tick.
fn records(journal: &Journal) -> BTreeMap<(u64, u64), Record> {
    let mut records: BTreeMap<(u64, u64), Record> = BTreeMap::new();
    for (_, line) in journal.lines().iter() {
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let tick = number(2);
        let record = records.entry((number(1), tick)).or_default();
        match words[0] {
            "ask" => record.asked += 1,
            "ran" => record.ran += 1,
            "done" => record.done = true,
            "already" if number(3) == tick => record.found = true,
            "already" => record.later = true,
            "busy" => record.busy = true,
            _ => {
                println!("{line}");
                record.failed = true;
            }
        }
    }
    records
}

/// Starts a host with a clock of its own, up to half a tick ahead.
fn start_host(journal: &Journal, server: &Server, number: usize, seed: usize) -> Process {
    let mut worker = worker::start(server.port(), LEASE);
    let period = PERIOD.as_millis();
    let offset = period / 2 * number as u128 / (HOSTS - 1) as u128;
    worker.tell(&format!("tick {JOBS} {period} {offset} {seed}"));
    journal.read(number, worker)
}

#[test]
#[ignore = "deep: runs for minutes"]
fn crashing_hosts_run_each_tick_at_most_once() {
    let (ran, reasons) = run_hosts(true);
    let skipped: usize = reasons.values().sum();
    assert!(!reasons.contains_key("error"));
    assert!(ran > skipped, "most ticks did not run");
}

#[test]
#[ignore = "deep: needs hosts that ask in time"]
fn hosts_that_stay_up_run_every_tick() {
    let (_, reasons) = run_hosts(false);
    assert!(reasons.is_empty(), "{reasons:?}");
}

/// Lets ten hosts run the jobs, and kills some of them if `kills` is set.
/// Returns how many ticks ran, and why others did not.
fn run_hosts(kills: bool) -> (usize, BTreeMap<&'static str, usize>) {
    let server = server();
    let journal = Journal::default();
    let start_host = |number, seed| start_host(&journal, &server, number, seed);
    let mut hosts: Vec<_> = (0..HOSTS)
        .map(|host| Some(start_host(host, host)))
        .collect();
    let mut rng = SeededRng::new(28);
    let start = Instant::now();
    let mut killed = 0;
    let ticks = u32::try_from(scaled(1000) / JOBS).unwrap();
    while start.elapsed() < PERIOD * ticks {
        std::thread::sleep(Duration::from_millis(rng.below(1000)));
        if kills {
            let host = usize::try_from(rng.below(HOSTS as u64)).unwrap();
            hosts[host].take().into_iter().for_each(Process::kill);
            killed += 1;
            hosts[host] = Some(start_host(host, HOSTS + killed));
        }
    }
    hosts.into_iter().flatten().for_each(Process::kill);

    let mut records = records(&journal);
    let all = records.keys().map(|(_, tick)| *tick);
    let first = all.clone().min().unwrap();
    let last = all.max().unwrap();
    // The end of the test cuts the last tick short.
    records.retain(|(_, tick), _| *tick < last);
    for job in 0..JOBS {
        for tick in first..last {
            records.entry((job, tick)).or_default();
        }
    }
    let mut ran = 0;
    let mut reasons = BTreeMap::new();
    for (tick, record) in &records {
        assert!(record.ran <= 1, "{tick:?} ran twice: {record:?}");
        if record.ran == 0 {
            let before = records.range((tick.0, 0)..*tick);
            let last_run = before.rev().find(|(_, record)| record.ran > 0);
            let reason = record.reason(last_run.map(|(_, record)| record));
            *reasons.entry(reason).or_insert(0) += 1;
        } else {
            ran += 1;
        }
    }
    println!(
        "{} ticks of {JOBS} jobs on {HOSTS} hosts, {killed} killed: {ran} ran, others {reasons:?}",
        records.len()
    );
    (ran, reasons)
}

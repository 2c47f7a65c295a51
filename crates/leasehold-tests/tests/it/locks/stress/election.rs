//! Elections under crashes, pauses, partitions and failovers: one leader at a
//! time, rising epochs, prompt replacement, and followers that miss nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use testkit::sentinel_group::GROUP;
use testkit::{Flavor, Proxy, SeededRng, Server};

use super::{Journal, Process};
use crate::support::deployment::{group, sentinel_url};
use crate::support::worker;
use crate::support::{AMPLE, clock, percentile, scaled, server};

const LEASE: Duration = Duration::from_secs(1);

/// One of this many terms is long.
const LONG: u64 = 1000;

const CANDIDATES: usize = 5;

/// The longest pause or partition: longer than two leases.
const MAX_FAULT_MILLIS: u64 = 2500;

/// A term, as its leader recorded it.
#[derive(Debug, Default)]
struct Term {
    epoch: u64,
    process: usize,
    start: u64,
    /// The last deadline of the lease that the leader read.
    deadline: u64,
    resigned: Option<u64>,
    announced: bool,
}

impl Term {
    /// When the leader stopped to believe that it leads, at the latest.
    fn end(&self) -> u64 {
        self.deadline.min(self.resigned.unwrap_or(u64::MAX))
    }
}

/// Returns the terms by the time of their start.
fn terms(journal: &Journal) -> Vec<Term> {
    let mut terms: BTreeMap<u64, Term> = BTreeMap::new();
    for (process, line) in journal.lines().iter() {
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        if words[0] == "seen" {
            continue;
        }
        let term = terms.entry(number(1)).or_default();
        match words[0] {
            "start" => {
                assert_eq!(term.start, 0, "epoch {} was won twice", words[1]);
                (term.epoch, term.process, term.start) = (number(1), *process, number(2));
                term.deadline = number(3);
            }
            "ok" => term.deadline = number(3),
            "announced" => term.announced = true,
            "resign" => term.resigned = Some(number(2)),
            _ => {}
        }
    }
    let mut terms: Vec<_> = terms.into_values().filter(|term| term.start > 0).collect();
    terms.sort_by_key(|term| term.start);
    terms
}

/// Asserts that terms do not overlap, and that epochs rise.
fn check_terms(terms: &[Term]) {
    for pair in terms.windows(2) {
        let one = &pair[0];
        let next = &pair[1];
        assert!(one.end() <= next.start, "two leaders: {one:?} {next:?}");
        assert!(one.epoch < next.epoch, "epochs: {one:?} {next:?}");
    }
}

/// Returns the epochs that a follower has seen, and asserts their order.
fn check_seen(journal: &Journal, terms: &[Term], follower: usize, killed: usize) -> BTreeSet<u64> {
    let lines = journal.lines();
    let seen = lines.iter().filter(|(process, _)| *process == follower);
    let seen = seen.map(|(_, line)| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap());
    let seen: Vec<_> = seen.filter(|epoch| *epoch > 0).collect();
    assert!(seen.is_sorted_by(|a, b| a < b), "terms out of order");
    let seen: BTreeSet<_> = seen.into_iter().collect();
    let started: BTreeSet<_> = terms.iter().map(|term| term.epoch).collect();
    // A process can be killed, or lose its lease, before it records its start.
    // It resigns if it does not poll in time, as on a machine that stalls.
    let unrecorded = seen.difference(&started).count();
    let limit = killed + started.len() / 100;
    assert!(unrecorded <= limit, "{unrecorded} terms without a leader");
    seen
}

/// Returns the times from `events` to the next start of a term, sorted.
fn replacement_times(events: impl IntoIterator<Item = u64>, terms: &[Term]) -> Vec<Duration> {
    let mut times: Vec<_> = events
        .into_iter()
        .filter_map(|at| {
            let next = terms.partition_point(|term| term.start <= at);
            Some(Duration::from_nanos(terms.get(next)?.start - at))
        })
        .collect();
    times.sort_unstable();
    times
}

fn describe(what: &str, times: &[Duration]) {
    if !times.is_empty() {
        let at = |of_thousand| percentile(times, of_thousand);
        println!(
            "{what}: {} times, median {:?}, p99 {:?}, max {:?}",
            times.len(),
            at(500),
            at(990),
            at(1000)
        );
    }
}

/// Candidates, each behind a proxy of its own, and a follower.
struct Race {
    journal: Journal,
    proxies: Vec<Proxy>,
    candidates: Vec<Option<Process>>,
    /// The number of the process of each candidate.
    numbers: Vec<usize>,
    started: usize,
    faults: BTreeMap<&'static str, usize>,
    /// When a leader was killed.
    deaths: Vec<u64>,
    rng: SeededRng,
}

impl Race {
    fn start(server: &Server) -> Self {
        let proxies = (0..CANDIDATES).map(|_| Proxy::start(server.port()));
        let mut race = Self {
            journal: Journal::default(),
            proxies: proxies.collect(),
            candidates: (0..CANDIDATES).map(|_| None).collect(),
            numbers: vec![0; CANDIDATES],
            started: 0,
            faults: BTreeMap::new(),
            deaths: Vec::new(),
            rng: SeededRng::new(27),
        };
        (0..CANDIDATES).for_each(|index| race.restart(index));
        race
    }

    fn restart(&mut self, index: usize) {
        if let Some(former) = self.candidates[index].take() {
            former.kill();
        }
        self.started += 1;
        let mut worker = worker::start(self.proxies[index].port(), LEASE);
        worker.tell(&format!("lead race {LONG} {}", self.started));
        self.numbers[index] = self.started;
        self.candidates[index] = Some(self.journal.read(self.started, worker));
    }

    /// Waits for a leader in a long term, and returns its index.
    fn wait_for_leader(&self) -> Option<usize> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            let lines = self.journal.lines();
            let last = lines
                .iter()
                .rev()
                .find(|(_, line)| !line.starts_with("seen"));
            if let Some((process, line)) = last
                && line.starts_with("ok")
                && let Some(index) = self.numbers.iter().position(|number| number == process)
            {
                return Some(index);
            }
            drop(lines);
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Injects one fault, and lets the others continue.
    fn disturb(&mut self) {
        let below = |rng: &mut SeededRng, limit| usize::try_from(rng.below(limit)).unwrap();
        let any = below(&mut self.rng, CANDIDATES as u64);
        let leader = self.wait_for_leader().unwrap_or(any);
        let length = Duration::from_millis(100 + self.rng.below(MAX_FAULT_MILLIS - 100));
        let kind = match below(&mut self.rng, 5) {
            0 => {
                self.deaths.push(clock());
                self.candidates[leader].take().unwrap().kill();
                std::thread::sleep(LEASE * 2);
                self.restart(leader);
                "kill the leader"
            }
            1 => {
                self.restart(any);
                "kill any"
            }
            2 | 3 => {
                let index = [leader, any][below(&mut self.rng, 2)];
                let remote = self.candidates[index].as_ref().unwrap().remote;
                remote.pause();
                std::thread::sleep(length);
                remote.resume();
                "pause"
            }
            _ => {
                self.proxies[leader].black_hole(true);
                std::thread::sleep(length);
                self.proxies[leader].black_hole(false);
                "isolate the leader"
            }
        };
        *self.faults.entry(kind).or_default() += 1;
        std::thread::sleep(Duration::from_millis(300));
    }

    fn count_starts(&self) -> u64 {
        let lines = self.journal.lines();
        lines
            .iter()
            .filter(|(_, line)| line.starts_with("start"))
            .count() as u64
    }
}

#[test]
#[ignore = "deep: runs for minutes, and measures how soon a leader is replaced"]
fn faults_leave_one_leader_and_replace_it() {
    let server = server();
    let mut race = Race::start(&server);
    let mut follower = worker::start(server.port(), LEASE * 10);
    follower.tell("follow race");
    let follower = race.journal.read(0, follower);
    let start = Instant::now();
    while race.count_starts() < scaled(10_000) {
        assert!(start.elapsed() < AMPLE * u32::try_from(scaled(3)).unwrap());
        race.disturb();
    }
    let took = start.elapsed();
    race.candidates
        .iter_mut()
        .flat_map(Option::take)
        .for_each(Process::kill);
    std::thread::sleep(Duration::from_secs(2));
    follower.kill();

    let terms = terms(&race.journal);
    check_terms(&terms);
    let seen = check_seen(&race.journal, &terms, 0, race.started);
    let missed = terms
        .iter()
        .filter(|term| term.announced && !seen.contains(&term.epoch));
    assert_eq!(missed.count(), 0, "a follower missed announced terms");
    let deaths = replacement_times(race.deaths, &terms);
    let resignations = terms.iter().filter_map(|term| term.resigned);
    let resignations = replacement_times(resignations, &terms);
    let lost = terms.iter().filter(|term| term.resigned.is_none()).count();
    println!(
        "{} terms in {took:?}, {lost} lost, {} seen, {} processes, faults {:?}",
        terms.len(),
        seen.len(),
        race.started,
        race.faults
    );
    describe("a dead leader was replaced", &deaths);
    describe("a leader that resigned was replaced", &resignations);
    assert!(
        deaths
            .last()
            .is_none_or(|max| *max < LEASE + Duration::from_secs(1))
    );
    assert!(percentile(&resignations, 500) < Duration::from_millis(50));
}

#[test]
#[ignore = "deep: fails over repeatedly"]
fn failovers_leave_one_leader() {
    for round in 0..scaled(1) {
        let mut group = group(&Flavor::one());
        let url = sentinel_url(&group.sentinels(), GROUP);
        let journal = Journal::default();
        let candidates: Vec<_> = (1..=CANDIDATES)
            .map(|number| {
                // A failover takes longer than a short lease.
                let mut worker = worker::start_with_acks(&url, LEASE * 5);
                worker.tell(&format!("lead race 100 {}", round * 100 + number as u64));
                journal.read(number, worker)
            })
            .collect();
        let count = || journal.lines().len();
        std::thread::sleep(Duration::from_secs(3));
        group.kill(0);
        group.wait_for_new_master(0);
        group.wait_until_agreed();
        // Without it, no lock is acknowledged by all replicas.
        group.restart(0);
        let before = count();
        let start = Instant::now();
        while count() < before + 1000 {
            assert!(start.elapsed() < AMPLE, "no leader after the failover");
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("{before} steps before, 1000 more in {:?}", start.elapsed());
        candidates.into_iter().for_each(Process::kill);
        let terms = terms(&journal);
        check_terms(&terms);
        let lost = terms.iter().filter(|term| term.resigned.is_none()).count();
        println!("{} terms over a failover, {lost} lost", terms.len());
    }
}

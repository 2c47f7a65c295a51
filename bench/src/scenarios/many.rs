//! One client on different locks: how far it is from the bare driver and the
//! bare engine, and what it costs.

use std::time::Instant;

use testkit::{Server, ServerExt};

use super::measure::{spent, warm};
use crate::peer::{Contestant, DRIVER, ENGINE, FAIR, OURS, Peer, RSLOCK, THREADS};
use crate::report::{Column, Table, ratios};

const TASKS: [u32; 3] = [64, 8, 1];

/// Measures 64, 8 and one task, with one and two threads in the client.
pub(super) fn many(server: &Server, short: bool) -> Vec<Table> {
    let rounds = if short { 2 } else { 11 };
    let mut peers = warm(server, contestants());
    let mut results = TASKS.map(|tasks| Results::new(tasks, &peers));
    for round in 0..rounds {
        for results in &mut results {
            let pairs = results.pairs() / if short { 8 } else { 1 };
            for place in 0..peers.len() {
                // We rotate the order, or a contestant would always run after
                // the same one.
                let at = (place + round) % peers.len();
                let sample = measure(server, &mut peers[at].1, results.tasks, pairs);
                results.samples[at].1.push(sample);
            }
        }
    }
    let server = server.name();
    let mut tables: Vec<_> = results.iter().map(|all| all.table(&server)).collect();
    tables.push(queue_table(&server, &results));
    tables
}

fn contestants() -> Vec<Contestant> {
    let threads = [1, 2].into_iter();
    let on_tokio = threads.flat_map(|threads| {
        [OURS, FAIR, DRIVER, RSLOCK].map(|contestant| contestant.with_threads(threads))
    });
    on_tokio.chain([THREADS, ENGINE]).collect()
}

/// What a pair took and cost.
struct Sample {
    micros: f64,
    client_cpu: f64,
    server_cpu: f64,
    commands: f64,
    allocations: f64,
}

fn measure(server: &Server, peer: &mut Peer, tasks: u32, pairs: u32) -> Sample {
    let served = spent(server);
    let used = peer.numbers("self");
    let start = Instant::now();
    peer.ask(&format!("pairs many {tasks} {pairs}"));
    let took = start.elapsed();
    let used_after = peer.numbers("self");
    let served_after = spent(server);
    let per_pair = |total: f64| total / f64::from(pairs);
    Sample {
        micros: per_pair(took.as_secs_f64() * 1e6),
        client_cpu: per_pair(used_after[0] - used[0]),
        server_cpu: per_pair(served_after.0 - served.0),
        // Our own three reads of the statistics are counted, too.
        commands: per_pair(served_after.1 - served.1 - 3.0),
        allocations: per_pair(used_after[2] - used[2]),
    }
}

/// The samples of every contestant with one number of tasks.
struct Results {
    tasks: u32,
    samples: Vec<(Contestant, Vec<Sample>)>,
}

impl Results {
    fn new(tasks: u32, peers: &[(Contestant, Peer)]) -> Self {
        let samples = peers
            .iter()
            .map(|(contestant, _)| (*contestant, Vec::new()));
        Self {
            tasks,
            samples: samples.collect(),
        }
    }

    /// Returns the pairs of a round, which take a quarter of a second.
    fn pairs(&self) -> u32 {
        match self.tasks {
            1 => 3072,
            8 => 12_288,
            _ => 24_576,
        }
    }

    /// Returns a quantity of one contestant, by round.
    fn values(&self, wanted: Contestant, quantity: fn(&Sample) -> f64) -> Vec<f64> {
        let mut all = self.samples.iter();
        let found = all.find(|(contestant, _)| *contestant == wanted);
        let (_, samples) = found.expect("a contestant");
        samples.iter().map(quantity).collect()
    }

    /// Returns a row per contestant.
    fn rows(&self, row: impl Fn(Contestant) -> Vec<f64>) -> Vec<Vec<f64>> {
        let all = self.samples.iter();
        all.map(|(contestant, _)| row(*contestant)).collect()
    }

    fn quantity(&self, title: &str, quantity: fn(&Sample) -> f64) -> Column {
        Column::medians(title, self.rows(|one| self.values(one, quantity)))
    }

    fn cost(&self, title: &str, cost: fn(&Sample) -> f64) -> Column {
        Column::ranges(title, self.rows(|one| self.values(one, cost)))
    }

    /// Returns how many times as fast every contestant is as another one with
    /// as many threads.
    fn speed_of(&self, title: &str, other: Contestant) -> Column {
        Column::ranges(
            title,
            self.rows(|one| ratios(&self.times(other.matching(one)), &self.times(one))),
        )
    }

    /// Returns how many times as long every contestant takes as another one
    /// with as many threads.
    fn time_of(&self, title: &str, other: Contestant) -> Column {
        Column::ranges(
            title,
            self.rows(|one| ratios(&self.times(one), &self.times(other.matching(one)))),
        )
    }

    fn times(&self, contestant: Contestant) -> Vec<f64> {
        self.values(contestant, |sample| sample.micros)
    }

    fn table(&self, server: &str) -> Table {
        let columns = match self.tasks {
            1 => vec![
                self.quantity("µs", |sample| sample.micros),
                self.time_of("of the driver's time", DRIVER),
                self.time_of("of rslock's", RSLOCK),
                self.time_of("of a `Mutex` task's", OURS),
            ],
            _ => vec![
                self.quantity("pairs/s", |sample| 1e6 / sample.micros),
                self.speed_of("of the driver's", DRIVER),
                self.speed_of("of the engine's", ENGINE),
                self.cost("client CPU, µs", |sample| sample.client_cpu),
                self.cost("server CPU, µs", |sample| sample.server_cpu),
                self.quantity("commands", |sample| sample.commands),
                self.quantity("allocations", |sample| sample.allocations),
            ],
        };
        let names = self.samples.iter();
        let names = names.map(|(contestant, _)| contestant.full_name());
        let tasks = match self.tasks {
            1 => "one task".to_owned(),
            tasks => format!("{tasks} tasks"),
        };
        Table::with_columns(
            format!("many-{}-{server}", self.tasks),
            format!("{server}, {tasks}"),
            names.collect(),
            columns,
        )
    }
}

/// Compares what a queued lock and a mutex cost.
fn queue_table(server: &str, results: &[Results]) -> Table {
    let mut names = Vec::new();
    let mut client = Vec::new();
    let mut cpu = Vec::new();
    for results in results {
        for threads in [1, 2] {
            let fair = FAIR.with_threads(threads);
            let mutex = OURS.with_threads(threads);
            let ratio = |quantity| {
                ratios(
                    &results.values(fair, quantity),
                    &results.values(mutex, quantity),
                )
            };
            names.push(format!("tasks: {}, {threads}t", results.tasks));
            client.push(ratio(|sample| sample.client_cpu));
            cpu.push(ratio(|sample| sample.server_cpu));
        }
    }
    Table::with_columns(
        format!("many-fair-{server}"),
        format!("{server}, FairMutex divided by Mutex"),
        names,
        vec![
            Column::ranges("client CPU", client),
            Column::ranges("server CPU", cpu),
        ],
    )
}

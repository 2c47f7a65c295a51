//! What is measured: each scenario, with its rounds interleaved.

mod hand;
mod held;
mod hot;
mod kinds;
mod many;
mod pair;
mod waiting;

use testkit::Server;

use crate::peer::{Contestant, Peer};
use crate::report::{Row, Table};

type Scenario = fn(&Server, bool) -> Vec<Table>;

/// By name.
pub(crate) const ALL: [(&str, Scenario); 7] = [
    ("pair", pair::pair),
    ("kinds", kinds::kinds),
    ("many", many::many),
    ("hand", hand::hand),
    ("hot", hot::hot),
    ("waiting", waiting::waiting),
    ("held", held::held),
];

/// Only when it is asked for: ten minutes.
pub(crate) const LONG: (&str, Scenario) = ("kept", held::kept);

/// What is also measured for the page on servers that can compare and delete by a command.
pub(crate) fn elsewhere(server: &Server) -> Vec<Table> {
    let mut tables = many::many_at_a_time(server, 5, &[64], 16_384);
    for table in &mut tables {
        table.name = format!("{}-{}", table.name, server.name());
        table.title = format!("{}, {}", table.title, server.name());
    }
    tables
}

/// What the server has done so far: processor time in microseconds, and commands.
fn spent(server: &Server) -> (f64, f64) {
    let cpu = server.info("used_cpu_user") + server.info("used_cpu_sys");
    (cpu * 1e6, server.info("total_commands_processed"))
}

/// Starts all, each warmed up.
fn warm(server: &Server, contestants: Vec<Contestant>) -> Vec<(Contestant, Peer)> {
    let started = contestants.into_iter().map(|contestant| {
        let mut peer = contestant.start(server.port());
        peer.ask("pairs warm 4 2000");
        (contestant, peer)
    });
    started.collect()
}

fn rows(contestants: &[(Contestant, Peer)]) -> Vec<Row> {
    let names = contestants.iter().map(|(contestant, _)| contestant.name);
    names.map(row).collect()
}

fn row(name: impl Into<String>) -> Row {
    Row {
        name: name.into(),
        rounds: Vec::new(),
    }
}

fn position(contestants: &[(Contestant, Peer)], wanted: Contestant) -> Option<usize> {
    contestants
        .iter()
        .position(|(contestant, _)| *contestant == wanted)
}

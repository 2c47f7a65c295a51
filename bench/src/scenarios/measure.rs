//! Helpers of the scenarios.

use testkit::{Server, ServerExt};

use crate::peer::{Contestant, Peer};
use crate::report::Row;

/// Returns what the server has used so far: CPU time in microseconds, and the
/// number of commands.
pub(super) fn spent(server: &Server) -> (f64, f64) {
    let cpu = server.info("used_cpu_user") + server.info("used_cpu_sys");
    (cpu * 1e6, server.info("total_commands_processed"))
}

/// Starts all contestants, and warms them up.
pub(super) fn warm(server: &Server, contestants: Vec<Contestant>) -> Vec<(Contestant, Peer)> {
    let started = contestants.into_iter().map(|contestant| {
        let mut peer = contestant.start(server.port());
        peer.ask("pairs warm 4 2000");
        (contestant, peer)
    });
    started.collect()
}

pub(super) fn rows(contestants: &[(Contestant, Peer)]) -> Vec<Row> {
    let names = contestants.iter().map(|(contestant, _)| contestant.name);
    names.map(row).collect()
}

pub(super) fn row(name: impl Into<String>) -> Row {
    Row {
        name: name.into(),
        rounds: Vec::new(),
    }
}

pub(super) fn position(contestants: &[(Contestant, Peer)], wanted: Contestant) -> Option<usize> {
    contestants
        .iter()
        .position(|(contestant, _)| *contestant == wanted)
}

//! An uncontended pair of acquire and release: its cost to the server and its
//! latency.

use std::time::Instant;

use testkit::Server;

use super::measure::{position, rows, spent, warm};
use crate::peer::{Contestant, OURS};
use crate::report::Table;

/// Measures uncontended pairs, one at a time.
pub(super) fn pair(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, count) = if short { (3, 300) } else { (9, 2000) };
    let mut contestants = warm(server, Contestant::all());
    let baseline = position(&contestants, OURS);
    let table = |name: &str, title: &str| Table::new(name, title, baseline, rows(&contestants));
    let mut tables = [
        table("pair-server", "Uncontended pair: server CPU time, µs"),
        table("pair-commands", "Uncontended pair: commands executed"),
        table("pair-latency", "Uncontended pair: latency, µs"),
    ];
    for _ in 0..rounds {
        for (at, (_, peer)) in contestants.iter_mut().enumerate() {
            let (before, start) = (spent(server), Instant::now());
            peer.ask(&format!("pairs pair 1 {count}"));
            let (took, after) = (start.elapsed(), spent(server));
            let pairs = f64::from(count);
            tables[0].rows[at].rounds.push((after.0 - before.0) / pairs);
            tables[1].rows[at]
                .rounds
                .push((after.1 - before.1 - 4.0) / pairs);
            tables[2].rows[at]
                .rounds
                .push(took.as_secs_f64() * 1e6 / pairs);
        }
    }
    tables.into()
}

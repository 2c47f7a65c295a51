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
    let mut cost = rows(&contestants);
    let mut commands = rows(&contestants);
    let mut latency = rows(&contestants);
    for _ in 0..rounds {
        for (at, (_, peer)) in contestants.iter_mut().enumerate() {
            let (before, start) = (spent(server), Instant::now());
            peer.ask(&format!("pairs pair 1 {count}"));
            let (took, after) = (start.elapsed(), spent(server));
            let pairs = f64::from(count);
            cost[at].rounds.push((after.0 - before.0) / pairs);
            commands[at].rounds.push((after.1 - before.1 - 4.0) / pairs);
            latency[at].rounds.push(took.as_secs_f64() * 1e6 / pairs);
        }
    }
    let table = |name: &str, title: &str, rows| Table::new(name, title, baseline, rows);
    vec![
        table("pair-server", "Uncontended pair: server CPU time, µs", cost),
        table(
            "pair-commands",
            "Uncontended pair: commands executed",
            commands,
        ),
        table("pair-latency", "Uncontended pair: latency, µs", latency),
    ]
}

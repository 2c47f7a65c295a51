//! The server's cost of each kind of lock without contention, relative to a
//! mutex.

use testkit::{Server, ServerExt};

use super::measure::{position, rows, spent, warm};
use crate::peer::{KINDS, OURS};
use crate::report::Table;

/// Measures different locks of every kind, one at a time and 64 in flight.
pub(super) fn kinds(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, pairs) = if short { (2, 1024) } else { (7, 8192) };
    let mut contestants = warm(server, KINDS.to_vec());
    let ours = position(&contestants, OURS);
    let mut tables = Vec::new();
    for tasks in [1, 64] {
        let (mut cost, mut commands) = (rows(&contestants), rows(&contestants));
        for _ in 0..rounds {
            for (at, (contestant, peer)) in contestants.iter_mut().enumerate() {
                let is_ours = contestant.name.starts_with("leasehold");
                let count = if is_ours { pairs } else { pairs / 4 };
                let before = spent(server);
                peer.ask(&format!("pairs kinds {tasks} {count}"));
                let after = spent(server);
                let pairs = f64::from(count);
                cost[at].rounds.push((after.0 - before.0) / pairs);
                commands[at].rounds.push((after.1 - before.1 - 4.0) / pairs);
            }
        }
        let server = server.name();
        tables.push(Table::new(
            format!("kinds-{tasks}-{server}"),
            format!("{server}, every kind, {tasks} in flight: server CPU time per pair, µs"),
            ours,
            cost,
        ));
        tables.push(Table::new(
            format!("kinds-{tasks}-{server}-commands"),
            format!("{server}, every kind, {tasks} in flight: commands per pair"),
            ours,
            commands,
        ));
    }
    tables
}

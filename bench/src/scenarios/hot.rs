//! A contended lock.

use testkit::Server;

use super::measure::row;
use crate::peer::{Contestant, FAIR, FAIR_NO_HANDOFF, OURS, OURS_NO_HANDOFF};
use crate::report::Table;

/// Measures a contended lock with and without local hand-off.
pub(super) fn hot(server: &Server, short: bool) -> Vec<Table> {
    let mut tables = hot_of(server, short, "hot", [OURS_NO_HANDOFF, OURS]);
    tables.extend(hot_of(server, short, "hot-fair", [FAIR_NO_HANDOFF, FAIR]));
    tables
}

fn hot_of(server: &Server, short: bool, prefix: &str, kinds: [Contestant; 2]) -> Vec<Table> {
    let (rounds, millis) = if short { (1, 500) } else { (3, 10_000) };
    let seconds = f64::from(millis) / 1000.0;
    let mut one: Vec<_> = kinds.iter().map(|kind| row(kind.name)).collect();
    let (mut eight, mut share) = (one.clone(), one.clone());
    for _ in 0..rounds {
        for (at, kind) in kinds.iter().enumerate() {
            let held = hold_hot(server, kind, 1, &format!("hot hot:{prefix} 256 {millis}"));
            one[at].rounds.push(held[0] / seconds);
            let held = hold_hot(server, kind, 8, &format!("hot hot:{prefix} 32 {millis}"));
            let all: f64 = held.iter().sum();
            eight[at].rounds.push(all / seconds);
            let fewest = held.iter().copied().fold(f64::MAX, f64::min);
            share[at].rounds.push(fewest / (all / 8.0));
        }
    }
    let table = |name: &str, title: &str, rows| {
        Table::new(format!("{prefix}-{name}"), title, Some(0), rows)
    };
    vec![
        table(
            "1x256",
            "One lock, 256 tasks of one process: acquisitions per second",
            one,
        ),
        table(
            "8x32",
            "One lock, 8 processes of 32 tasks: acquisitions per second",
            eight,
        ),
        table(
            "share",
            "One lock, 8 processes of 32 tasks: share of the least served process (1 is even)",
            share,
        ),
    ]
}

/// Returns how often each process acquired the lock.
fn hold_hot(server: &Server, kind: &Contestant, processes: u32, command: &str) -> Vec<f64> {
    let mut peers: Vec<_> = (0..processes).map(|_| kind.start(server.port())).collect();
    for peer in &mut peers {
        peer.tell(command);
    }
    let held = peers.iter_mut().map(|peer| peer.response()[0].parse());
    held.map(|held| held.expect("a number")).collect()
}

//! One lock that everybody wants.

use testkit::Server;

use super::row;
use crate::peer::{Contestant, FAIR, FAIR_ALONE, OURS, OURS_ALONE};
use crate::report::Table;

/// One lock that everybody wants, with and without hand-on.
pub(super) fn hot(server: &Server, short: bool) -> Vec<Table> {
    let mut tables = hot_of(server, short, "hot", [OURS_ALONE, OURS]);
    tables.extend(hot_of(server, short, "hot-fair", [FAIR_ALONE, FAIR]));
    tables
}

fn hot_of(server: &Server, short: bool, word: &str, kinds: [Contestant; 2]) -> Vec<Table> {
    let (rounds, millis) = if short { (1, 500) } else { (3, 10_000) };
    let seconds = f64::from(millis) / 1000.0;
    let mut one: Vec<_> = kinds.iter().map(|kind| row(kind.name)).collect();
    let (mut eight, mut least) = (one.clone(), one.clone());
    for _ in 0..rounds {
        for (at, kind) in kinds.iter().enumerate() {
            let held = hold_hot(server, kind, 1, &format!("hot hot:{word} 256 {millis}"));
            one[at].rounds.push(held[0] / seconds);
            let held = hold_hot(server, kind, 8, &format!("hot hot:{word} 32 {millis}"));
            let all: f64 = held.iter().sum();
            eight[at].rounds.push(all / seconds);
            let fewest = held.iter().copied().fold(f64::MAX, f64::min);
            least[at].rounds.push(fewest / (all / 8.0));
        }
    }
    let table =
        |name: &str, title: &str, rows| Table::new(format!("{word}-{name}"), title, Some(0), rows);
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
            least,
        ),
    ]
}

/// How often each of so many processes held the lock.
fn hold_hot(server: &Server, kind: &Contestant, processes: u32, order: &str) -> Vec<f64> {
    let mut peers: Vec<_> = (0..processes).map(|_| kind.start(server.port())).collect();
    for peer in &mut peers {
        peer.tell(order);
    }
    let held = peers.iter_mut().map(|peer| peer.answer()[0].parse());
    held.map(|held| held.expect("a number")).collect()
}

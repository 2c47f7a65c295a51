//! From one process to another.

use testkit::Server;

use super::{position, rows, warm};
use crate::peer::{Contestant, OURS};
use crate::report::Table;

/// From the release in one process to the holding in another.
pub(super) fn hand(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, count) = if short { (1, 20) } else { (5, 60) };
    let waiting = Contestant::all()
        .into_iter()
        .filter(|contestant| !contestant.bare);
    let mut sides = warm(server, waiting.collect());
    let mut others: Vec<_> = sides
        .iter()
        .map(|(contestant, _)| contestant.start(server.port()))
        .collect();
    let baseline = position(&sides, OURS);
    let table = |name: &str, title: &str| Table::new(name, title, baseline, rows(&sides));
    let mut tables = [
        table("hand-p50", "Hand-over between processes, p50, µs"),
        table("hand-p99", "Hand-over between processes, p99, µs"),
    ];
    for round in 0..rounds {
        for (at, ((_, one), other)) in sides.iter_mut().zip(&mut others).enumerate() {
            let order = format!("hand hand:{at}:{round} {count}");
            one.tell(&order);
            other.tell(&order);
            let (one, other) = (one.answer(), other.answer());
            let gaps = gaps(&one, &other);
            for (table, of_hundred) in tables.iter_mut().zip([50, 99]) {
                let gap = gaps[(gaps.len() * of_hundred / 100).min(gaps.len() - 1)];
                table.rows[at].rounds.push(gap / 1000.0);
            }
        }
    }
    tables.into()
}

/// The times between a release by one side and the next holding by the other, in order.
fn gaps(one: &[String], other: &[String]) -> Vec<f64> {
    let times = |lines: &[String], side: u8| {
        let parse = |line: &String| {
            let (taken, released) = line.split_once(' ').expect("two times");
            (
                taken.parse::<i64>().expect("a time"),
                released.parse::<i64>().expect("a time"),
                side,
            )
        };
        lines.iter().map(parse).collect::<Vec<_>>()
    };
    let mut all = times(one, 0);
    all.extend(times(other, 1));
    all.sort_unstable();
    let passed = all.windows(2).filter(|pair| pair[0].2 != pair[1].2);
    let mut gaps: Vec<_> = passed.map(|pair| (pair[1].0 - pair[0].1) as f64).collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

//! Hand-over latency between processes.

use testkit::Server;

use super::measure::{position, rows, warm};
use crate::peer::{Contestant, OURS};
use crate::report::Table;

/// Measures the time from a release in one process to the acquisition in
/// another.
pub(super) fn hand(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, count) = if short { (1, 10) } else { (5, 60) };
    let waiting = Contestant::all()
        .into_iter()
        .filter(|contestant| !contestant.bare);
    let mut sides = warm(server, waiting.collect());
    let mut others: Vec<_> = sides
        .iter()
        .map(|(contestant, _)| contestant.start(server.port()))
        .collect();
    let baseline = position(&sides, OURS);
    let mut percentiles = [50, 99].map(|percentile| (percentile, rows(&sides)));
    for round in 0..rounds {
        for (at, ((_, one), other)) in sides.iter_mut().zip(&mut others).enumerate() {
            let command = format!("hand hand:{at}:{round} {count}");
            one.tell(&command);
            other.tell(&command);
            let (one, other) = (one.response(), other.response());
            let gaps = gaps(&one, &other);
            for (percentile, rows) in &mut percentiles {
                let gap = gaps[(gaps.len() * *percentile / 100).min(gaps.len() - 1)];
                rows[at].rounds.push(gap / 1000.0);
            }
        }
    }
    let tables = percentiles.map(|(percentile, rows)| {
        let title = format!("Hand-over between processes, p{percentile}, µs");
        Table::new(format!("hand-p{percentile}"), title, baseline, rows)
    });
    tables.into()
}

/// Returns the sorted times between a release by one side and the next
/// acquisition by the other.
fn gaps(one: &[String], other: &[String]) -> Vec<f64> {
    let times = |lines: &[String], side: u8| {
        let parse = |line: &String| {
            let (acquired, released) = line.split_once(' ').expect("two times");
            (
                acquired.parse::<i64>().expect("a time"),
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

//! Concurrent acquisitions of different locks over one connection.

use std::time::Instant;

use testkit::{Server, ServerExt};

use super::measure::{position, rows, spent, warm};
use crate::peer::{Contestant, ENGINE, OURS};
use crate::report::Table;

/// Measures different numbers of locks at the same time.
pub(super) fn many(server: &Server, short: bool) -> Vec<Table> {
    match short {
        true => many_at_a_time(server, 2, &[64], 2048),
        false => many_at_a_time(server, 5, &[1, 16, 64, 256], 16_384),
    }
}

/// Measures throughput and the server's cost. That cost is visible only with
/// full pipelines: with one lock at a time, the server mostly reads and writes.
pub(super) fn many_at_a_time(
    server: &Server,
    rounds: u32,
    sizes: &[u32],
    pairs: u32,
) -> Vec<Table> {
    let mut contestants = warm(server, Contestant::all());
    let (engine, ours) = (position(&contestants, ENGINE), position(&contestants, OURS));
    let mut tables = Vec::new();
    for tasks in sizes {
        let (mut speed, mut cost) = (rows(&contestants), rows(&contestants));
        let mut batch = rows(&contestants);
        for _ in 0..rounds {
            for (at, (contestant, peer)) in contestants.iter_mut().enumerate() {
                let quick = contestant.name.starts_with("leasehold") || contestant.bare;
                let count = if quick { pairs } else { pairs / 8 };
                let reads = server.info("total_reads_processed");
                let (before, start) = (spent(server), Instant::now());
                peer.ask(&format!("pairs many {tasks} {count}"));
                let took = start.elapsed().as_secs_f64();
                speed[at].rounds.push(f64::from(count) / took);
                let after = spent(server);
                cost[at]
                    .rounds
                    .push((after.0 - before.0) / f64::from(count));
                let reads = server.info("total_reads_processed") - reads;
                batch[at].rounds.push((after.1 - before.1) / reads);
            }
        }
        tables.push(Table::new(
            format!("many-{tasks}"),
            format!("Different locks, {tasks} at a time: pairs per second"),
            engine,
            speed,
        ));
        tables.push(Table::new(
            format!("many-{tasks}-server"),
            format!("Different locks, {tasks} at a time: server CPU time per pair, µs"),
            ours,
            cost,
        ));
        tables.push(Table::new(
            format!("many-{tasks}-together"),
            format!("Different locks, {tasks} at a time: commands executed per read of the socket"),
            None,
            batch,
        ));
    }
    tables
}

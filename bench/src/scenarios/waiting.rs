//! A lock with many waiting processes.

use std::time::{Duration, Instant};

use testkit::{Server, ServerExt};

use super::measure::{row, spent};
use crate::peer::{FAIR, OURS};
use crate::report::{Row, Table};

/// Measures the cost of each hand-over of a lock with many waiting processes.
pub(super) fn waiting(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, sizes): (_, &[usize]) = if short {
        (1, &[10])
    } else {
        (3, &[10, 100, 500])
    };
    let max = sizes[sizes.len() - 1];
    let mut holder = FAIR.start(server.port());
    let mut peers: Vec<_> = (0..max).map(|_| FAIR.start(server.port())).collect();
    let named = |size: &usize| row(format!("{size} processes waiting"));
    let mut requests: Vec<Row> = sizes.iter().map(named).collect();
    let mut times = requests.clone();
    for _ in 0..rounds {
        for (at, size) in sizes.iter().enumerate() {
            holder.ask("hold queue 1");
            for peer in &mut peers[..*size] {
                peer.tell("once queue:0");
            }
            while queue_length(server) < *size {
                std::thread::sleep(Duration::from_millis(20));
            }
            let (before, start) = (scripts_called(server), Instant::now());
            holder.ask("drop");
            for peer in &mut peers[..*size] {
                peer.response();
            }
            let (took, hand_overs) = (start.elapsed(), *size as f64);
            requests[at]
                .rounds
                .push((scripts_called(server) - before) / hand_overs);
            times[at].rounds.push(took.as_secs_f64() * 1e6 / hand_overs);
        }
    }
    drop(peers);
    let idle = idle_cost(server, max, if short { 1 } else { 10 });
    let table = |name: &str, title: &str, rows| Table::new(name, title, None, rows);
    vec![
        table(
            "waiting-requests",
            "FairMutex with many waiting processes: requests per hand-over, heartbeats included",
            requests,
        ),
        table(
            "waiting-time",
            "FairMutex with many waiting processes: hand-over latency, µs",
            times,
        ),
        table(
            "waiting-burden",
            &format!("Cost to the server of {max} waiting processes"),
            idle,
        ),
    ]
}

/// Returns the server's cost of each process that only waits.
fn idle_cost(server: &Server, processes: usize, seconds: u32) -> Vec<Row> {
    let mut all = Vec::new();
    for kind in [OURS, FAIR] {
        let mut holder = kind.start(server.port());
        holder.ask("hold burden 1");
        let memory = server.info("used_memory");
        let mut peers: Vec<_> = (0..processes).map(|_| kind.start(server.port())).collect();
        for peer in &mut peers {
            peer.tell("once burden:0");
        }
        std::thread::sleep(Duration::from_secs(2));
        let (waiting, before) = (server.info("used_memory"), spent(server));
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let after = spent(server);
        let each = |total: f64| total / processes as f64;
        let figures = [
            ("bytes", each(waiting - memory)),
            (
                "CPU per second, µs",
                each(after.0 - before.0) / f64::from(seconds),
            ),
        ];
        for (what, figure) in figures {
            let mut row = row(format!("{}, per process: {what}", kind.name));
            row.rounds.push(figure);
            all.push(row);
        }
        holder.ask("drop");
        for peer in &mut peers {
            peer.response();
        }
    }
    all
}

/// Returns the number of queue entries on the server.
fn queue_length(server: &Server) -> usize {
    let keys = server.ask(&["KEYS", "leasehold:queue:*"]);
    let length = |key: &testkit::Reply| server.ask(&["ZCARD", key.text()]).int();
    let lengths = keys.list().iter().map(length);
    usize::try_from(lengths.sum::<i64>()).expect("a length")
}

/// Returns the number of script calls: every request for a queued lock is one.
fn scripts_called(server: &Server) -> f64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let called = stats.text().lines().filter_map(|line| {
        let rest = line.strip_prefix("cmdstat_evalsha:calls=")?;
        rest.split(',').next()?.parse::<f64>().ok()
    });
    called.sum()
}

//! What is measured: each scenario, with its rounds interleaved.

use std::time::Instant;

use testkit::Server;

use crate::peer::{Contestant, ENGINE, FAIR, OURS, Peer};
use crate::report::{Row, Table};

type Scenario = fn(&Server, bool) -> Vec<Table>;

/// By name.
pub(crate) const ALL: [(&str, Scenario); 5] = [
    ("pair", pair),
    ("many", many),
    ("hand", hand),
    ("hot", hot),
    ("held", held),
];

/// What the server has done so far: processor time in microseconds, and commands.
fn spent(server: &Server) -> (f64, f64) {
    let cpu = server.info("used_cpu_user") + server.info("used_cpu_sys");
    (cpu * 1e6, server.info("total_commands_processed"))
}

/// Starts all, each warmed up.
fn warm(server: &Server, contestants: Vec<Contestant>) -> Vec<(Contestant, Peer)> {
    let started = contestants.into_iter().map(|contestant| {
        let mut peer = contestant.start(server.port());
        peer.ask("pairs warm 4 2000");
        (contestant, peer)
    });
    started.collect()
}

fn rows(contestants: &[(Contestant, Peer)]) -> Vec<Row> {
    let row = |(contestant, _): &(Contestant, Peer)| Row {
        name: contestant.name.to_owned(),
        rounds: Vec::new(),
    };
    contestants.iter().map(row).collect()
}

fn position(contestants: &[(Contestant, Peer)], wanted: Contestant) -> Option<usize> {
    contestants
        .iter()
        .position(|(contestant, _)| *contestant == wanted)
}

/// An uncontended lock and release, one at a time.
fn pair(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, count) = if short { (3, 300) } else { (9, 2000) };
    let mut contestants = warm(server, Contestant::all());
    let baseline = position(&contestants, OURS);
    let table = |name: &str, title: &str| Table {
        name: name.to_owned(),
        title: title.to_owned(),
        baseline,
        rows: rows(&contestants),
    };
    let mut tables = [
        table(
            "pair-server",
            "Uncontended pair: the server's processor time, µs",
        ),
        table(
            "pair-commands",
            "Uncontended pair: commands that the server executes",
        ),
        table(
            "pair-latency",
            "Uncontended pair: time until it is released, µs",
        ),
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

/// Different locks at the same time. The server's own cost shows where its pipelines are full: one at a time, it is
/// mostly reading and writing.
fn many(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, sizes): (_, &[u32]) = if short {
        (2, &[64])
    } else {
        (5, &[1, 16, 64, 256])
    };
    let mut contestants = warm(server, Contestant::all());
    let (engine, ours) = (position(&contestants, ENGINE), position(&contestants, OURS));
    let mut tables = Vec::new();
    for tasks in sizes {
        let (mut speed, mut cost) = (rows(&contestants), rows(&contestants));
        for _ in 0..rounds {
            for (at, (contestant, peer)) in contestants.iter_mut().enumerate() {
                let quick = contestant.name.starts_with("leasehold") || contestant.bare;
                let count = (if quick { 16_384 } else { 2048 }) / if short { 8 } else { 1 };
                let (before, start) = (spent(server).0, Instant::now());
                peer.ask(&format!("pairs many {tasks} {count}"));
                let took = start.elapsed().as_secs_f64();
                speed[at].rounds.push(f64::from(count) / took);
                cost[at]
                    .rounds
                    .push((spent(server).0 - before) / f64::from(count));
            }
        }
        tables.push(Table {
            name: format!("many-{tasks}"),
            title: format!("Different locks, {tasks} at a time: pairs a second"),
            baseline: engine,
            rows: speed,
        });
        tables.push(Table {
            name: format!("many-{tasks}-server"),
            title: format!(
                "Different locks, {tasks} at a time: the server's processor time a pair, µs"
            ),
            baseline: ours,
            rows: cost,
        });
    }
    tables
}

/// From the release in one process to the holding in another.
fn hand(server: &Server, short: bool) -> Vec<Table> {
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
    let table = |name: &str, title: &str| Table {
        name: name.to_owned(),
        title: title.to_owned(),
        baseline,
        rows: rows(&sides),
    };
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

/// One lock that everybody wants.
fn hot(server: &Server, short: bool) -> Vec<Table> {
    let (rounds, millis) = if short { (1, 500) } else { (3, 4000) };
    let kinds = [OURS, FAIR];
    let row = |name: &str| Row {
        name: name.to_owned(),
        rounds: Vec::new(),
    };
    let mut one: Vec<_> = kinds.iter().map(|kind| row(kind.name)).collect();
    let (mut eight, mut least) = (one.clone(), one.clone());
    for _ in 0..rounds {
        for (at, kind) in kinds.iter().enumerate() {
            let seconds = f64::from(millis) / 1000.0;
            let mut peer = kind.start(server.port());
            let held = peer.numbers(&format!("hot hot:{at} 256 {millis}"))[0];
            one[at].rounds.push(held / seconds);
            let mut peers: Vec<_> = (0..8).map(|_| kind.start(server.port())).collect();
            for peer in &mut peers {
                peer.tell(&format!("hot hot:{at} 32 {millis}"));
            }
            let held = peers
                .iter_mut()
                .map(|peer| peer.answer()[0].parse::<f64>().expect("a number"));
            let held: Vec<_> = held.collect();
            let all: f64 = held.iter().sum();
            eight[at].rounds.push(all / seconds);
            let fewest = held.iter().copied().fold(f64::MAX, f64::min);
            least[at].rounds.push(fewest / (all / 8.0));
        }
    }
    let table = |name: &str, title: &str, rows| Table {
        name: name.to_owned(),
        title: title.to_owned(),
        baseline: None,
        rows,
    };
    vec![
        table(
            "hot-1x256",
            "One lock, 256 tasks of one process: holdings a second",
            one,
        ),
        table(
            "hot-8x32",
            "One lock, 8 processes of 32 tasks: holdings a second",
            eight,
        ),
        table(
            "hot-share",
            "One lock, 8 processes of 32 tasks: share of the least served, 1 being even",
            least,
        ),
    ]
}

/// Many leases that one client keeps.
fn held(server: &Server, short: bool) -> Vec<Table> {
    let (seconds, sizes): (_, &[u32]) = if short {
        (2, &[1000])
    } else {
        (30, &[1000, 10_000, 100_000])
    };
    let row = |what: &str| Row {
        name: what.to_owned(),
        rounds: Vec::new(),
    };
    let tables = sizes.iter().map(|count| {
        server.tell(&["FLUSHALL"]);
        let mut peer = OURS.start(server.port());
        let mut probe = OURS.start(server.port());
        let quiet = probe.numbers(&format!("latency probe {}", seconds * 1000 / 3));
        let memory = server.info("used_memory");
        let own = peer.numbers("self")[1];
        let valid = peer.numbers(&format!("hold held {count}"))[0];
        assert_eq!(valid, f64::from(*count), "some were lost at once");
        let per_lock = (server.info("used_memory") - memory) / f64::from(*count);
        let in_client = (peer.numbers("self")[1] - own) * 1024.0 / f64::from(*count);
        let bare = bare_key(server);
        let before = peer.numbers("self")[0];
        let beside = probe.numbers(&format!("latency probe {}", seconds * 1000));
        let cpu = (peer.numbers("self")[0] - before) / (f64::from(seconds) * 1e6);
        let mut rows = vec![
            row("client's processor, % of a core"),
            row("server's memory, bytes a lock"),
            row("the same, of a bare key"),
            row("client's memory, bytes a lock"),
            row("another's pair, p99, µs"),
            row("the same without them"),
        ];
        let figures = [
            cpu * 100.0,
            per_lock,
            bare,
            in_client,
            beside[1] / 1000.0,
            quiet[1] / 1000.0,
        ];
        for (row, figure) in rows.iter_mut().zip(figures) {
            row.rounds.push(figure);
        }
        Table {
            name: format!("held-{count}"),
            title: format!("{count} leases of 30 s held by one client"),
            baseline: None,
            rows,
        }
    });
    tables.collect()
}

/// What a `SET NX PX` key with a name as long and a value of 40 bytes takes.
fn bare_key(server: &Server) -> f64 {
    const KEYS: u32 = 10_000;
    let before = server.info("used_memory");
    let mut connection = server.connect();
    for number in 0..KEYS {
        let name = format!("bare:held:{number}");
        let value = "0123456789abcdef0123456789abcdef01234567";
        connection
            .ask(&["SET", &name, value, "NX", "PX", "600000"])
            .expect("an answer");
    }
    (server.info("used_memory") - before) / f64::from(KEYS)
}

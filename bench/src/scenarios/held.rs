//! The cost of holding many leases.

use testkit::{Server, ServerExt};

use super::measure::{row, spent};
use crate::peer::{Contestant, FAIR, OURS, Peer};
use crate::report::{Row, Table};

/// Measures many leases that one client renews.
pub(super) fn held(server: &Server, short: bool) -> Vec<Table> {
    let (seconds, sizes): (_, &[u32]) = if short {
        (2, &[1000])
    } else {
        (30, &[1000, 10_000, 100_000])
    };
    let ours = sizes
        .iter()
        .map(|count| keep(server, OURS, *count, seconds));
    let mut tables: Vec<_> = ours.collect();
    let mut fair = keep(server, FAIR, 1000 * if short { 1 } else { 10 }, seconds);
    fair.name = "held-fair".to_owned();
    tables.push(fair);
    tables
}

/// Measures 100,000 leases for ten minutes.
pub(super) fn kept(server: &Server, short: bool) -> Vec<Table> {
    let seconds = if short { 20 } else { 600 };
    let mut table = keep(server, OURS, 100_000, seconds);
    table.name = "kept".to_owned();
    vec![table]
}

fn keep(server: &Server, kind: Contestant, count: u32, seconds: u32) -> Table {
    server.tell(&["FLUSHALL"]);
    let mut peer = kind.start(server.port());
    let mut probe = OURS.start(server.port());
    let (quiet, quiet_cpu) = probe_latency(server, &mut probe, seconds.min(60).div_ceil(3));
    let memory = server.info("used_memory");
    let own = peer.numbers("self")[1];
    let valid = peer.numbers(&format!("hold held {count}"))[0];
    assert_eq!(valid, f64::from(count), "some leases were lost immediately");
    let per_lock = (server.info("used_memory") - memory) / f64::from(count);
    let in_client = (peer.numbers("self")[1] - own) * 1024.0 / f64::from(count);
    let bare = bare_key(server);
    let before = peer.numbers("self")[0];
    let (busy, busy_cpu) = probe_latency(server, &mut probe, seconds);
    let cpu = (peer.numbers("self")[0] - before) / (f64::from(seconds) * 1e6);
    let lost = f64::from(count) - peer.numbers("valid")[0];
    let figures = [
        ("lost", lost),
        ("client CPU, % of a core", cpu * 100.0),
        ("server CPU, % of a core", (busy_cpu - quiet_cpu) * 100.0),
        ("server memory, bytes per lock", per_lock),
        ("the same for a bare key", bare),
        ("client memory, bytes per lock", in_client),
        ("pair of another client, p99, µs", busy / 1000.0),
        ("the same without the leases", quiet / 1000.0),
    ];
    let rows = figures.into_iter().map(|(name, figure)| Row {
        rounds: vec![figure],
        ..row(name)
    });
    let title = format!(
        "{}: {count} leases of 30 s held by one client for {seconds} s",
        kind.name
    );
    Table::new(format!("held-{count}"), title, None, rows.collect())
}

/// Returns the p99 of another client's pairs in nanoseconds, and the CPU time
/// of the server as a share of a core.
fn probe_latency(server: &Server, probe: &mut Peer, seconds: u32) -> (f64, f64) {
    let before = spent(server).0;
    let times = probe.numbers(&format!("latency probe {}", seconds * 1000));
    let busy = (spent(server).0 - before) / (f64::from(seconds) * 1e6);
    (times[1], busy)
}

/// Returns the memory of a `SET NX PX` key with a name of the same length and a
/// value of 40 bytes.
fn bare_key(server: &Server) -> f64 {
    const KEYS: u32 = 10_000;
    let before = server.info("used_memory");
    let mut connection = server.connect();
    for number in 0..KEYS {
        let name = format!("bare:held:{number}");
        let value = "0123456789abcdef0123456789abcdef01234567";
        connection
            .ask(&["SET", &name, value, "NX", "PX", "600000"])
            .expect("a reply");
    }
    (server.info("used_memory") - before) / f64::from(KEYS)
}

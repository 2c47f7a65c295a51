//! The cost of the guard: the latency of a fenced transaction against the same
//! transaction without it.

use std::time::{Duration, Instant};

use leasehold_fence::Fence;
use testkit::{Database, DatabaseKind, Flavor, scaled};

use crate::support::store::Store;
use crate::support::{Folder, name, run};

/// Returns the median latency without and with the guard, interleaved.
async fn medians(url: &str, count: u64) -> (Duration, Duration) {
    let store = Store::open(url).await;
    store.create().await;
    let name = name();
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..i64::try_from(count).expect("a few") {
        for guarded in [false, true] {
            let fence = Fence::new(&name, u64::try_from(number / 100 + 1).expect("a token"));
            let start = Instant::now();
            store.write(&fence, 1, number, guarded).await.unwrap();
            times[usize::from(guarded)].push(start.elapsed());
        }
    }
    let [plain, fenced] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    (plain, fenced)
}

#[test]
#[ignore = "deep: measures latencies"]
fn guard_costs_less_than_two_plain_writes() {
    let mut rows = Vec::new();
    let mut measure = |resource: &str, url: &str| {
        let (plain, fenced) = run(medians(url, scaled(2000)));
        rows.push((resource.to_owned(), plain, fenced));
    };
    // With the default durability: every commit is synchronized.
    if let Some(database) = Database::start(DatabaseKind::Postgres, &[]) {
        measure("PostgreSQL", &database.url());
    }
    if let Some(database) = Database::start(DatabaseKind::Postgres, &["-c", "fsync=off"]) {
        measure("PostgreSQL, fsync=off", &database.url());
    }
    if let Some(database) = Database::start(DatabaseKind::MariaDb, &[]) {
        measure("MariaDB", &database.url());
    }
    let fast = ["--innodb-flush-log-at-trx-commit=0"];
    if let Some(database) = Database::start(DatabaseKind::MariaDb, &fast) {
        measure("MariaDB, no flush at commit", &database.url());
    }
    measure("SQLite, synchronous=off", &Folder::new().sqlite());
    let server = Flavor::one().start();
    measure("Redis", &format!("redis:{}", server.port()));
    println!("| resource | without | with the guard | ratio |\n|---|---|---|---|");
    for (resource, plain, fenced) in &rows {
        let micros = |time: &Duration| time.as_secs_f64() * 1e6;
        let ratio = fenced.as_secs_f64() / plain.as_secs_f64();
        println!(
            "| {resource} | {:.0} µs | {:.0} µs | {ratio:.2} |",
            micros(plain),
            micros(fenced)
        );
        assert!(ratio < 3.0, "{resource}: {ratio:.2}");
    }
}

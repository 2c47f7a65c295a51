//! The cost of the metrics: pairs of acquire and release with them, against the
//! same pairs without.
//!
//! Three clients of one process take turns: without an observer, with metrics,
//! and again without. The ratio of the two clients without shows the noise.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_metrics::Metrics;
use testkit::{Server, ServerExt, scaled};

use crate::scrape::Registry;
use crate::{connect, release, run, server};

/// The largest ratio that is accepted. It is far above the measured one,
/// because other programs use the machine.
const LIMIT: f64 = 1.15;

/// Acquires and releases `count` times in each of `tasks` tasks, each with its
/// own lock. Returns the time that it took.
async fn pairs(client: &Client, tasks: u64, count: u64) -> Duration {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            // A name with an id, so that its label is folded.
            let mutex = client.mutex(&format!("order:{task}"));
            tokio::spawn(async move {
                for _ in 0..count {
                    release(mutex.lock().await.unwrap()).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    start.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the times of a pair, and returns the ratios of the second and third
/// client to the first: each is the median of the rounds' ratios.
async fn compare(what: &str, clients: [&Client; 3], tasks: u64, count: u64) -> [f64; 2] {
    let rounds = scaled(if cfg!(debug_assertions) { 20 } else { 400 });
    let mut times = [const { Vec::new() }; 3];
    for round in 0..rounds {
        for turn in 0..3 {
            let at = usize::try_from((round + turn) % 3).unwrap();
            let took = pairs(clients[at], tasks, count).await;
            times[at].push(took.as_secs_f64() * 1e6 / (tasks * count) as f64);
        }
    }
    let ratio = |at: usize| {
        let both = times[at].iter().zip(&times[0]);
        median(both.map(|(with, without)| with / without).collect())
    };
    let ratios = [ratio(1), ratio(2)];
    let [off, on, _] = times.map(median);
    println!(
        "{what}: {off:.2} µs a pair without, {on:.2} µs with metrics; \
         ratio {:.4}, noise {:.4} ({rounds} rounds)",
        ratios[0], ratios[1]
    );
    ratios
}

/// Returns the commands that the server executes for `count` pairs.
async fn commands(server: &Server, client: &Client, count: u64) -> f64 {
    let before = server.info("total_commands_processed");
    pairs(client, 1, count).await;
    server.info("total_commands_processed") - before
}

#[test]
#[ignore = "deep: measures latencies"]
fn metrics_cost_little() {
    let (metrics, registry) = Registry::new(Metrics::builder());
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        // As an exporter does every few seconds.
        scope.spawn(|| {
            while !is_done() {
                registry.run_upkeep();
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        run(measure(metrics));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

async fn measure(metrics: Metrics) {
    let server = server();
    // Long leases: a renewal would add a command.
    let plain = || connect(server.port()).lease(Duration::from_secs(600));
    let off = plain().await.unwrap();
    let on = plain().observe(metrics.observer()).await.unwrap();
    let again = plain().await.unwrap();
    let clients = [&off, &on, &again];
    for client in clients {
        pairs(client, 16, 100).await;
    }
    let without = commands(&server, &off, 500).await;
    let with = commands(&server, &on, 500).await;
    println!("{} commands a pair", without / 500.0);
    assert_eq!(without, with);
    for (what, tasks, count) in [("one task", 1, 100), ("64 tasks", 64, 20)] {
        let [ratio, _] = compare(what, clients, tasks, count).await;
        // A debug build does not optimize the metrics.
        assert!(cfg!(debug_assertions) || ratio < LIMIT, "{what}: {ratio}");
    }
}

//! The blocking API: threads, runtimes, callbacks, and its cost.

use std::time::{Duration, Instant};

use leasehold::{Client, blocking};
use testkit::Server;

use crate::support::{builder_at, name, percentile, run, scaled, server, url_at};

fn client(server: &Server) -> blocking::Client {
    blocking::Client::connect(&url_at(server.port())).unwrap()
}

/// Returns the latency of each of `count` uncontended pairs.
async fn async_pairs(client: &Client, name: &str, count: u64) -> Vec<Duration> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let guard = client.mutex(name).lock().await.unwrap();
        let _ = guard.release().await.unwrap();
        pairs.push(start.elapsed());
    }
    pairs
}

fn blocking_pairs(client: &blocking::Client, name: &str, count: u64) -> Vec<Duration> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let guard = client.mutex(name).lock().acquire().unwrap();
        let _ = guard.release().unwrap();
        pairs.push(start.elapsed());
    }
    pairs
}

/// The most that a blocking pair may cost, relative to an async one.
const MAX_RATIO: f64 = 1.3;

#[test]
#[ignore = "deep: measures a latency"]
fn blocking_pair_costs_little_more_than_async() {
    let server = server();
    let threads = client(&server);
    run(async {
        let tasks = builder_at(server.port()).connect().await.unwrap();
        let (tasks, name) = (&tasks, &name());
        let (mut of_tasks, mut of_threads, mut of_main) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..scaled(40) {
            let task = {
                let (tasks, name) = (tasks.clone(), name.clone());
                tokio::spawn(async move { async_pairs(&tasks, &name, 100).await })
            };
            of_tasks.extend(task.await.unwrap());
            of_main.extend(async_pairs(tasks, name, 100).await);
            let pairs = std::thread::scope(|scope| {
                let pairs = scope.spawn(|| blocking_pairs(&threads, name, 100));
                pairs.join().unwrap()
            });
            of_threads.extend(pairs);
        }
        for pairs in [&mut of_tasks, &mut of_threads, &mut of_main] {
            pairs.sort();
        }
        let p50 = |pairs: &[Duration]| percentile(pairs, 500);
        println!(
            "tasks {:?} main {:?} threads {:?}",
            p50(&of_tasks),
            p50(&of_main),
            p50(&of_threads)
        );
        let ratio = p50(&of_threads).as_secs_f64() / p50(&of_tasks).as_secs_f64();
        println!("{ratio:.2}");
        assert!(ratio <= MAX_RATIO, "{ratio:.2}");
    });
}

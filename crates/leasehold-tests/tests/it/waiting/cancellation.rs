//! Acquires that are dropped after any number of polls leave nothing behind,
//! nor do those of threads that time out at any moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use testkit::{Fault, Proxy, SeededRng, Server, ServerExt};

use crate::support::contract::any_lock;
use crate::support::{
    AMPLE, connect_at, eventually, name, only_counters_left, poll_at_most, run, scaled, server,
    url_at,
};

/// Far longer than the test, so that no lock expires.
const LEASE: Duration = Duration::from_secs(300);

/// The oldest that a lock without a holder may be.
const MAX_AGE: Duration = Duration::from_secs(2);

/// Returns the age of the oldest lock on the server, observed until `done`.
fn oldest_lock(server: &Server, done: &AtomicBool) -> Duration {
    let mut seen: HashMap<String, Instant> = HashMap::new();
    let mut oldest = Duration::ZERO;
    let mut connection = server.connect();
    while !done.load(Ordering::SeqCst) {
        let keys = connection.ask(&["KEYS", "lock:*"]).unwrap();
        let now = Instant::now();
        let present: Vec<_> = keys
            .list()
            .iter()
            .map(|key| key.text().to_owned())
            .collect();
        seen.retain(|key, _| present.contains(key));
        for key in present {
            oldest = oldest.max(now - *seen.entry(key).or_insert(now));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    oldest
}

/// Abandons `total` acquires of free locks by `abandon`, and waits until
/// nothing of them is left. Returns the age of the oldest lock observed
/// meanwhile.
async fn abandon_acquires(total: u64, abandon: impl AsyncFn(&Proxy, u64) -> u64) -> Duration {
    let server = server();
    let proxy = Proxy::start(server.port());
    let seed = AtomicU64::new(1);
    proxy.inject(move |_| {
        let mut rng = SeededRng::new(seed.fetch_add(1, Ordering::Relaxed));
        match rng.below(4) {
            0 => Fault::Delay(Duration::from_micros(rng.below(1500))),
            _ => Fault::None,
        }
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let observer = scope.spawn(|| oldest_lock(&server, &done));
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let abandoned = abandon(&proxy, total).await;
                assert!(
                    abandoned > total / 4,
                    "only {abandoned} of {total} were abandoned"
                );
                // Include requests that reach the server late.
                tokio::time::sleep(Duration::from_millis(500)).await;
                eventually("only counters are left", || only_counters_left(&server)).await;
            });
        });
        done.store(true, Ordering::SeqCst);
        observer.join().unwrap()
    })
}

#[test]
fn dropped_acquire_leaves_no_lock() {
    run(abandon_acquires(scaled(1_000), drop_many));
}

#[test]
fn timed_out_thread_leaves_no_lock() {
    run(abandon_acquires(scaled(1_000), time_out_many));
}

#[test]
#[ignore = "deep: measures how long locks of dropped acquires last"]
fn dropped_acquire_is_cancelled_within_two_seconds() {
    let oldest = run(abandon_acquires(scaled(4_000), drop_many));
    assert!(
        oldest < MAX_AGE,
        "a lock without a holder was {oldest:?} old"
    );
}

/// Starts acquires of free locks and drops each after a number of polls.
/// Returns how many were unfinished.
async fn drop_many(proxy: &Proxy, total: u64) -> u64 {
    const TASKS: u64 = 8;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = connect_at(proxy.port()).lease(LEASE).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let mut unfinished = 0;
            for number in 0..total / TASKS {
                // From none to more than an acquire ever takes.
                let polls = (number + task) % 7;
                let lock = any_lock(&client, &name(), number);
                match poll_at_most(lock.into_future(), polls).await {
                    Some(guard) => drop(guard.unwrap()),
                    None => unfinished += 1,
                }
            }
            unfinished
        }));
    }
    let mut unfinished = 0;
    for task in tasks {
        unfinished += task.await.unwrap();
    }
    unfinished
}

/// Acquires free locks on threads, with timeouts from none to longer than an
/// acquire takes. Returns how many timed out.
async fn time_out_many(proxy: &Proxy, total: u64) -> u64 {
    const THREADS: u64 = 8;
    let url = url_at(proxy.port());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let url = url.clone();
            std::thread::spawn(move || {
                let client = Client::connect(&url).lease(LEASE).wait().unwrap();
                let mut timed_out = 0;
                for number in 0..total / THREADS {
                    let limit = Duration::from_micros((number * 37 + thread * 5) % 1000);
                    let lock = any_lock(&client, &name(), number);
                    match lock.timeout(limit).wait() {
                        Ok(guard) => drop(guard),
                        Err(Error::Timeout { .. }) => timed_out += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                }
                timed_out
            })
        })
        .collect();
    let joined = threads.into_iter().map(|thread| thread.join().unwrap());
    joined.sum()
}

/// Drops waiters at about the time of a release. The others must acquire the
/// lock within `limit`.
async fn drop_waiters(rounds: u64, limit: Duration) {
    let server = server();
    let client = connect_at(server.port()).lease(LEASE).await.unwrap();
    for round in 0..rounds {
        let name = name();
        let lock = || any_lock(&client, &name, round);
        let guard = lock().await.unwrap();
        let waiters: Vec<_> = (0..4).map(|_| tokio::spawn(lock().into_future())).collect();
        let release = tokio::spawn(async move { guard.release().await });
        tokio::time::sleep(Duration::from_micros(round * 37 % 1000)).await;
        // At about the time when the release wakes one of them.
        for waiter in waiters.iter().take(3) {
            waiter.abort();
        }
        release.await.unwrap().unwrap();
        for (number, waiter) in waiters.into_iter().enumerate() {
            let got = tokio::time::timeout(limit, waiter).await;
            let got = got.unwrap_or_else(|_| panic!("waiter {number} of round {round} hangs"));
            if let Ok(guard) = got {
                guard.unwrap().release().await.unwrap();
            }
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    eventually("only counters are left", || only_counters_left(&server)).await;
}

#[test]
fn dropped_waiter_leaves_no_lock() {
    run(drop_waiters(scaled(100), AMPLE));
}

#[test]
#[ignore = "deep: measures a latency"]
fn dropped_waiter_does_not_delay_the_next() {
    run(drop_waiters(scaled(400), Duration::from_secs(3)));
}

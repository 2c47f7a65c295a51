//! An acquire that is dropped, after whatever number of polls, leaves nothing behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::{Dice, Fault, Proxy, Server};

use crate::contract::any_lock;
use crate::support::{
    beside_others, builder_at, name, nothing_is_left, poll_times, scaled, server,
};

/// Far longer than the test: nothing goes away by itself.
const LEASE: Duration = Duration::from_secs(300);

/// Nothing that nobody holds may be older.
const OLDEST: Duration = Duration::from_secs(2);

/// The oldest lock that this process saw on the server, watched until `over`.
fn oldest_lock(server: &Server, over: &AtomicBool) -> Duration {
    let mut seen: HashMap<String, Instant> = HashMap::new();
    let mut oldest = Duration::ZERO;
    let mut connection = server.connect();
    while !over.load(Ordering::SeqCst) {
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

#[test]
fn an_acquire_dropped_after_any_number_of_polls_leaves_no_lock() {
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let seed = AtomicU64::new(1);
        proxy.judge(move |_| {
            let mut dice = Dice::new(seed.fetch_add(1, Ordering::Relaxed));
            match dice.below(4) {
                0 => Fault::Delay(Duration::from_micros(dice.below(1500))),
                _ => Fault::None,
            }
        });
        let over = AtomicBool::new(false);
        let total = scaled(4_000);
        let (dropped, oldest) = std::thread::scope(|scope| {
            let observer = scope.spawn(|| oldest_lock(&server, &over));
            let dropped = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(drop_many(&proxy, total))
            });
            std::thread::sleep(OLDEST);
            over.store(true, Ordering::SeqCst);
            (dropped, observer.join().unwrap())
        });
        assert!(
            dropped > total / 4,
            "only {dropped} of {total} were dropped unfinished"
        );
        assert!(oldest < OLDEST, "a lock of nobody was {oldest:?} old");
        assert!(nothing_is_left(&server), "{:?}", server.ask(&["KEYS", "*"]));
    });
}

/// Starts acquires of free locks and drops each after a number of polls; says how many were unfinished.
async fn drop_many(proxy: &Proxy, total: u64) -> u64 {
    const TASKS: u64 = 8;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = builder_at(proxy.port())
            .lease(LEASE)
            .connect()
            .await
            .unwrap();
        tasks.push(tokio::spawn(async move {
            let mut unfinished = 0;
            for number in 0..total / TASKS {
                // From none at all to more than an acquire ever takes.
                let polls = (number + task) % 7;
                let lock = any_lock(&client, &name(), number);
                match poll_times(lock.into_future(), polls).await {
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

#[test]
fn a_waiter_that_is_dropped_leaves_no_lock_and_blocks_nobody() {
    beside_others(async {
        let server = server();
        let client = builder_at(server.port())
            .lease(LEASE)
            .connect()
            .await
            .unwrap();
        for round in 0..scaled(400) {
            let name = name();
            let lock = || any_lock(&client, &name, round);
            let guard = lock().await.unwrap();
            let waiters: Vec<_> = (0..4).map(|_| tokio::spawn(lock().into_future())).collect();
            let release = tokio::spawn(async move { guard.release().await });
            tokio::time::sleep(Duration::from_micros(round * 37 % 1000)).await;
            // Dropped about when the release wakes one of them.
            for waiter in waiters.iter().take(3) {
                waiter.abort();
            }
            let _ = release.await.unwrap().unwrap();
            for (number, waiter) in waiters.into_iter().enumerate() {
                let got = tokio::time::timeout(Duration::from_secs(3), waiter).await;
                let got = got.unwrap_or_else(|_| panic!("waiter {number} of round {round} hangs"));
                if let Ok(guard) = got {
                    let _ = guard.unwrap().release().await.unwrap();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(nothing_is_left(&server), "{:?}", server.ask(&["KEYS", "*"]));
    });
}

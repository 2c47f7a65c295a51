//! Commands of worker processes that use queued locks.

use std::time::Duration;

use leasehold::{Client, Error};
use testkit::SeededRng;
use testkit::worker::say;

use crate::support::clock;

/// Waits for at most `limit`, holds the lock for `hold`, and releases it.
/// Prints the token, or the queue position after a timeout.
pub(super) async fn serve(client: &Client, name: &str, limit: Duration, hold: Duration) {
    match client.fair_mutex(name).lock().timeout(limit).await {
        Ok(held) => {
            say(format_args!("{} {}", held.token(), clock()));
            tokio::time::sleep(hold).await;
            held.release().await.expect("the lock is still held");
            say("Released");
        }
        Err(Error::Timeout { position, .. }) => say(format_args!("timed out at {position:?}")),
        Err(error) => panic!("{error}"),
    }
}

/// Acquires and releases permits, some of them by dropping the guard. Prints
/// when and how many it held.
pub(super) async fn permits(client: &Client, name: &str, permits: u32, count: u64, seed: u64) {
    const TASKS: u64 = 4;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let semaphore = client.semaphore(name, permits);
            let mut rng = SeededRng::new(seed * TASKS + task);
            tokio::spawn(async move {
                for _ in 0..count / TASKS {
                    let weight = u32::try_from(1 + rng.below(3)).expect("small");
                    let Ok(held) = semaphore.acquire_many(weight).await else {
                        continue;
                    };
                    let start = clock();
                    if rng.below(8) == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let end = clock();
                    if held.check().is_ok() {
                        say(format_args!("{start} {end} {weight}"));
                    }
                    match rng.below(4) {
                        0 => drop(held),
                        _ => drop(held.release().await),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    say("done");
}

/// Reads in `tasks` tasks without end, for `hold` each time.
pub(super) async fn read(client: &Client, name: &str, tasks: u64, hold: Duration) {
    for _ in 0..tasks {
        let lock = client.rw_lock(name);
        tokio::spawn(async move {
            loop {
                let held = lock.read().await.expect("the lock");
                tokio::time::sleep(hold).await;
                held.release().await.expect("released");
            }
        });
    }
    say("reading");
}

//! Servers without memory, and clients that run for long.

use leasehold::Error;
use testkit::ServerExt;

use crate::support::contract::{KINDS, any_lock};
use crate::support::worker;
use crate::support::{
    AMPLE, LEASE, channels, client, eventually, exists, has_subscriber, name, on_every_server,
    owners, run, scaled, server, wait_for_renewal,
};

#[test]
fn full_server_rejects_new_locks_and_keeps_held() {
    on_every_server(|server| async move {
        let client = self::client(&server).await;
        let other = self::client(&server).await;
        let mut held = Vec::new();
        for kind in 0..KINDS {
            let name = name();
            let guard = any_lock(&client, &name, kind).await.unwrap();
            let next = tokio::spawn(any_lock(&other, &name, kind).into_future());
            eventually("the waiter waits", || {
                has_subscriber(&server, &name) || !owners(&server, "queue", &name).is_empty()
            })
            .await;
            held.push((name, guard, next));
        }
        server.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        for kind in 0..KINDS {
            let refused = any_lock(&client, &format!("another {kind}"), kind).await;
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        }
        let leases: Vec<_> = held.iter().map(|(_, guard, _)| guard.lease()).collect();
        wait_for_renewal(&leases.iter().collect::<Vec<_>>()).await;
        for (name, guard, next) in held {
            guard.extend(LEASE * 2).await.unwrap();
            guard.release().await.unwrap();
            // The server still grants queued waiters, but a mutex needs a new
            // key.
            match tokio::time::timeout(AMPLE, next).await.unwrap().unwrap() {
                Ok(guard) => guard.release().await.unwrap(),
                Err(error) => assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}"),
            }
            eventually("the lock is free", || !exists(&server, &name)).await;
        }
        server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        for kind in 0..KINDS {
            drop(
                any_lock(&client, &format!("another {kind}"), kind)
                    .await
                    .unwrap(),
            );
        }
    });
}

/// Lets a process acquire and release locks `cycles` times, and checks that it
/// leaves no key, channel, thread or task. Returns the growth of the process in
/// MiB.
async fn churn(cycles: u64, names: u64) -> f64 {
    let server = server();
    let mut worker = worker::start(server.port(), LEASE * 3);
    // Warm up caches, buffers and the allocator.
    worker.ask(&format!("churn {} {names}", cycles / 5));
    let before: Vec<f64> = numbers(&worker.ask("self"));
    let answer = worker.ask(&format!("churn {cycles} {names}"));
    println!("{answer}");
    eventually("the threads and tasks have ended", || {
        numbers(&worker.ask("self"))[..2] == before[..2]
    })
    .await;
    let after = numbers(&worker.ask("self"));
    println!("threads, tasks, memory in MiB: {before:?} before, {after:?} after");
    eventually("only the token counter is left", || {
        let keys = server.ask(&["KEYS", "*"]);
        keys.list().len() == 1 && keys.list()[0].text() == "leasehold:token:{3560}"
    })
    .await;
    // The channel for the client's grants stays.
    eventually("no channel of a lock is left", || {
        let mut channels = channels(&server).into_iter();
        channels.all(|channel| channel.starts_with("leasehold:grant:"))
    })
    .await;
    after[2] - before[2]
}

#[test]
fn churn_leaves_no_keys_channels_or_tasks() {
    run(churn(scaled(5_000), 1_000));
}

#[test]
#[ignore = "deep: measures memory"]
fn churn_does_not_grow_memory() {
    let grown = run(churn(scaled(100_000), scaled(20_000)));
    assert!(grown < 4.0, "memory grew by {grown} MiB");
}

fn numbers(answer: &str) -> Vec<f64> {
    answer
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect()
}

#[test]
fn every_key_but_counters_expires() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let mut guards = Vec::new();
        for _ in 0..100 {
            let lock = any_lock(&client, &name(), guards.len() as u64);
            guards.push(lock.at_least(LEASE).await.unwrap());
        }
        for guard in guards.drain(50..) {
            guard.release().await.unwrap();
        }
        for key in server.ask(&["KEYS", "*"]).list() {
            let ttl = server.ask(&["PTTL", key.text()]).int();
            let expires = ttl != -1;
            assert!(
                expires || key.text().starts_with("leasehold:token:"),
                "{key:?}: {ttl}"
            );
        }
    });
}

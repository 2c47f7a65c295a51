//! What happens at the limits: a server without memory, a client without rest.

use std::time::Duration;

use leasehold::{Error, Release};

use crate::contract::{KINDS, any_lock};
use crate::support::{
    LEASE, alone, beside_others, channels, client, exists, name, on_every_server, scaled, server,
};
use crate::worker::Worker;

#[test]
fn a_full_server_refuses_new_locks_and_keeps_old_ones() {
    on_every_server(|server| async move {
        let (client, other) = (self::client(&server).await, self::client(&server).await);
        let mut held = Vec::new();
        for kind in 0..KINDS {
            let name = name();
            let guard = any_lock(&client, &name, kind).await.unwrap();
            let next = tokio::spawn(any_lock(&other, &name, kind).into_future());
            held.push((name, guard, next));
        }
        tokio::time::sleep(LEASE / 2).await;
        server.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        for kind in 0..KINDS {
            let refused = any_lock(&client, &format!("another {kind}"), kind).await;
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        }
        tokio::time::sleep(LEASE * 3).await;
        for (name, guard, next) in held {
            guard.check().unwrap();
            guard.extend(LEASE * 2).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Release::Released);
            // Those who stand in line are served all the same; a mutex must be taken anew.
            match tokio::time::timeout(LEASE, next).await.unwrap().unwrap() {
                Ok(guard) => assert_eq!(guard.release().await.unwrap(), Release::Released),
                Err(error) => assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}"),
            }
            assert!(!exists(&server, &name));
        }
        server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        for kind in 0..KINDS {
            let _ = any_lock(&client, &format!("another {kind}"), kind)
                .await
                .unwrap();
        }
    });
}

#[test]
fn nothing_grows_over_many_cycles() {
    alone(|| {
        let server = server();
        let mut worker = Worker::start(server.port(), Duration::from_secs(30));
        // Warms up caches, buffers and the allocator.
        worker.ask(&format!("churn {} {}", scaled(20_000), scaled(20_000)));
        let before: Vec<f64> = numbers(&worker.ask("self"));
        let answer = worker.ask(&format!("churn {} {}", scaled(100_000), scaled(20_000)));
        println!("{answer}");
        // What was kept in mind for longer than a tick is forgotten after a lease.
        let after = numbers(&worker.ask("self"));
        println!("threads, tasks, memory in MiB: {before:?} before, {after:?} after");
        assert_eq!(after[0], before[0], "threads");
        assert_eq!(after[1], before[1], "tasks");
        assert!(after[2] < before[2] + 4.0, "memory grew");
        assert_eq!(
            server.ask(&["DBSIZE"]).int(),
            1,
            "more than the token counter is left"
        );
        // The one where the client hears of grants stays.
        let channels = channels(&server);
        let stays = |channel: &String| channel.starts_with("leasehold:grant:");
        assert!(
            channels.len() == 1 && channels.iter().all(stays),
            "{channels:?}"
        );
        assert_eq!(
            server.ask(&["KEYS", "*"]).list()[0].text(),
            "leasehold:token:{3560}"
        );
    });
}

fn numbers(answer: &str) -> Vec<f64> {
    answer
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect()
}

#[test]
fn every_key_but_counters_expires() {
    beside_others(async {
        let server = server();
        let client = client(&server).await;
        let mut guards = Vec::new();
        for _ in 0..100 {
            let lock = any_lock(&client, &name(), guards.len() as u64);
            guards.push(lock.at_least(LEASE).await.unwrap());
        }
        for guard in guards.drain(50..) {
            let _ = guard.release().await.unwrap();
        }
        for key in server.ask(&["KEYS", "*"]).list() {
            let left = server.ask(&["PTTL", key.text()]).int();
            assert!(
                left > 0 || key.text().starts_with("leasehold:token:"),
                "{key:?}: {left}"
            );
        }
    });
}

//! What happens at the limits: a server without memory, a client without rest.

use std::time::Duration;

use leasehold::{Error, Release};

use crate::support::{
    LEASE, alone, beside_others, client, exists, name, on_every_server, scaled, server,
};
use crate::worker::Worker;

#[test]
fn a_full_server_refuses_new_locks_and_keeps_old_ones() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        server.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = client.mutex("another").lock().await.unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
        tokio::time::sleep(LEASE * 3).await;
        guard.check().unwrap();
        guard.extend(LEASE * 2).await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert!(!exists(&server, &name));
        server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        let _ = client.mutex("another").lock().await.unwrap();
    });
}

#[test]
fn nothing_grows_over_a_million_cycles() {
    alone(|| {
        let server = server();
        let mut worker = Worker::start(server.port(), Duration::from_secs(30));
        // Warms up caches, buffers and the allocator.
        worker.ask(&format!("churn {} {}", scaled(100_000), scaled(100_000)));
        let before: Vec<f64> = numbers(&worker.ask("self"));
        let answer = worker.ask(&format!("churn {} {}", scaled(1_000_000), scaled(100_000)));
        println!("{answer}");
        // What was kept in mind for longer than a tick is forgotten after a lease.
        let after = numbers(&worker.ask("self"));
        println!("threads, tasks, memory in MiB: {before:?} before, {after:?} after");
        assert_eq!(after[0], before[0], "threads");
        assert_eq!(after[1], before[1], "tasks");
        assert!(after[2] < before[2] + 8.0, "memory grew");
        assert_eq!(
            server.ask(&["DBSIZE"]).int(),
            1,
            "more than the token counter is left"
        );
        assert_eq!(server.ask(&["PUBSUB", "CHANNELS"]).list().len(), 0);
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
            guards.push(client.mutex(&name()).lock().at_least(LEASE).await.unwrap());
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

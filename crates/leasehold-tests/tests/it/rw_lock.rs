//! The read-write lock: readers together, writers alone, and neither starves.

use std::time::{Duration, Instant};

use leasehold::Release;

use testkit::machine::ran_since;

use crate::support::{
    LEASE, beside_others, builder_at, client, eventually, name, on_every_server, scaled, server,
};
use crate::worker::Worker;

#[test]
fn readers_hold_it_together_and_writers_alone() {
    on_every_server(|server| async move {
        let name = name();
        let (one, other) = (client(&server).await, client(&server).await);
        let (one, other) = (one.rw_lock(&name), other.rw_lock(&name));
        let (first, second) = (one.read().await.unwrap(), other.read().await.unwrap());
        assert_eq!(first.token(), second.token(), "of one generation");
        assert!(one.try_write().await.unwrap().is_none());
        let _ = first.release().await.unwrap();
        assert!(one.try_write().await.unwrap().is_none());
        let token = second.token();
        let _ = second.release().await.unwrap();
        let writing = one.try_write().await.unwrap().expect("free");
        assert!(writing.token() > token);
        assert!(other.try_read().await.unwrap().is_none());
        assert!(other.try_write().await.unwrap().is_none());
        assert_eq!(writing.release().await.unwrap(), Release::Released);
    });
}

#[test]
fn a_writer_waits_one_generation_of_readers_at_most() {
    let hold = Duration::from_millis(300);
    beside_others(async {
        let (server, name) = (server(), name());
        let lease = Duration::from_secs(10);
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let mut worker = Worker::start(server.port(), lease);
                let answer = worker.ask(&format!("read {name} 4 {}", hold.as_millis()));
                assert_eq!(answer, "reading");
                worker
            })
            .collect();
        let writer = builder_at(server.port())
            .lease(lease)
            .connect()
            .await
            .unwrap();
        let lock = writer.rw_lock(&name);
        let mut longest = Duration::ZERO;
        for _ in 0..scaled(30) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let start = Instant::now();
            let guard = lock.write().await.unwrap();
            longest = longest.max(ran_since(start));
            let _ = guard.release().await.unwrap();
        }
        println!("a writer waited {longest:?} at most, readers hold {hold:?}");
        assert!(longest < hold * 2, "a writer waited {longest:?}");
        drop(workers);
    });
}

#[test]
fn a_thousand_readers_are_let_in_by_one_release() {
    beside_others(async {
        let (server, name) = (server(), name());
        let lease = Duration::from_secs(30);
        let one = builder_at(server.port())
            .lease(lease)
            .connect()
            .await
            .unwrap();
        let writing = one.rw_lock(&name).write().await.unwrap();
        let many = builder_at(server.port())
            .lease(lease)
            .connect()
            .await
            .unwrap();
        let count = scaled(1000);
        let readers: Vec<_> = (0..count)
            .map(|_| tokio::spawn(many.rw_lock(&name).read().into_future()))
            .collect();
        let of = |what: &str| {
            let keys = server.ask(&["KEYS", &format!("leasehold:{what}:*")]);
            let count = |key: &testkit::Answer| server.ask(&["ZCARD", key.text()]).int() as u64;
            keys.list().first().map_or(0, count)
        };
        eventually(Duration::from_secs(5), "all in line", || {
            of("line") == count
        })
        .await;
        let released = Instant::now();
        assert_eq!(writing.release().await.unwrap(), Release::Released);
        assert_eq!((of("holders"), of("line")), (count, 0), "by one script");
        let mut tokens = std::collections::HashSet::new();
        let mut guards = Vec::new();
        for reader in readers {
            let guard = reader.await.unwrap().unwrap();
            tokens.insert(guard.token());
            guards.push(guard);
        }
        println!("all inside after {:?}", released.elapsed());
        assert!(ran_since(released) < Duration::from_secs(1));
        assert_eq!(tokens.len(), 1, "one generation, one token");
        guards.iter().for_each(|guard| guard.check().unwrap());
        drop(guards);
        let _writing = one.rw_lock(&name).write().wait(lease / 3).await.unwrap();
    });
}

#[test]
fn a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer() {
    on_every_server(|server| async move {
        let name = name();
        let (one, other) = (client(&server).await, client(&server).await);
        let (one, other) = (one.rw_lock(&name), other.rw_lock(&name));
        let writing = one.write().await.unwrap();
        let token = writing.token();
        let reader = tokio::spawn(other.read().into_future());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!reader.is_finished());
        let reading = writing.downgrade().await.unwrap();
        let beside = tokio::time::timeout(Duration::from_millis(250), reader).await;
        let beside = beside.expect("let in by push").unwrap().unwrap();
        assert_eq!((reading.token(), beside.token()), (token, token));
        assert!(other.try_write().await.unwrap().is_none());
        let _ = beside.release().await.unwrap();
        assert!(other.try_write().await.unwrap().is_none());
        tokio::time::sleep(LEASE * 2).await;
        reading.check().unwrap();
        assert_eq!(reading.release().await.unwrap(), Release::Released);
        let last = other.try_write().await.unwrap().expect("free");
        assert!(last.token() > token);
        // What was lost cannot be downgraded.
        server.tell(&["FLUSHALL"]);
        assert!(last.downgrade().await.is_err());
    });
}

#[test]
fn a_crashed_reader_keeps_nobody_out_for_longer_than_its_lease() {
    beside_others(async {
        let (server, name) = (server(), name());
        let mut crashed = Worker::start(server.port(), LEASE);
        crashed.ask(&format!("read {name} 1 60000"));
        let lock = client(&server).await.rw_lock(&name);
        // Another reader that is renewed does not renew the crashed one's lease.
        let reading = lock.read().await.unwrap();
        tokio::time::sleep(LEASE / 2).await;
        crashed.kill();
        tokio::time::sleep(LEASE * 2).await;
        let _ = reading.release().await.unwrap();
        assert!(lock.try_write().await.unwrap().is_some());
    });
}

//! The read-write lock: readers together, writers alone, and neither starves.

use std::time::{Duration, Instant};

use leasehold::ReleaseOutcome;
use testkit::Server;

use crate::support::worker::Worker;
use crate::support::{
    AMPLE, LEASE, builder_at, client, eventually, expire, key, name, on_every_server, owners, run,
    scaled, server, until_renewed,
};

#[test]
fn readers_hold_it_together_and_writers_alone() {
    on_every_server(|server| async move {
        let name = name();
        let (one, other) = (client(&server).await, client(&server).await);
        let (one, other) = (one.rw_lock(&name), other.rw_lock(&name));
        let (first, second) = (one.read().await.unwrap(), other.read().await.unwrap());
        assert!(first.token() < second.token());
        assert!(one.try_write().await.unwrap().is_none());
        let _ = first.release().await.unwrap();
        assert!(one.try_write().await.unwrap().is_none());
        let token = second.token();
        let _ = second.release().await.unwrap();
        let writing = one.try_write().await.unwrap().expect("free");
        assert!(writing.token() > token);
        assert!(other.try_read().await.unwrap().is_none());
        assert!(other.try_write().await.unwrap().is_none());
        assert_eq!(writing.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

/// Writes `times` times while tasks of several processes read without end, for `hold` each time. Returns the longest
/// wait of the writer.
async fn write_among_readers(processes: usize, hold: Duration, times: u64) -> Duration {
    let (server, name) = (server(), name());
    let _workers: Vec<_> = (0..processes)
        .map(|_| {
            let mut worker = Worker::start(server.port(), LEASE);
            let answer = worker.ask(&format!("read {name} 4 {}", hold.as_millis()));
            assert_eq!(answer, "reading");
            worker
        })
        .collect();
    let lock = client(&server).await.rw_lock(&name);
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        let guard = lock.write().timeout(AMPLE).await.unwrap();
        longest = longest.max(start.elapsed());
        let _ = guard.release().await.unwrap();
    }
    longest
}

#[test]
fn readers_without_end_do_not_starve_a_writer() {
    let hold = Duration::from_millis(100);
    run(write_among_readers(2, hold, scaled(10)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn a_writer_waits_one_generation_of_readers_at_most() {
    let hold = Duration::from_millis(300);
    let longest = run(write_among_readers(8, hold, scaled(30)));
    println!("a writer waited {longest:?} at most, readers hold {hold:?}");
    assert!(longest < hold * 2, "a writer waited {longest:?}");
}

/// Has `count` readers wait for a writer, and checks that its release lets them in together, above its token.
/// With `at_once` this must be the work of one script, and done within a second.
async fn let_readers_in(count: usize, at_once: bool) {
    let (server, name) = (server(), name());
    let lease = Duration::from_secs(30);
    let client = || builder_at(server.port()).lease(lease).connect();
    let (one, many) = (client().await.unwrap(), client().await.unwrap());
    let writing = one.rw_lock(&name).write().await.unwrap();
    let token = writing.token();
    let readers: Vec<_> = (0..count)
        .map(|_| tokio::spawn(many.rw_lock(&name).read().into_future()))
        .collect();
    let of = |set: &str| owners(&server, set, &name).len();
    eventually("all wait", || of("queue") == count).await;
    let released = Instant::now();
    assert_eq!(writing.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(!at_once || (of("holders"), of("queue")) == (count, 0));
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap().unwrap());
    }
    let took = released.elapsed();
    println!("all inside after {took:?}");
    assert!(guards.iter().all(|guard| guard.token() > token));
    if at_once {
        assert!(took < Duration::from_secs(1), "{took:?}");
        guards.iter().for_each(|guard| guard.check().unwrap());
    }
    drop(guards);
    let _writing = one.rw_lock(&name).write().timeout(AMPLE).await.unwrap();
}

#[test]
fn release_lets_all_waiting_readers_in() {
    run(let_readers_in(50, false));
}

#[test]
#[ignore = "deep: measures a latency"]
fn a_thousand_readers_are_let_in_by_one_release() {
    run(let_readers_in(1000, true));
}

/// Has a writer become a reader while another reader waits. Returns how long that reader took.
async fn downgrade(server: &Server) -> Duration {
    let name = name();
    let (one, other) = (client(server).await, client(server).await);
    let (one, other) = (one.rw_lock(&name), other.rw_lock(&name));
    let writing = one.write().await.unwrap();
    let token = writing.token();
    let reader = tokio::spawn(other.read().into_future());
    eventually("waits", || owners(server, "queue", &name).len() == 1).await;
    assert!(!reader.is_finished());
    let start = Instant::now();
    let reading = writing.downgrade().await.unwrap();
    let beside = tokio::time::timeout(AMPLE, reader).await;
    let beside = beside.expect("let in").unwrap().unwrap();
    let took = start.elapsed();
    assert_eq!(reading.token(), token);
    assert!(beside.token() > token);
    assert!(other.try_write().await.unwrap().is_none());
    let _ = beside.release().await.unwrap();
    assert!(other.try_write().await.unwrap().is_none());
    until_renewed(&[reading.lease()]).await;
    assert_eq!(reading.release().await.unwrap(), ReleaseOutcome::Released);
    let last = other.try_write().await.unwrap().expect("free");
    assert!(last.token() > token);
    // What was lost cannot be downgraded.
    server.tell(&["FLUSHALL"]);
    assert!(last.downgrade().await.is_err());
    took
}

#[test]
fn a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer() {
    on_every_server(|server| async move { downgrade(&server).await });
}

#[test]
#[ignore = "deep: measures a latency"]
fn downgrade_lets_a_waiting_reader_in_at_once() {
    on_every_server(|server| async move {
        let took = downgrade(&server).await;
        assert!(took < Duration::from_millis(250), "not by push: {took:?}");
    });
}

#[test]
fn a_crashed_reader_keeps_nobody_out_for_longer_than_its_lease() {
    run(async {
        let (server, name) = (server(), name());
        let mut crashed = Worker::start(server.port(), LEASE * 6);
        crashed.ask(&format!("read {name} 1 60000"));
        let holders = || owners(&server, "holders", &name);
        eventually("reads", || holders().len() == 1).await;
        crashed.kill();
        let owner = holders().remove(0);
        let lock = client(&server).await.rw_lock(&name);
        let reading = lock.read().await.unwrap();
        let end = || lease_end(&server, &name, &owner);
        let before = end();
        until_renewed(&[reading.lease()]).await;
        // Another reader that is renewed does not renew the crashed one's lease.
        assert_eq!(end(), before);
        let _ = reading.release().await.unwrap();
        assert!(lock.try_write().await.unwrap().is_none());
        expire(&server, &name, &owner);
        assert!(lock.try_write().await.unwrap().is_some());
    });
}

/// When the lease of a holder ends, as the server has it.
fn lease_end(server: &Server, name: &str, owner: &str) -> String {
    let keys = server.ask(&["KEYS", &format!("leasehold:holders:*:{}", key(name))]);
    let end = server.ask(&["ZSCORE", keys.list()[0].text(), owner]);
    end.text().to_owned()
}

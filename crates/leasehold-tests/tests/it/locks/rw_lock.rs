//! Read-write locks: readers share, writers exclude, and neither starves.

use std::time::{Duration, Instant};

use leasehold::{Exclusive, Lease, Shared};
use testkit::{Server, ServerExt};

use crate::support::worker;
use crate::support::{
    AMPLE, LEASE, client, connect_at, eventually, expire, is_busy, key, name, on_every_server,
    owners, run, scaled, server, wait_for_renewal,
};

#[test]
fn readers_share_and_writers_exclude() {
    on_every_server(|server| async move {
        let name = name();
        let one = client(&server).await;
        let other = client(&server).await;
        let one = one.rw_lock(&name);
        let other = other.rw_lock(&name);
        let first = one.read().await.unwrap();
        let second = other.read().await.unwrap();
        assert!(first.token() < second.token());
        assert!(is_busy(one.try_write()).await);
        first.release().await.unwrap();
        assert!(is_busy(one.try_write()).await);
        let token = second.token();
        second.release().await.unwrap();
        let writing = one.try_write().await.expect("free");
        assert!(writing.token() > token);
        assert!(is_busy(other.try_read()).await);
        assert!(is_busy(other.try_write()).await);
        writing.release().await.unwrap();
    });
}

/// Writes `times` times while tasks of several processes read without end, for
/// `hold` each time. Returns the writer's longest wait.
async fn write_among_readers(processes: usize, hold: Duration, times: u64) -> Duration {
    let server = server();
    let name = name();
    let _workers: Vec<_> = (0..processes)
        .map(|_| {
            let mut worker = worker::start(server.port(), LEASE);
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
        guard.release().await.unwrap();
    }
    longest
}

#[test]
fn endless_readers_do_not_starve_writer() {
    let hold = Duration::from_millis(100);
    run(write_among_readers(2, hold, scaled(10)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn writer_waits_for_one_generation_of_readers() {
    let hold = Duration::from_millis(300);
    let longest = run(write_among_readers(8, hold, scaled(30)));
    println!("a writer waited {longest:?} at most, readers hold {hold:?}");
    assert!(longest < hold * 2, "a writer waited {longest:?}");
}

/// Makes `count` readers wait for a writer, and checks that its release grants
/// them all tokens above its own. With `at_once`, a single script must grant
/// them, within a second.
async fn grant_readers(count: usize, at_once: bool) {
    let server = server();
    let name = name();
    let lease = Duration::from_secs(30);
    let connect = || connect_at(server.port()).lease(lease);
    let one = connect().await.unwrap();
    let many = connect().await.unwrap();
    let writing = one.rw_lock(&name).write().await.unwrap();
    let token = writing.token();
    let readers: Vec<_> = (0..count)
        .map(|_| tokio::spawn(many.rw_lock(&name).read().into_future()))
        .collect();
    let count_of = |set: &str| owners(&server, set, &name).len();
    eventually("all readers are queued", || count_of("queue") == count).await;
    let released = Instant::now();
    writing.release().await.unwrap();
    assert!(!at_once || (count_of("holders"), count_of("queue")) == (count, 0));
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap().unwrap());
    }
    let took = released.elapsed();
    println!("all readers hold the lock after {took:?}");
    assert!(guards.iter().all(|guard| guard.token() > token));
    if at_once {
        assert!(took < Duration::from_secs(1), "{took:?}");
        guards.iter().for_each(|guard| guard.check().unwrap());
    }
    drop(guards);
    let _writing = one.rw_lock(&name).write().timeout(AMPLE).await.unwrap();
}

#[test]
fn release_grants_all_waiting_readers() {
    run(grant_readers(50, false));
}

#[test]
#[ignore = "deep: measures a latency"]
fn one_release_grants_a_thousand_readers() {
    run(grant_readers(1000, true));
}

/// Downgrades a writer while a reader waits. Returns how long the reader waited
/// after that.
async fn downgrade(server: &Server) -> Duration {
    let name = name();
    let one = client(server).await;
    let other = client(server).await;
    let one = one.rw_lock(&name);
    let other = other.rw_lock(&name);
    let writing = one.write().await.unwrap();
    let token = writing.token();
    let reader = tokio::spawn(other.read().into_future());
    eventually("the reader is queued", || {
        owners(server, "queue", &name).len() == 1
    })
    .await;
    assert!(!reader.is_finished());
    let start = Instant::now();
    let reading = writing.downgrade().await.unwrap();
    let beside = tokio::time::timeout(AMPLE, reader).await;
    let beside = beside
        .expect("the reader acquires the lock")
        .unwrap()
        .unwrap();
    let took = start.elapsed();
    assert_eq!(reading.token(), token);
    assert!(beside.token() > token);
    assert!(is_busy(other.try_write()).await);
    beside.release().await.unwrap();
    assert!(is_busy(other.try_write()).await);
    wait_for_renewal(&[&reading.lease()]).await;
    reading.release().await.unwrap();
    let last = other.try_write().await.expect("free");
    assert!(last.token() > token);
    // A lost lock cannot be downgraded.
    server.tell(&["FLUSHALL"]);
    assert!(last.downgrade().await.is_err());
    took
}

#[test]
fn downgrade_admits_readers_but_no_writer() {
    on_every_server(|server| async move { downgrade(&server).await });
}

#[test]
fn downgrade_ends_leases_of_the_writer() {
    on_every_server(|server| async move {
        let lock = client(&server).await.rw_lock(&name());
        let writing = lock.write().await.unwrap();
        let exclusive: Lease<Exclusive> = writing.lease();
        let lost = tokio::spawn({
            let lease = exclusive.clone();
            async move { lease.lost().await }
        });
        exclusive.check().unwrap();
        let reading = writing.downgrade().await.unwrap();
        exclusive.check().unwrap_err();
        assert!(exclusive.remaining().is_zero());
        let lost = tokio::time::timeout(AMPLE, lost).await;
        assert_eq!(lost.expect("the lease has ended").unwrap(), None);
        let shared: Lease<Shared> = reading.lease();
        shared.check().unwrap();
        assert_eq!(shared.token(), exclusive.token());
        wait_for_renewal(&[&shared]).await;
        reading.release().await.unwrap();
        assert!(!is_busy(lock.try_write()).await);
    });
}

#[test]
#[ignore = "deep: measures a latency"]
fn downgrade_grants_waiting_reader_promptly() {
    on_every_server(|server| async move {
        let took = downgrade(&server).await;
        assert!(
            took < Duration::from_millis(250),
            "granted by polling after {took:?}"
        );
    });
}

#[test]
fn crashed_reader_blocks_until_its_lease_ends() {
    run(async {
        let server = server();
        let name = name();
        let mut crashed = worker::start(server.port(), LEASE * 6);
        crashed.ask(&format!("read {name} 1 60000"));
        let holders = || owners(&server, "holders", &name);
        eventually("the worker reads", || holders().len() == 1).await;
        crashed.kill();
        let owner = holders().remove(0);
        let lock = client(&server).await.rw_lock(&name);
        let reading = lock.read().await.unwrap();
        let end = || lease_end(&server, &name, &owner);
        let before = end();
        wait_for_renewal(&[&reading.lease()]).await;
        // A renewal of one reader does not renew the crashed one.
        assert_eq!(end(), before);
        reading.release().await.unwrap();
        assert!(is_busy(lock.try_write()).await);
        expire(&server, &name, &owner);
        assert!(!is_busy(lock.try_write()).await);
    });
}

/// Returns the expiry of a holder's lease on the server.
fn lease_end(server: &Server, name: &str, owner: &str) -> String {
    let keys = server.ask(&["KEYS", &format!("leasehold:holders:*:{}", key(name))]);
    let end = server.ask(&["ZSCORE", keys.list()[0].text(), owner]);
    end.text().to_owned()
}

#[test]
fn write_guard_with_fixed_lease_is_extended() {
    on_every_server(|server| async move {
        let name = name();
        let lock = client(&server).await.rw_lock(&name);
        let writing = lock.write().fixed_lease(LEASE).await.unwrap();
        writing.extend(LEASE * 4).await.unwrap();
        assert!(writing.remaining() > LEASE * 2);
        let remaining = lock.holder().await.unwrap().expect("a writer");
        assert!(remaining.lease_remaining.unwrap() > LEASE * 2);
        writing.release().await.unwrap();
    });
}

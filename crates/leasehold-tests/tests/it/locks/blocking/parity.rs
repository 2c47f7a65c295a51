//! Every method of the blocking API does what its async counterpart does.

use std::time::Duration;

use leasehold::blocking::{Client, MultiLock};
use leasehold::{Error, LatchState, ReleaseOutcome, SetOutcome};
use testkit::{Flavor, Server};

use super::client;
use crate::support::{AMPLE, SHORT, name, server};

#[test]
fn guards_and_handles_match_the_async_api() {
    let server = server();
    let (client, name) = (client(&server), name());
    let lock = client.rw_lock(&name);
    let writer = lock.write().acquire().unwrap();
    let token = writer.token();
    let reader = writer.downgrade().unwrap();
    assert_eq!(reader.token(), token);
    let other = lock
        .try_read()
        .acquire()
        .unwrap()
        .expect("readers share it");
    assert!(lock.try_write().acquire().unwrap().is_none());
    assert_eq!(
        lock.holder().unwrap().unwrap().pid,
        Some(std::process::id())
    );
    drop(other);
    let _ = reader.release().unwrap();

    let handle = client.mutex(&format!("{name}:again")).reentrant();
    let (outer, inner) = (handle.lock().acquire(), handle.lock().acquire());
    assert_eq!(inner.unwrap().release().unwrap(), ReleaseOutcome::StillHeld);
    assert_eq!(outer.unwrap().release().unwrap(), ReleaseOutcome::Released);

    let permits = client.semaphore(&format!("{name}:permits"), 3);
    let two = permits.acquire_many(2).acquire().unwrap();
    assert!(permits.try_acquire_many(2).acquire().unwrap().is_none());
    permits.set_permits(4).unwrap();
    let counts = permits.permits().unwrap();
    assert_eq!((counts.total, counts.held), (4, 2));
    drop(two);

    let latch = client.latch(&format!("{name}:latch"));
    assert_eq!(latch.set(1, AMPLE).unwrap(), SetOutcome::Created);
    let waiting = latch.wait_timeout(Duration::from_millis(1));
    assert!(matches!(waiting, Err(Error::Timeout { .. })));
    assert_eq!(latch.count_down("one").unwrap(), LatchState::Open);
    assert_eq!(latch.wait().unwrap(), LatchState::Open);
    assert!(latch.delete().unwrap());
    assert_eq!(latch.state().unwrap(), LatchState::Absent);

    let none = MultiLock::<leasehold::Fenced>::new([]).acquire();
    assert!(matches!(none, Err(Error::Invalid { what: "locks", .. })));
}

/// Returns a server without an ACL, and a client of it.
fn open_server() -> (Server, Client) {
    let server = Flavor::one().start();
    let client = Client::connect(&format!("redis://127.0.0.1:{}", server.port()));
    (server, client.unwrap())
}

#[test]
fn redisson_objects_match_the_async_api() {
    let (_server, client) = open_server();
    let redisson = client.redisson().prefix("java:");
    let lock = redisson.lock(&name());
    let guard = lock.lock().acquire().unwrap();
    assert!(lock.try_lock().acquire().unwrap().is_none());
    assert!(lock.holder().unwrap().is_some());
    assert!(lock.force_unlock().unwrap());
    drop(guard);
    let fenced = redisson.fenced_lock(&name());
    let tokens = [(); 2].map(|()| fenced.run(|lease| lease.token()).unwrap());
    assert!(tokens[0] < tokens[1]);
    let again = redisson.fair_lock(&name()).reentrant();
    let (outer, inner) = (again.lock().acquire(), again.lock().acquire());
    assert_eq!(inner.unwrap().release().unwrap(), ReleaseOutcome::StillHeld);
    assert_eq!(outer.unwrap().release().unwrap(), ReleaseOutcome::Released);

    let lock = redisson.read_write_lock(&name());
    let reader = lock.write_lock().lock().acquire().unwrap().downgrade();
    let other = lock.read_lock().try_lock().acquire().unwrap();
    assert!(other.is_some() && lock.write_lock().try_lock().acquire().unwrap().is_none());
    drop((reader, other));

    let permits = redisson.semaphore(&name());
    assert!(permits.try_set_permits(2).unwrap());
    let two = permits.acquire(2).timeout(AMPLE).acquire().unwrap();
    assert!(permits.try_acquire(1).acquire().unwrap().is_none());
    two.release().unwrap();
    permits.add_permits(1).unwrap();
    assert_eq!(permits.available_permits().unwrap(), 3);
    let permits = redisson.permit_expirable_semaphore(&name());
    assert!(permits.try_set_permits(1).unwrap());
    let one = permits.acquire(1).acquire().unwrap();
    assert_eq!(permits.available_permits().unwrap(), 0);
    let _ = one.release().unwrap();

    let latch = redisson.count_down_latch(&name());
    assert!(latch.try_set_count(1).unwrap());
    assert!(matches!(
        latch.wait_timeout(SHORT),
        Err(Error::Timeout { .. })
    ));
    assert_eq!(latch.count_down().unwrap(), 0);
    latch.wait().unwrap();
    assert!(!latch.delete().unwrap());
}

#[test]
fn inspection_matches_the_async_api() {
    let (_server, client) = open_server();
    let names: Vec<_> = (0..20).map(|_| name()).collect();
    let locks = names.iter().map(|name| client.mutex(name).lock());
    let guards = MultiLock::new(locks).acquire().unwrap();
    let pages: Result<Vec<_>, _> = client.scan("test:*").collect();
    let mut found: Vec<_> = pages.unwrap().into_iter().flatten().collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    assert_eq!(found.len(), names.len());
    let free = client.wait_until_free(&names[0], Some(SHORT));
    assert!(matches!(free, Err(Error::Timeout { .. })));
    assert_eq!(client.force_release(&names[0]).unwrap().len(), 1);
    assert!(guards.lost_signal().wait_timeout(AMPLE));
    client.wait_until_free(&names[0], None).unwrap();
    assert!(client.inspect(&names[0]).unwrap().is_none());
    assert!(!client.server_info().unwrap().is_empty());
}

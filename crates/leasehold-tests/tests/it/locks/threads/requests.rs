//! Requests of every kind, which a thread waits for.

use std::time::Duration;

use leasehold::{
    Acquire, Client, Error, Exclusive, LatchState, Lease, MultiLock, Reentrant, SetOutcome,
};
use testkit::{Flavor, Server};

use super::client;
use crate::support::{AMPLE, SHORT, name, server};

/// Returns whether another owner holds the lock that `request` tries to
/// acquire.
fn is_busy<M: 'static>(request: Acquire<M>) -> bool {
    matches!(request.wait(), Err(Error::Busy { .. }))
}

/// Acquires a lock twice with one handle.
fn enter_twice<M: 'static>(handle: &Reentrant<M>) {
    let outer = handle.lock().wait().unwrap();
    let inner = handle.lock().wait().unwrap();
    assert_eq!(handle.guards(), 2);
    inner.release().wait().unwrap();
    outer.check().unwrap();
    outer.release().wait().unwrap();
    assert_eq!(handle.guards(), 0);
}

#[test]
fn thread_uses_guards_and_handles() {
    let server = server();
    let client = client(&server);
    let name = name();
    let lock = client.rw_lock(&name);
    let writer = lock.write().wait().unwrap();
    let token = writer.token();
    let reader = writer.downgrade().wait().unwrap();
    assert_eq!(reader.token(), token);
    let other = lock.try_read().wait().expect("readers share it");
    assert!(is_busy(lock.try_write()));
    let holder = lock.holder().wait().unwrap().unwrap();
    assert_eq!(holder.process.pid, Some(std::process::id()));
    drop(other);
    reader.release().wait().unwrap();

    enter_twice(&client.mutex(&format!("{name}:again")).reentrant());

    let permits = client.semaphore(&format!("{name}:permits"), 3);
    let two = permits.acquire_many(2).wait().unwrap();
    assert!(is_busy(permits.try_acquire_many(2)));
    permits.set_permits(4).wait().unwrap();
    let counts = permits.permits().wait().unwrap();
    assert_eq!((counts.total, counts.held), (4, 2));
    drop(two);

    let latch = client.latch(&format!("{name}:latch"));
    assert_eq!(latch.set(1, AMPLE).wait().unwrap(), SetOutcome::Created);
    let closed = latch.until_open(Some(Duration::from_millis(1))).wait();
    assert!(matches!(closed, Err(Error::Timeout { .. })));
    assert_eq!(latch.count_down("one").wait().unwrap(), LatchState::Open);
    assert_eq!(latch.until_open(None).wait().unwrap(), LatchState::Open);
    assert!(latch.delete().wait().unwrap());
    assert_eq!(latch.state().wait().unwrap(), LatchState::Absent);

    let none = MultiLock::<Exclusive>::new([]).wait();
    assert!(matches!(none, Err(Error::Invalid { what: "locks", .. })));
}

/// Returns a server without an ACL, and a client of it.
fn open_server() -> (Server, Client) {
    let server = Flavor::one().start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let client = Client::connect(&url).wait().unwrap();
    (server, client)
}

#[test]
fn thread_uses_redisson_objects() {
    let (_server, client) = open_server();
    let redisson = client.redisson().prefix("java:");
    let lock = redisson.lock(&name());
    let guard = lock.lock().wait().unwrap();
    assert!(is_busy(lock.try_lock()));
    assert!(lock.holder().wait().unwrap().is_some());
    assert!(lock.force_unlock().wait().unwrap());
    drop(guard);
    let fenced = redisson.fenced_lock(&name());
    let token = || fenced.lock().run_blocking(Lease::<Exclusive>::token);
    let earlier = token().unwrap();
    assert!(earlier < token().unwrap());
    enter_twice(&redisson.fair_lock(&name()).reentrant());

    let lock = redisson.read_write_lock(&name());
    let writer = lock.write_lock().lock().wait().unwrap();
    let reader = writer.downgrade().wait().unwrap();
    let other = lock.read_lock().try_lock().wait().unwrap();
    assert!(is_busy(lock.write_lock().try_lock()));
    drop((reader, other));

    let permits = redisson.semaphore(&name());
    assert!(permits.try_set_permits(2).wait().unwrap());
    let two = permits.acquire(2).timeout(AMPLE).wait().unwrap();
    assert!(is_busy(permits.try_acquire(1)));
    two.release().wait().unwrap();
    permits.add_permits(1).wait().unwrap();
    assert_eq!(permits.available_permits().wait().unwrap(), 3);
    let permits = redisson.permit_expirable_semaphore(&name());
    assert!(permits.try_set_permits(1).wait().unwrap());
    let one = permits.acquire(1).wait().unwrap();
    assert_eq!(permits.available_permits().wait().unwrap(), 0);
    one.release().wait().unwrap();

    let latch = redisson.count_down_latch(&name());
    assert!(latch.try_set_count(1).wait().unwrap());
    let closed = latch.until_open(Some(SHORT)).wait();
    assert!(matches!(closed, Err(Error::Timeout { .. })));
    assert_eq!(latch.count_down().wait().unwrap(), 0);
    latch.until_open(None).wait().unwrap();
    assert!(!latch.delete().wait().unwrap());
}

#[test]
fn thread_inspects_and_revokes_locks() {
    let (_server, client) = open_server();
    let names: Vec<_> = (0..20).map(|_| name()).collect();
    let locks = names.iter().map(|name| client.mutex(name).lock());
    let guards = MultiLock::new(locks).wait().unwrap();
    let mut found = Vec::new();
    let mut scan = client.scan("test:*");
    while let Some(page) = scan.next().wait().unwrap() {
        found.extend(page);
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    assert_eq!(found.len(), names.len());
    let free = client.until_free(&names[0], Some(SHORT)).wait();
    assert!(matches!(free, Err(Error::Timeout { .. })));
    assert_eq!(client.force_release(&names[0]).wait().unwrap().len(), 1);
    assert!(guards.lost().wait_timeout(AMPLE));
    client.until_free(&names[0], None).wait().unwrap();
    assert!(client.inspect(&names[0]).wait().unwrap().is_none());
    assert!(!client.server_info().wait().unwrap().is_empty());
}

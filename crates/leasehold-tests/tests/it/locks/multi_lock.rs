//! Multi-locks: all or none, in one order, lost with the first lost lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Exclusive, Lease, Loss};
use testkit::{Server, ServerExt};
use tokio::task::JoinSet;

use crate::support::contract::{MultiLock, any_lock};
use crate::support::{
    AMPLE, LEASE, SHORT, client, eventually, exists, key, loss_of, name, only_counters_left, run,
    scaled, server,
};

/// Returns a multi-lock of four lock types, in an order that depends on `turn`.
fn four(client: &Client, names: &[String], turn: u64) -> MultiLock {
    let mut parts: Vec<_> = (0..4)
        .zip(names)
        .map(|(kind, name)| any_lock(client, name, kind))
        .collect();
    parts.rotate_left(usize::try_from(turn % 4).unwrap());
    if turn.is_multiple_of(2) {
        parts.reverse();
    }
    MultiLock::new(parts)
}

#[test]
fn any_argument_order_avoids_deadlock() {
    run(async {
        let server = server();
        let names: Vec<_> = (0..4).map(|_| name()).collect();
        let mut tasks = Vec::new();
        for task in 0..6 {
            let client = client(&server).await;
            let names = names.clone();
            tasks.push(tokio::spawn(async move {
                for round in 0..scaled(50) {
                    let held = four(&client, &names, task + round).await.unwrap();
                    held.check().unwrap();
                    assert_eq!(held.leases().count(), 4);
                    held.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            let done = tokio::time::timeout(AMPLE, task).await;
            done.expect("no deadlock").unwrap();
        }
        eventually("only counters are left", || only_counters_left(&server)).await;
    });
}

/// Waits for four locks, one of which is never free. Returns how long after its
/// timeout the wait ended.
async fn time_past_timeout() -> Duration {
    let server = server();
    let mut names: Vec<_> = (0..4).map(|_| name()).collect();
    names.sort();
    let other = client(&server).await;
    let _held = any_lock(&other, &names[3], 3).await.unwrap();
    let second = any_lock(&other, &names[1], 1)
        .fixed_lease(SHORT)
        .await
        .unwrap();
    let limit = LEASE / 2;
    let start = Instant::now();
    let error = four(&client(&server).await, &names, 1).timeout(limit).await;
    let took = start.elapsed();
    let Err(Error::Timeout { name, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(name, names[3], "the error names another lock");
    assert!(took >= limit, "{took:?}");
    eventually("the other locks are free", || {
        names[..3].iter().all(|name| !exists(&server, name))
    })
    .await;
    drop(second);
    took - limit
}

#[test]
fn timeout_releases_partial_acquisition() {
    run(time_past_timeout());
}

#[test]
#[ignore = "deep: measures how exactly a timeout is kept"]
fn timeout_is_exact_within_600_ms() {
    let late = run(time_past_timeout());
    assert!(late < Duration::from_millis(600), "{late:?}");
}

async fn is_lost_with(client: Client, server: Arc<Server>, revoked: usize) {
    let names: Vec<_> = (0..4).map(|_| name()).collect();
    let held = four(&client, &names, 0).await.unwrap();
    server.tell(&["DEL", &key(&names[revoked])]);
    assert_eq!(held.lost().await, Some(Loss::Revoked));
    let Err(Error::Lost { name, .. }) = held.check() else {
        panic!("the lease is still valid")
    };
    assert_eq!(name, names[revoked]);
    assert!(held.remaining().is_zero());
    assert_eq!(loss_of(held.release().await), Some(Loss::Revoked));
}

async fn drops_work_with(client: Client, server: Arc<Server>) {
    let names: Vec<_> = (0..4).map(|_| name()).collect();
    let work = four(&client, &names, 0).run(|leases| async move {
        server.tell(&["DEL", &key(leases[2].name())]);
        std::future::pending::<()>().await;
    });
    let outcome = tokio::time::timeout(AMPLE, work).await;
    let error = outcome.expect("the work is dropped").unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

#[test]
fn first_lost_lease_loses_all() {
    run(async {
        let server = Arc::new(server());
        let client = client(&server).await;
        let mut tasks = JoinSet::new();
        for revoked in 0..4 {
            tasks.spawn(is_lost_with(client.clone(), server.clone(), revoked));
        }
        tasks.spawn(drops_work_with(client, server));
        tasks.join_all().await;
    });
}

#[test]
fn shared_locks_join_exclusive_ones() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let first = client.mutex(&name());
        let second = client.rw_lock(&name());
        let exclusive = leasehold::MultiLock::new([first.lock(), second.write()]);
        let exclusive: leasehold::MultiGuard<Exclusive> = exclusive.await.unwrap();
        let earlier: Vec<_> = exclusive.leases().map(Lease::<Exclusive>::token).collect();
        exclusive.release().await.unwrap();
        let third = client.semaphore(&name(), 2);
        let parts = [first.lock().into(), second.read(), third.acquire()];
        let mixed = leasehold::MultiLock::new(parts).await.unwrap();
        let lease = |name: &str| mixed.leases().find(|lease| lease.name() == name);
        let later = |name: &str| lease(name).unwrap().token();
        assert!(earlier.iter().any(|token| *token < later(first.name())));
        assert!(mixed.check().is_ok());
        mixed.release().await.unwrap();
    });
}

#[test]
fn duplicates_and_mixed_clients_are_rejected() {
    run(async {
        let server = server();
        let one = client(&server).await;
        let other = client(&server).await;
        let (name, second) = (name(), name());
        for parts in [
            [
                one.mutex(&name).lock().into(),
                one.mutex(&name).lock().into(),
            ],
            [one.rw_lock(&name).read(), one.rw_lock(&name).write().into()],
            [
                one.mutex(&name).lock().into(),
                other.mutex(&second).lock().into(),
            ],
            [one.mutex(&name).lock().into(), one.mutex("").lock().into()],
        ] {
            let refused = MultiLock::new(parts).await;
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
        assert!(only_counters_left(&server));
    });
}

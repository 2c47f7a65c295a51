//! The multi-lock: all or none, in one order, lost with the first that is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Loss, MultiLock, ReleaseOutcome};
use testkit::Server;
use tokio::task::JoinSet;

use crate::support::contract::any_lock;
use crate::support::{
    AMPLE, LEASE, SHORT, client, eventually, exists, key, name, nothing_is_left, run, scaled,
    server,
};

/// Locks of four kinds, each with a name of its own, in an order that depends on `turn`.
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
fn whatever_order_they_are_named_in_nobody_waits_for_ever() {
    run(async {
        let server = server();
        let names: Vec<_> = (0..4).map(|_| name()).collect();
        let mut tasks = Vec::new();
        for task in 0..6 {
            let (client, names) = (client(&server).await, names.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..scaled(50) {
                    let held = four(&client, &names, task + round).await.unwrap();
                    held.check().unwrap();
                    assert_eq!(held.tokens().count(), 4);
                    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
                }
            }));
        }
        for task in tasks {
            let done = tokio::time::timeout(AMPLE, task).await;
            done.expect("no deadlock").unwrap();
        }
        eventually("nothing is left", || nothing_is_left(&server)).await;
    });
}

/// Waits for four locks of which one is never free; says by how much the limit was exceeded.
async fn late_for_the_limit() -> Duration {
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
    assert_eq!(name, names[3], "the one that could not be had");
    assert!(took >= limit, "{took:?}");
    eventually("the others are free", || {
        names[..3].iter().all(|name| !exists(&server, name))
    })
    .await;
    drop(second);
    took - limit
}

#[test]
fn all_or_none_within_one_limit() {
    run(late_for_the_limit());
}

#[test]
#[ignore = "deep: measures how exactly a limit is kept"]
fn a_multi_lock_keeps_to_its_limit_within_600_ms() {
    let late = run(late_for_the_limit());
    assert!(late < Duration::from_millis(600), "{late:?}");
}

async fn is_lost_with(client: Client, server: Arc<Server>, victim: usize) {
    let names: Vec<_> = (0..4).map(|_| name()).collect();
    let held = four(&client, &names, 0).await.unwrap();
    server.tell(&["DEL", &key(&names[victim])]);
    let (name, loss) = held.lost().await;
    assert_eq!((name, loss), (names[victim].as_str(), Some(Loss::Revoked)));
    assert!(held.check().is_err());
    assert!(held.remaining().is_zero());
    assert_eq!(
        held.release().await.unwrap(),
        ReleaseOutcome::AlreadyLost {
            loss: Loss::Revoked
        }
    );
}

async fn drops_its_work_with(client: Client, server: Arc<Server>) {
    let names: Vec<_> = (0..4).map(|_| name()).collect();
    let work = four(&client, &names, 0).run(|leases| async move {
        server.tell(&["DEL", &key(leases[2].name())]);
        std::future::pending::<()>().await;
    });
    let outcome = tokio::time::timeout(AMPLE, work).await;
    let error = outcome.expect("dropped when it was lost").unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

#[test]
fn it_is_lost_with_the_first_that_is_lost() {
    run(async {
        let server = Arc::new(server());
        let client = client(&server).await;
        let mut tasks = JoinSet::new();
        for victim in 0..4 {
            tasks.spawn(is_lost_with(client.clone(), server.clone(), victim));
        }
        tasks.spawn(drops_its_work_with(client, server));
        tasks.join_all().await;
    });
}

#[test]
fn one_lock_twice_or_two_clients_are_refused() {
    run(async {
        let server = server();
        let (one, other) = (client(&server).await, client(&server).await);
        let (name, second) = (name(), name());
        for parts in [
            [one.mutex(&name).lock(), one.mutex(&name).lock()],
            [one.rw_lock(&name).read(), one.rw_lock(&name).write().into()],
            [one.mutex(&name).lock(), other.mutex(&second).lock()],
            [one.mutex(&name).lock(), one.mutex("").lock()],
        ] {
            let refused = MultiLock::new(parts).await;
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
        assert!(nothing_is_left(&server));
    });
}

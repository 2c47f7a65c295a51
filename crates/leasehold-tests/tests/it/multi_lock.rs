//! The multi-lock: all or none, in one order, lost with the first that is lost.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Loss, MultiLock, Release};

use testkit::machine::ran_since;

use crate::contract::any_lock;
use crate::support::{
    LEASE, beside_others, client, eventually, exists, key, name, nothing_is_left, scaled, server,
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
    beside_others(async {
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
                    assert_eq!(held.release().await.unwrap(), Release::Released);
                }
            }));
        }
        for task in tasks {
            let done = tokio::time::timeout(Duration::from_secs(60), task).await;
            done.expect("no deadlock").unwrap();
        }
        assert!(nothing_is_left(&server), "{:?}", server.ask(&["KEYS", "*"]));
    });
}

#[test]
fn all_or_none_within_one_limit() {
    beside_others(async {
        let server = server();
        let mut names: Vec<_> = (0..4).map(|_| name()).collect();
        names.sort();
        let other = client(&server).await;
        let _held = any_lock(&other, &names[3], 3).await.unwrap();
        let second = any_lock(&other, &names[1], 1).lease(LEASE).await.unwrap();
        let limit = LEASE * 2;
        let start = Instant::now();
        let error = four(&client(&server).await, &names, 1).wait(limit).await;
        let took = start.elapsed();
        let Err(Error::Timeout { name, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(name, names[3], "the one that could not be had");
        assert!(
            took >= limit && ran_since(start) < limit + Duration::from_millis(600),
            "{took:?}"
        );
        eventually(Duration::from_secs(1), "the others are free", || {
            names[..3].iter().all(|name| !exists(&server, name))
        })
        .await;
        drop(second);
    });
}

#[test]
fn it_is_lost_with_the_first_that_is_lost() {
    beside_others(async {
        let server = server();
        let names: Vec<_> = (0..4).map(|_| name()).collect();
        let client = client(&server).await;
        for victim in &names {
            let held = four(&client, &names, 0).await.unwrap();
            server.tell(&["DEL", &key(victim)]);
            let (name, loss) = held.lost().await;
            assert_eq!((name, loss), (victim.as_str(), Some(Loss::Taken)));
            assert!(held.check().is_err());
            assert!(held.remaining().is_zero());
            assert_eq!(
                held.release().await.unwrap(),
                Release::WasLost { loss: Loss::Taken }
            );
        }
        let work = four(&client, &names, 0).run(|leases| async move {
            server.tell(&["DEL", &key(leases[2].name())]);
            std::future::pending::<()>().await;
        });
        let outcome = tokio::time::timeout(LEASE * 2, work).await;
        let error = outcome.expect("dropped when it was lost").unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    });
}

#[test]
fn one_lock_twice_or_two_clients_are_refused() {
    beside_others(async {
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

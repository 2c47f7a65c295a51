//! Bugs of local hand-off, of `at_least`, and of names with another lock type.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Acquire, Client, Error, MultiLock};
use testkit::{Fault, Flavor, Proxy, Server, ServerExt};
use tokio::time::timeout;

use crate::support::contract::{self, any_lock, any_try_lock};
use crate::support::inspection::allow_inspection;
use crate::support::{
    AMPLE, LEASE, client, command_calls, connect_at, eventually, exists, has_subscriber, is_busy,
    key, lua, name, owners, run, server, with_long_timeouts,
};
use crate::waiting::local_handoff::{KINDS, hand_off_to};

/// Longer than a test.
const HOUR: Duration = Duration::from_secs(3600);

/// A task was handed a fair mutex as the writer of a read-write lock of that
/// name. It must ask the server.
#[test]
fn writer_is_not_handed_fair_mutex() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let first = client.fair_mutex(&name).lock().await.unwrap();
        let second = tokio::spawn(client.fair_mutex(&name).lock().into_future());
        eventually("the waiter waits", || {
            !owners(&server, "queue", &name).is_empty()
        })
        .await;
        let writer = Acquire::from(client.rw_lock(&name).write()).timeout(AMPLE);
        let writer = tokio::spawn(writer.into_future());
        let semaphore = client.semaphore(&name, 1).acquire().timeout(AMPLE);
        let semaphore = tokio::spawn(semaphore.into_future());
        for asked in [writer, semaphore] {
            let error = asked.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        }
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        second.release().await.unwrap();
    });
}

/// A latch waiter waited behind local waiters for a mutex of that name. It must
/// ask the server.
#[test]
fn latch_waiter_does_not_wait_for_mutex() {
    run(async {
        let server = server();
        let (other, client) = (client(&server).await, client(&server).await);
        let name = name();
        let held = other.mutex(&name).lock().await.unwrap();
        let waiter = tokio::spawn(client.mutex(&name).lock().into_future());
        eventually("the waiter waits", || has_subscriber(&server, &name)).await;
        let error = client
            .latch(&name)
            .until_open(Some(LEASE))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        held.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        guard.release().await.unwrap();
    });
}

/// After a loss of the counter, tokens for hand-off started below the holder's
/// own.
#[test]
fn handed_off_token_increases_without_counter() {
    const LOSE: &[&str] = &[
        "EVAL",
        "for _, key in ipairs(redis.call('KEYS', 'leasehold:token:*')) do redis.call('DEL', key) end",
        "0",
    ];
    run(async {
        let server = server();
        for kind in KINDS {
            for _ in 0..5 {
                // Asserts that tokens increase.
                let _ = hand_off_to(&server, kind, |lock| lock, LOSE).await;
            }
        }
    });
}

/// The lock was free when the lease ended.
#[test]
fn at_least_above_fixed_lease_is_rejected() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let asked = client.mutex(&name).try_lock().fixed_lease(LEASE);
        let error = asked.at_least(LEASE * 2).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("20s") && text.contains("10s"), "{text}");
    });
}

/// A future that was not polled was granted the lock. Although its caller never
/// had the lock, others were kept out for `at_least`.
#[test]
fn unclaimed_lock_with_at_least_is_free_at_once() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = || with_long_timeouts(Client::connect(&url)).into_future();
        let (ours, theirs) = (connect().await.unwrap(), connect().await.unwrap());
        // Every grant draws a token. The lock itself is taken back so soon that
        // a stall could hide it.
        let drawn = || {
            let counters = server.ask(&["KEYS", "leasehold:token:*"]);
            let values = counters
                .list()
                .iter()
                .map(|key| server.ask(&["GET", key.text()]));
            values
                .map(|value| value.text().parse::<u64>().unwrap())
                .sum::<u64>()
        };
        for kind in 0..contract::KINDS {
            let name = name();
            let held = any_lock(&theirs, &name, kind).await.unwrap();
            let mut unpolled = any_lock(&ours, &name, kind).at_least(HOUR).into_future();
            let waits =
                || has_subscriber(&server, &name) || !owners(&server, "queue", &name).is_empty();
            while !waits() {
                let polled = timeout(LEASE / 1000, &mut unpolled).await;
                assert!(polled.is_err(), "kind {kind}: the lock is held");
            }
            let before = drawn();
            held.release().await.unwrap();
            eventually("the lock is granted", || drawn() > before).await;
            let next = any_lock(&theirs, &name, kind).timeout(AMPLE).await;
            let next = next.unwrap_or_else(|error| panic!("kind {kind}: {error}"));
            next.release().await.unwrap();
            // The caller still gets it, and from then on others are kept out.
            unpolled.await.unwrap().release().await.unwrap();
            assert!(is_busy(any_try_lock(&theirs, &name, kind)).await);
        }
    });
}

/// Several locks could not be acquired together. Those that were free before
/// stayed locked for `at_least`.
#[test]
fn failed_multi_lock_with_at_least_keeps_nobody_out() {
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let (one, two) = (name() + "-1", name() + "-2");
        let both =
            || MultiLock::new([&one, &two].map(|name| ours.mutex(name).lock().at_least(HOUR)));
        let held = theirs.mutex(&two).lock().await.unwrap();
        let failed = both().timeout(LEASE / 50).await.unwrap_err();
        assert!(matches!(failed, Error::Timeout { .. }), "{failed:?}");
        let free = theirs.mutex(&one).lock().timeout(AMPLE).await.unwrap();
        free.release().await.unwrap();
        held.release().await.unwrap();
        both().await.unwrap().release().await.unwrap();
        for name in [&one, &two] {
            assert!(
                is_busy(theirs.mutex(name).try_lock()).await,
                "{name} is free"
            );
        }
    });
}

/// A lock was acquired as a part of several, and the acquire was cancelled.
/// Another task had entered the lock meanwhile.
#[test]
fn at_least_counts_for_a_task_that_enters_a_part() {
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let (one, two) = (name() + "-1", name() + "-2");
        let handle = ours.mutex(&one).reentrant();
        let held = theirs.mutex(&two).lock().await.unwrap();
        let parts = [handle.lock().at_least(HOUR), ours.mutex(&two).lock()];
        let both = tokio::spawn(MultiLock::new(parts).into_future());
        eventually("a part is acquired", || exists(&server, &one)).await;
        let entered = handle.lock().at_least(HOUR).await.unwrap();
        both.abort();
        assert!(both.await.unwrap_err().is_cancelled());
        eventually("the part is dropped", || handle.guards() == 1).await;
        entered.release().await.unwrap();
        assert!(is_busy(theirs.mutex(&one).try_lock()).await);
        held.release().await.unwrap();
    });
}

/// A part of several locks that failed kept others out for `at_least`: another
/// caller, which had not asked for it, had entered the lock.
#[test]
fn at_least_of_a_failed_part_does_not_begin_for_another_caller() {
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        for is_part in [false, true] {
            let [one, two, other] = ["1", "2", "3"].map(|end| format!("{}-{end}", name()));
            let handle = ours.mutex(&one).reentrant();
            let held = theirs.mutex(&two).lock().await.unwrap();
            let parts = [handle.lock().at_least(HOUR), ours.mutex(&two).lock()];
            let both = tokio::spawn(MultiLock::new(parts).into_future());
            eventually("a part is acquired", || exists(&server, &one)).await;
            let (mut sole, mut several) = (None, None);
            if is_part {
                let parts = [handle.lock(), ours.mutex(&other).lock()];
                several = Some(MultiLock::new(parts).await.unwrap());
            } else {
                sole = Some(handle.lock().await.unwrap());
            }
            both.abort();
            assert!(both.await.unwrap_err().is_cancelled());
            eventually("the part is dropped", || handle.guards() == 1).await;
            if let Some(guard) = sole {
                guard.release().await.unwrap();
            }
            if let Some(guards) = several {
                guards.release().await.unwrap();
            }
            assert!(!is_busy(theirs.mutex(&one).try_lock()).await);
            held.release().await.unwrap();
        }
    });
}

/// Only the last guard of a handle reported that the lock was lost before.
#[test]
fn release_of_an_inner_guard_reports_the_loss() {
    run(async {
        let server = server();
        allow_inspection(&server);
        let client = client(&server).await;
        let name = name();
        let handle = client.mutex(&name).reentrant();
        let outer = handle.lock().await.unwrap();
        let inner = handle.lock().await.unwrap();
        client.force_release(&name).await.unwrap();
        outer.lost().await;
        for guard in [inner, outer] {
            let released = guard.release().await;
            assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
        }
    });
}

/// A renewal in flight during a release made the server keep the lock for a
/// whole lease.
#[test]
fn late_renewal_does_not_extend_released_lock() {
    const RENEWALS: [&str; 2] = [
        lua!("single_key/renew"),
        concat!(lua!("queue/prelude"), lua!("queue/renew")),
    ];
    run(async {
        let servers = [server(), server()];
        for (server, renewal) in servers.iter().zip(RENEWALS) {
            // Loaded, so that it is executed when it arrives.
            server.tell(&["SCRIPT", "LOAD", renewal]);
        }
        tokio::join!(
            renew_late(&servers[0], |client, name| client.mutex(name).lock()),
            renew_late(&servers[1], |client, name| client.fair_mutex(name).lock()),
        );
    });
}

async fn renew_late(server: &Server, lock: fn(&Client, &str) -> Acquire) {
    allow_inspection(server);
    let proxy = Proxy::start(server.port());
    let client = connect_at(proxy.port()).await.unwrap();
    let name = name();
    let lock = lock(&client, &name).at_least(LEASE).note("job");
    let guard = lock.await.unwrap();
    let delayed = Arc::new(AtomicBool::new(false));
    let seen = delayed.clone();
    // The first script from now on is the renewal.
    proxy.inject(move |request| {
        let is_script = request[0].starts_with(b"EVAL");
        match is_script && !seen.swap(true, Ordering::SeqCst) {
            true => Fault::Hold,
            false => Fault::None,
        }
    });
    eventually("the renewal is delayed", || delayed.load(Ordering::SeqCst)).await;
    guard.release().await.unwrap();
    let kept = expiry_of(server, &name).expect("at_least still applies");
    let before = command_calls(server, "evalsha");
    proxy.release_held();
    eventually("the renewal arrives", || {
        command_calls(server, "evalsha") > before
    })
    .await;
    assert_eq!(expiry_of(server, &name), Some(kept), "prolonged");
    let seen = client
        .inspect(&name)
        .await
        .unwrap()
        .expect("at_least still applies");
    assert_eq!(seen.holders[0].process.note.as_deref(), Some("job"));
}

/// Returns the expiry of this lock on the server.
fn expiry_of(server: &Server, name: &str) -> Option<String> {
    let holders = server.ask(&["KEYS", &format!("leasehold:holders:*:{}", key(name))]);
    let Some(holders) = holders.list().first() else {
        let end = server.ask(&["PEXPIRETIME", &key(name)]).int();
        return (end > 0).then(|| end.to_string());
    };
    let owners = server.ask(&["ZRANGE", holders.text(), "0", "0", "WITHSCORES"]);
    Some(owners.list().get(1)?.text().to_owned())
}

//! Bugs of waiters, and of acquires that are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Error, MultiLock};
use testkit::{Fault, Flavor, Proxy, Server};

use crate::support::deployment::{Deployment, Five};
use crate::support::{
    AMPLE, LEASE, builder_at, channels, client, eventually, lua, name, nothing_is_left, run,
    scaled, server,
};

pub(super) async fn until_waited_for(server: &Server) {
    eventually("a waiter", || !channels(server).is_empty()).await;
}

/// The limit of a clone counted only from when the other clone had got the lock.
#[test]
fn a_wait_on_a_reentrant_handle_is_kept_to_while_another_clone_waits() {
    wait_beside_clone(Duration::from_secs(3), AMPLE);
}

#[test]
#[ignore = "deep: measures how soon a wait ends"]
fn wait_beside_waiting_clone_ends_in_time() {
    wait_beside_clone(Duration::from_millis(200), Duration::from_millis(800));
}

fn wait_beside_clone(wait: Duration, limit: Duration) {
    run(async {
        let server = server();
        let name = name();
        let _held = client(&server).await.mutex(&name).lock().await.unwrap();
        let handle = client(&server).await.mutex(&name).reentrant();
        let other = handle.clone();
        let waiting = tokio::spawn(async move { other.lock().await });
        until_waited_for(&server).await;
        let start = Instant::now();
        let outcome = tokio::time::timeout(AMPLE, handle.lock().timeout(wait).into_future()).await;
        let error = outcome.expect("the wait ends").unwrap_err();
        assert!(
            matches!(
                error,
                Error::Timeout {
                    holder: Some(_),
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
        waiting.abort();
    });
}

/// Only the first in line talks to the server, so those behind it knew nothing of the holder.
#[test]
fn a_timeout_behind_others_in_line_names_the_holder() {
    run(async {
        let server = server();
        let name = name();
        let _held = client(&server)
            .await
            .mutex(&name)
            .lock()
            .note("me")
            .await
            .unwrap();
        let waiters = client(&server).await;
        let first = tokio::spawn(waiters.mutex(&name).lock().into_future());
        until_waited_for(&server).await;
        let start = Instant::now();
        let holder = loop {
            let behind = waiters.mutex(&name).lock().timeout(LEASE / 100).await;
            match behind.unwrap_err() {
                Error::Timeout {
                    holder: Some(holder),
                    ..
                } => break holder,
                // The first waiter has subscribed, and may not have the holder yet.
                error => assert!(start.elapsed() < AMPLE, "{error:?}"),
            }
        };
        assert_eq!(holder.note.as_deref(), Some("me"));
        assert!(holder.lease_remaining.is_some_and(|left| left <= LEASE));
        first.abort();
    });
}

/// What a multi-lock had when it failed was given back in the background only, and was in its own way.
#[test]
fn a_multi_lock_that_failed_can_be_tried_again_at_once() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let (first, second) = (client.mutex("a of two"), client.fair_mutex("b of two"));
        for _ in 0..100 {
            let held = second.lock().await.unwrap();
            let both = || MultiLock::new([first.lock(), second.lock()]).timeout(Duration::ZERO);
            assert!(matches!(both().await, Err(Error::Timeout { .. })));
            let _ = held.release().await.unwrap();
            let _ = both().await.unwrap().release().await.unwrap();
        }
    });
}

/// Each wait beside a dead node of a quorum left a task behind that waited for that node.
#[test]
fn waits_beside_a_dead_node_leave_nothing_behind() {
    run(async {
        let mut five = Five::start(&Flavor::one());
        let (one, other) = (five.client().await, five.client().await);
        five.servers[4].kill();
        let name = name();
        let _held = one.mutex(&name).lock().await.unwrap();
        let tasks = || {
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks()
        };
        let wait_often = async || {
            for _ in 0..30 {
                let wait = Duration::from_millis(20);
                let error = other.mutex(&name).lock().timeout(wait).await.unwrap_err();
                assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            }
        };
        wait_often().await;
        // What ends by itself has ended.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = tasks();
        wait_often().await;
        eventually("no tasks left", || tasks() <= before + 10).await;
    });
}

/// An order that came in between the keeper's look for orders and its look whether it was still needed was forgotten:
/// the lock stayed until its lease ended.
#[test]
fn what_is_dropped_together_with_the_last_client_is_given_back() {
    run(async {
        let server = server();
        let clients = scaled(300);
        for _ in 0..clients {
            let client = builder_at(server.port()).lease(LEASE * 100);
            let client = client.connect().await.unwrap();
            let guard = client.mutex(&name()).try_lock().await.unwrap();
            // The keeper is awake when its client goes.
            drop(client.mutex(&name()).try_lock().await.unwrap());
            drop(guard);
        }
        let given_back = || nothing_is_left(&server);
        eventually("all is given back", given_back).await;
    });
}

/// A script that the server did not know was sent again for one who had gone, after the cancel that counted on coming
/// last: the lock stayed until its lease ended.
#[test]
fn an_acquire_dropped_before_its_script_is_known_leaves_no_lock() {
    const RELEASE: &str = concat!(
        lua!("queue/state"),
        lua!("queue/steps"),
        lua!("queue/release")
    );
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).lease(LEASE * 100);
        let client = client.connect().await.unwrap();
        let scripts = Arc::new(AtomicU64::new(0));
        let sent = scripts.clone();
        proxy.judge(move |request| {
            sent.fetch_add(request[0].starts_with(b"EVAL").into(), Ordering::SeqCst);
            Fault::None
        });
        // A client that has seen a queue begins with a script.
        let name = name();
        let held = self::client(&server).await;
        let held = held.fair_mutex(&name).lock().await.unwrap();
        let fair = client.fair_mutex(&name);
        let waited = fair.lock().timeout(Duration::from_millis(50)).await;
        assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
        let _ = held.release().await.unwrap();
        for _ in 0..10 {
            server.tell(&["SCRIPT", "FLUSH"]);
            // The cancel is known, and is executed when it arrives.
            server.tell(&["SCRIPT", "LOAD", RELEASE]);
            let before = scripts.load(Ordering::SeqCst);
            proxy.black_hole(true);
            let taking = tokio::spawn(fair.lock().into_future());
            let on_its_way = || scripts.load(Ordering::SeqCst) > before;
            eventually("on its way", on_its_way).await;
            taking.abort();
            assert!(taking.await.is_err(), "the acquire ended first");
            proxy.black_hole(false);
            let cancelled = || scripts.load(Ordering::SeqCst) > before + 1;
            eventually("cancelled", cancelled).await;
            // Nothing follows the cancel.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let given_back = || nothing_is_left(&server);
        eventually("all is given back", given_back).await;
    });
}

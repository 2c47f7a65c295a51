//! One test per bug that was found and fixed.

use std::time::{Duration, Instant};

use leasehold::{Error, MultiLock, Release};
use testkit::machine::{self, ran_since};
use testkit::{Connection, Fault, Flavor, Proxy};

use crate::deployment::{Deployment, Five, cluster};
use crate::inspect::allow_looking;
use crate::support::{
    LEASE, beside_others, builder_at, client, eventually, exists, name, nothing_is_left, scaled,
    server,
};

/// The limit of a clone counted only from when the other clone had got the lock.
#[test]
fn a_wait_on_a_reentrant_handle_is_kept_to_while_another_clone_waits() {
    beside_others(async {
        let server = server();
        let name = name();
        let _held = client(&server).await.mutex(&name).lock().await.unwrap();
        let handle = client(&server).await.mutex(&name).reentrant();
        let other = handle.clone();
        let waiting = tokio::spawn(async move { other.lock().await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let start = Instant::now();
        let error = handle
            .lock()
            .wait(Duration::from_millis(200))
            .await
            .unwrap_err();
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
        assert!(
            ran_since(start) < Duration::from_millis(800),
            "{:?}",
            start.elapsed()
        );
        waiting.abort();
    });
}

/// A connection that broke while nobody used it made the next release fail.
#[test]
fn a_release_after_its_connection_broke_succeeds() {
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).connect().await.unwrap();
        for pause in [0, 50].map(Duration::from_millis) {
            let guard = client.mutex(&name()).lock().await.unwrap();
            proxy.sever();
            tokio::time::sleep(pause).await;
            assert_eq!(guard.release().await.unwrap(), Release::Released);
        }
    });
}

/// Only the first in line talks to the server, so those behind it knew nothing of the holder.
#[test]
fn a_timeout_behind_others_in_line_names_the_holder() {
    beside_others(async {
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
        tokio::time::sleep(Duration::from_millis(100)).await;
        let behind = waiters
            .mutex(&name)
            .lock()
            .wait(Duration::from_millis(100))
            .await;
        let Err(Error::Timeout {
            holder: Some(holder),
            ..
        }) = behind
        else {
            panic!("{behind:?}")
        };
        assert_eq!(holder.note.as_deref(), Some("me"));
        assert!(holder.lease_left.is_some_and(|left| left <= LEASE));
        first.abort();
    });
}

/// Renewals and releases used one connection only; what broke it at once every time lost the lease.
#[test]
fn a_keeper_s_connection_that_always_breaks_loses_no_lease() {
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).connect().await.unwrap();
        let (held, dropped, awaited) = (name(), name(), name());
        let _other = self::client(&server)
            .await
            .mutex(&awaited)
            .lock()
            .await
            .unwrap();
        let guard = client.mutex(&held).lock().await.unwrap();
        let second = client.mutex(&dropped).lock().await.unwrap();
        proxy.judge(|request| match request[0].as_slice() {
            b"SSUBSCRIBE" => Fault::CutRequest,
            _ => Fault::None,
        });
        let waiting = tokio::spawn(client.mutex(&awaited).lock().into_future());
        tokio::time::sleep(LEASE * 4).await;
        guard.check().unwrap();
        drop(second);
        eventually(Duration::from_secs(2), "released", || {
            !exists(&server, &dropped)
        })
        .await;
        waiting.abort();
    });
}

/// A token older than the connection was taken for one of a counter that had been lost, and raised.
#[test]
fn a_reader_that_connects_later_shares_the_token_of_those_inside() {
    beside_others(async {
        let (server, name) = (server(), name());
        let first = client(&server).await.rw_lock(&name).read().await.unwrap();
        let later = client(&server).await.rw_lock(&name).read().await.unwrap();
        assert_eq!(first.token(), later.token());
    });
}

/// What a multi-lock had when it failed was given back in the background only, and was in its own way.
#[test]
fn a_multi_lock_that_failed_can_be_tried_again_at_once() {
    beside_others(async {
        let server = server();
        let client = client(&server).await;
        let (first, second) = (client.mutex("a of two"), client.fair_mutex("b of two"));
        for _ in 0..100 {
            let held = second.lock().await.unwrap();
            let both = || MultiLock::new([first.lock(), second.lock()]).wait(Duration::ZERO);
            assert!(matches!(both().await, Err(Error::Timeout { .. })));
            let _ = held.release().await.unwrap();
            let _ = both().await.unwrap().release().await.unwrap();
        }
    });
}

/// Each wait beside a dead node of a quorum left a task behind that waited for that node.
#[test]
fn waits_beside_a_dead_node_leave_nothing_behind() {
    beside_others(async {
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
        let mut after = Vec::new();
        for _ in 0..2 {
            for _ in 0..30 {
                let wait = Duration::from_millis(20);
                let error = other.mutex(&name).lock().wait(wait).await.unwrap_err();
                assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            after.push(tasks());
        }
        assert!(after[1] <= after[0] + 10, "{after:?} tasks");
    });
}

/// A carrier of requests that had just ended took with it what was posted to the next one.
#[test]
fn what_is_posted_while_a_carrier_ends_is_carried() {
    beside_others(async {
        let server = server();
        let client = client(&server).await;
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let mutex = client.mutex(&format!("{} {task}", name()));
                tokio::spawn(async move {
                    for _ in 0..60_000 {
                        assert_eq!(mutex.holder().await.unwrap(), None);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// An order that came in between the keeper's look for orders and its look whether it was still needed was forgotten:
/// the lock stayed until its lease ended.
#[test]
fn what_is_dropped_together_with_the_last_client_is_given_back() {
    beside_others(async {
        let server = server();
        let clients = scaled(1500);
        for _ in 0..clients {
            let client = builder_at(server.port()).lease(LEASE * 100);
            let client = client.connect().await.unwrap();
            let guard = client.mutex(&name()).try_lock().await.unwrap();
            // The keeper is awake when its client goes.
            drop(client.mutex(&name()).try_lock().await.unwrap());
            drop(guard);
        }
        let given_back = || nothing_is_left(&server);
        eventually(Duration::from_secs(5), "all is given back", given_back).await;
    });
}

/// A script that the server did not know was sent again for one who had gone, after the cancel that counted on coming
/// last: the lock stayed until its lease ended.
#[test]
fn an_acquire_dropped_before_its_script_is_known_leaves_no_lock() {
    const RELEASE: &str = concat!(
        include_str!("../../../leasehold/lua/queue/line.lua"),
        include_str!("../../../leasehold/lua/queue/release.lua")
    );
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).lease(LEASE * 100);
        let client = client.connect().await.unwrap();
        proxy.distance(Duration::from_millis(20));
        for _ in 0..10 {
            server.tell(&["SCRIPT", "FLUSH"]);
            // The cancel is known, and is executed when it arrives.
            server.tell(&["SCRIPT", "LOAD", RELEASE]);
            let taking = client.fair_mutex(&name()).lock().into_future();
            let dropped = tokio::time::timeout(Duration::from_millis(10), taking).await;
            assert!(dropped.is_err(), "it was not on its way");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let given_back = || nothing_is_left(&server);
        eventually(Duration::from_secs(2), "all is given back", given_back).await;
    });
}

/// A lock with a line that was given back between the two looks at it was no lock to the one who looked.
#[test]
fn one_who_looks_at_a_lock_that_is_just_given_back_sees_nothing() {
    beside_others(async {
        let server = server();
        allow_looking(&server);
        let proxy = Proxy::start(server.port());
        let looking = builder_at(proxy.port()).connect().await.unwrap();
        let (name, port) = (name(), server.port());
        for _ in 0..2 {
            let _guard = client(&server).await.fair_mutex(&name).lock().await;
            assert!(exists(&server, &name));
            proxy.judge(move |request| {
                if request[0].starts_with(b"EVAL") {
                    let gone = Connection::open(port).and_then(|mut it| it.ask(&["FLUSHALL"]));
                    assert!(gone.is_ok(), "{gone:?}");
                }
                Fault::None
            });
            assert!(looking.look(&name).await.unwrap().is_none());
            assert!(!exists(&server, &name), "there was no second look");
            proxy.heal();
        }
        looking.until_free(&name, None).await.unwrap();
    });
}

/// Who heard of grants and what it heard them by kept each other, and in a cluster with them all connections of a client
/// that had gone.
#[test]
fn a_client_of_a_cluster_that_has_gone_leaves_no_connection() {
    let _place = machine::beside_others();
    let cluster = cluster(&Flavor::one());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (first, second) = (cluster.client().await, cluster.client().await);
        let name = name();
        let guard = first.fair_mutex(&name).lock().await.unwrap();
        let waiting = tokio::spawn(second.fair_mutex(&name).lock().into_future());
        // Until it stands in the server's line.
        tokio::time::sleep(LEASE / 3).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert!(first.shutdown(LEASE).await && second.shutdown(LEASE).await);
    });
    let end = Instant::now() + Duration::from_secs(5);
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < end, "connections are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! One test per bug that was found and fixed.

/// Locks that are handed on, kept, or asked for as another kind.
mod holding;
/// Locks that operators and other libraries look at, release by force, or change.
mod inspection;
/// Owners, losses, waiters and the keeper.
mod lease;
/// Sentinels, clusters, quorums and subscriptions.
mod network;
/// What was done is done, also where it may not be published.
mod publish;
/// Redisson's objects.
mod redisson;
/// Tokens rise although the server loses its data.
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MultiLock, ReleaseOutcome, Replicas, ShutdownOutcome};
use testkit::sentinel_group::GROUP;
use testkit::{Connection, Fault, Flavor, Proxy, Server, Setup};

use crate::deployment::{Deployment, Five, cluster, group, sentinel_builder};
use crate::inspect::allow_looking;
use crate::support::{
    AMPLE, LEASE, builder_at, channels, client, eventually, exists, name, nothing_is_left, patient,
    run, scaled, server, until_renewed,
};

async fn until_waited_for(server: &Server) {
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

/// A connection that broke while nobody used it made the next release fail.
#[test]
fn a_release_after_its_connection_broke_succeeds() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).connect().await.unwrap();
        for pause in [0, 50].map(Duration::from_millis) {
            let guard = client.mutex(&name()).lock().await.unwrap();
            proxy.sever();
            tokio::time::sleep(pause).await;
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        }
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

/// Renewals and releases used one connection only; what broke it at once every time lost the lease.
#[test]
fn a_keeper_s_connection_that_always_breaks_loses_no_lease() {
    run(async {
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
        proxy.inject(|request| match request[0].as_slice() {
            b"SSUBSCRIBE" => Fault::CutRequest,
            _ => Fault::None,
        });
        let waiting = tokio::spawn(client.mutex(&awaited).lock().into_future());
        for _ in 0..2 {
            until_renewed(&[guard.lease()]).await;
        }
        drop(second);
        eventually("released", || !exists(&server, &dropped)).await;
        waiting.abort();
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

/// A carrier of requests that had just ended took with it what was posted to the next one.
#[test]
fn what_is_posted_while_a_carrier_ends_is_carried() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let requests = scaled(6000);
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let mutex = client.mutex(&format!("{} {task}", name()));
                tokio::spawn(async move {
                    for _ in 0..requests {
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
        include_str!("../../../leasehold/lua/queue/state.lua"),
        include_str!("../../../leasehold/lua/queue/steps.lua"),
        include_str!("../../../leasehold/lua/queue/release.lua")
    );
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).lease(LEASE * 100);
        let client = client.connect().await.unwrap();
        let scripts = Arc::new(AtomicU64::new(0));
        let sent = scripts.clone();
        proxy.inject(move |request| {
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

/// A lock with a line that was given back between the two looks at it was no lock to the one who looked.
#[test]
fn one_who_looks_at_a_lock_that_is_just_given_back_sees_nothing() {
    run(async {
        let server = server();
        allow_looking(&server);
        let proxy = Proxy::start(server.port());
        let looking = builder_at(proxy.port()).connect().await.unwrap();
        let (name, port) = (name(), server.port());
        for _ in 0..2 {
            // Two holders: one alone is seen at the first look.
            let semaphore = client(&server).await.semaphore(&name, 2);
            let _guards = tokio::join!(semaphore.acquire(), semaphore.acquire());
            assert!(exists(&server, &name));
            proxy.inject(move |request| {
                if request[0].starts_with(b"EVAL") {
                    let gone = Connection::open(port).and_then(|mut it| it.ask(&["FLUSHALL"]));
                    assert!(gone.is_ok(), "{gone:?}");
                }
                Fault::None
            });
            assert!(looking.inspect(&name).await.unwrap().is_none());
            assert!(!exists(&server, &name), "there was no second look");
            proxy.heal();
        }
        looking.wait_until_free(&name, None).await.unwrap();
    });
}

/// Who heard of grants and what it heard them by kept each other, and in a cluster with them all connections of a client
/// that had gone.
#[test]
fn a_client_of_a_cluster_that_has_gone_leaves_no_connection() {
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
        let queue = |server: &Server| server.ask(&["KEYS", "leasehold:queue:*"]);
        let waits = |server: &Server| !queue(server).list().is_empty();
        eventually("a waiter", || cluster.servers().iter().any(waits)).await;
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        for client in [&first, &second] {
            assert_eq!(client.shutdown(LEASE).await, ShutdownOutcome::Released);
        }
    });
    let end = Instant::now() + AMPLE;
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < end, "connections are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Counting replicas gave the server one second, and ignored the timeouts that were set.
#[test]
fn slow_count_of_replicas_is_waited_for() {
    run(async {
        let at_once = Setup::default().option("repl-diskless-sync-delay", "0");
        let master = at_once.start(&Flavor::one());
        let replica = Server::start(&Flavor::one());
        replica.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        let role = || master.ask(&["INFO", "replication"]);
        eventually("a replica", || role().text().contains("state=online")).await;
        let proxy = Proxy::start(master.port());
        proxy.inject(|request| match request[0].as_slice() {
            b"ROLE" => Fault::Delay(Duration::from_millis(1500)),
            _ => Fault::None,
        });
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let builder = patient(Client::builder(&url)).replicas(Replicas::All, LEASE / 2);
        let client = builder.connect().await.unwrap();
        let guard = client.mutex(&name()).try_lock().await.unwrap();
        assert_eq!(
            guard.unwrap().release().await.unwrap(),
            ReleaseOutcome::Released
        );
    });
}

/// What waiters posted on the keeper's connection was carried by a task of their own runtime. While that runtime was
/// blocked, renewals lay behind it until they timed out, and the connection was given up with all its subscriptions.
#[test]
#[ignore = "deep: a machine that stalls breaks connections too"]
fn blocked_waiters_do_not_hold_up_renewals() {
    let server = server();
    let names: Vec<_> = (0..20).map(|_| name()).collect();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let other = runtime();
    let _held: Vec<_> = other.block_on(async {
        let client = client(&server).await;
        let mut held = Vec::new();
        for name in &names {
            held.push(client.mutex(name).lock().await.unwrap());
        }
        held
    });
    runtime().block_on(async {
        let builder = builder_at(server.port()).lease(Duration::from_secs(3));
        let client = builder.connect().await.unwrap();
        for name in &names {
            let mutex = client.mutex(name);
            tokio::spawn(async move { drop(mutex.lock().await) });
        }
        let guard = client.mutex(&name()).lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let keepers = || {
            let clients = server.ask(&["CLIENT", "LIST"]);
            let keepers = clients
                .text()
                .lines()
                .filter(|line| line.contains("-keeper"));
            let ids = keepers.filter_map(|line| Some(line.split_once(' ')?.0.to_owned()));
            ids.collect::<Vec<_>>()
        };
        let before = keepers();
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1300));
            guard.check().expect("the keeper renews");
            tokio::task::yield_now().await;
        }
        assert_eq!(keepers(), before, "the keeper's connection was given up");
    });
}

/// Requests went on to a connection whose runtime had ended, and were not answered.
#[test]
fn client_outlives_the_runtime_it_began_on() {
    let server = server();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let client = runtime().unwrap().block_on(async {
        let client = client(&server).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        client
    });
    runtime().unwrap().block_on(async {
        let guard = client.mutex(&name()).try_lock().await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

/// A dial lived in the future of the caller that needed it: callers that gave up sooner than a dial took never connected.
#[test]
fn impatient_callers_share_one_dial() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = patient(builder_at(proxy.port())).connect().await.unwrap();
        proxy.inject(|request| match request[0].as_slice() {
            b"HELLO" => Fault::Delay(Duration::from_millis(1500)),
            _ => Fault::None,
        });
        proxy.sever();
        let mutex = client.mutex(&name());
        let end = Instant::now() + AMPLE;
        loop {
            assert!(Instant::now() < end, "no caller was answered");
            let asked = tokio::time::timeout(Duration::from_millis(400), mutex.holder());
            if let Ok(Ok(holder)) = asked.await {
                assert_eq!(holder, None);
                break;
            }
        }
    });
}

/// Connections that wait for replicas stayed with a master that the client had left.
#[test]
fn connections_for_replicas_leave_a_former_master() {
    run(async {
        let group = group(&Flavor::one());
        let builder = patient(sentinel_builder(&group, GROUP)).max_outage(AMPLE * 2);
        let client = builder
            .replicas(Replicas::AtLeast(1), LEASE / 2)
            .connect()
            .await;
        let client = client.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        group.server(0).pause();
        group.wait_for_new_master(0);
        let mutex = client.mutex(&name());
        // Answered by the new master: the old one says nothing.
        let end = Instant::now() + AMPLE;
        while !matches!(mutex.holder().await, Ok(None)) {
            assert!(Instant::now() < end, "the new master was not found");
        }
        let guard = mutex
            .try_lock()
            .await
            .expect("no connection to the old master is used");
        assert_eq!(
            guard.unwrap().release().await.unwrap(),
            ReleaseOutcome::Released
        );
        group.server(0).resume();
    });
}

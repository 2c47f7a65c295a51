//! Bugs of connections, and of the tasks and runtimes that drive them.

use std::time::{Duration, Instant};

use leasehold::{Client, Replicas};
use testkit::sentinel_group::GROUP;
use testkit::{Fault, Flavor, Proxy, Server, ServerExt, Setup};

use crate::support::deployment::{Deployment, cluster, connect_to_group, group};
use crate::support::{
    AMPLE, LEASE, client, connect_at, eventually, exists, name, run, scaled, server,
    wait_for_renewal, wait_for_replica, with_long_timeouts,
};

/// A connection that broke while idle made the next release fail.
#[test]
fn release_after_broken_connection_succeeds() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = connect_at(proxy.port()).await.unwrap();
        for pause in [0, 50].map(Duration::from_millis) {
            let guard = client.mutex(&name()).lock().await.unwrap();
            proxy.sever();
            tokio::time::sleep(pause).await;
            guard.release().await.unwrap();
        }
    });
}

/// Renewals and releases used a single connection, and a fault that broke it
/// each time lost the lease.
#[test]
fn breaking_keeper_connection_loses_no_lease() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = connect_at(proxy.port()).await.unwrap();
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
            wait_for_renewal(&[&guard.lease()]).await;
        }
        drop(second);
        eventually("the lock is released", || !exists(&server, &dropped)).await;
        waiting.abort();
    });
}

/// A flusher that had just ended dropped a request that was sent to the next
/// one.
#[test]
fn request_sent_while_flusher_ends_is_written() {
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

/// The grant router and its subscription kept each other alive, and with them
/// all connections of a dropped client.
#[test]
fn dropped_cluster_client_leaves_no_connection() {
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
        eventually("the waiter is queued", || {
            cluster.servers().iter().any(waits)
        })
        .await;
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        guard.release().await.unwrap();
        for client in [&first, &second] {
            client.shutdown(LEASE).await.unwrap();
        }
    });
    let end = Instant::now() + AMPLE;
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < end, "tasks are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Counting replicas allowed the server one second, regardless of the timeouts.
#[test]
fn slow_replica_count_is_awaited() {
    run(async {
        let at_once = Setup::default().option("repl-diskless-sync-delay", "0");
        let master = at_once.start(&Flavor::one());
        let replica = Flavor::one().start();
        replica.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        wait_for_replica(&master).await;
        let proxy = Proxy::start(master.port());
        proxy.inject(|request| match request[0].as_slice() {
            b"ROLE" => Fault::Delay(Duration::from_millis(1500)),
            _ => Fault::None,
        });
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let builder = with_long_timeouts(Client::connect(&url)).replicas(Replicas::All, LEASE / 2);
        let client = builder.await.unwrap();
        let guard = client.mutex(&name()).try_lock().await.unwrap();
        guard.release().await.unwrap();
    });
}

/// Tasks of the waiters' runtime wrote to the keeper's connection. While that
/// runtime was blocked, renewals timed out behind them, and the client dropped
/// the connection with its subscriptions.
#[test]
#[ignore = "deep: a machine that stalls breaks connections too"]
fn blocked_waiters_do_not_delay_renewals() {
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
        let builder = connect_at(server.port()).lease(Duration::from_secs(3));
        let client = builder.await.unwrap();
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
        assert_eq!(keepers(), before, "the keeper's connection was dropped");
    });
}

/// Requests were sent to a connection whose runtime had ended, and got no
/// reply.
#[test]
fn client_survives_end_of_first_runtime() {
    let server = server();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let client = runtime().unwrap().block_on(async {
        let client = client(&server).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        guard.release().await.unwrap();
        client
    });
    runtime().unwrap().block_on(async {
        let guard = client.mutex(&name()).try_lock().await.unwrap();
        guard.release().await.unwrap();
    });
}

/// A connect lived in the future of its caller, so callers with shorter
/// timeouts never connected.
#[test]
fn callers_with_short_timeouts_share_one_connect() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = with_long_timeouts(connect_at(proxy.port())).await.unwrap();
        proxy.inject(|request| match request[0].as_slice() {
            b"HELLO" => Fault::Delay(Duration::from_millis(1500)),
            _ => Fault::None,
        });
        proxy.sever();
        let mutex = client.mutex(&name());
        let end = Instant::now() + AMPLE;
        loop {
            assert!(Instant::now() < end, "no caller got a reply");
            let asked = tokio::time::timeout(Duration::from_millis(400), mutex.holder());
            if let Ok(Ok(holder)) = asked.await {
                assert_eq!(holder, None);
                break;
            }
        }
    });
}

/// Connections that wait for replicas stayed with the former master.
#[test]
fn replica_connections_leave_former_master() {
    run(async {
        let group = group(&Flavor::one());
        let builder = with_long_timeouts(connect_to_group(&group, GROUP)).max_outage(AMPLE * 2);
        let client = builder.replicas(Replicas::AtLeast(1), LEASE / 2).await;
        let client = client.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        guard.release().await.unwrap();
        group.server(0).pause();
        group.wait_for_new_master(0);
        let mutex = client.mutex(&name());
        // Only the new master replies, since the old one is paused.
        let end = Instant::now() + AMPLE;
        while !matches!(mutex.holder().await, Ok(None)) {
            assert!(Instant::now() < end, "the new master was not found");
        }
        let guard = mutex
            .try_lock()
            .await
            .expect("the client uses the new master");
        guard.release().await.unwrap();
        group.server(0).resume();
    });
}

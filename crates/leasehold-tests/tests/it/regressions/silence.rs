//! Bugs with connections that are dead or slow, and not closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::observe::Event;
use leasehold::{Client, Connect, Guard, Replicas};
use testkit::sentinel_group::GROUP;
use testkit::{Fault, Flavor, Proxy, SeededRng, Server, ServerExt, Setup};

use crate::support::deployment::{cluster, cluster_url, connect_to_sentinels, group};
use crate::support::{
    AMPLE, LEASE, connect_at, eventually, name, run, server, wait_for_renewal, wait_for_replica,
};

/// A lease that two dead connections must not cost.
const SIX: Duration = Duration::from_secs(6);

/// Connects by `connect`, and holds a lock. All three connections exist: the
/// keeper's, and the callers' of this runtime and of the keeper's.
async fn hold(connect: Connect) -> (Client, Guard) {
    let client = connect.await.unwrap();
    let mutex = client.mutex(&name());
    let on_thread = tokio::task::spawn_blocking(move || mutex.lock().wait());
    let used = on_thread.await.unwrap().unwrap();
    used.release().await.unwrap();
    let guard = client.mutex(&name()).lock().await.unwrap();
    (client, guard)
}

/// Holds `count` locks while all connections through `proxies` die silently, at
/// a random time. Returns how many were kept.
async fn count_kept(
    count: u64,
    seed: u64,
    proxies: &[Proxy],
    connect: impl Fn() -> Connect,
) -> u64 {
    let mut rng = SeededRng::new(seed);
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(hold(connect()).await);
        tokio::time::sleep(Duration::from_millis(rng.below(200))).await;
    }
    // Past the first renewals.
    tokio::time::sleep(SIX / 2).await;
    proxies.iter().for_each(Proxy::stall_connections);
    tokio::time::sleep(2 * SIX).await;
    let mut kept = 0;
    for (client, guard) in held {
        kept += u64::from(guard.check().is_ok());
        client.shutdown(AMPLE).await.unwrap();
    }
    kept
}

/// Connections that a firewall had forgotten cost a lease of six seconds.
#[test]
#[ignore = "deep: a lease is kept only if renewals are in time"]
fn lease_survives_silent_connections() {
    run(async {
        for flavor in Flavor::all() {
            let server = flavor.start();
            let proxy = Proxy::start(server.port());
            let url = format!("redis://127.0.0.1:{}", proxy.port());
            let connect = || Client::connect(&url).lease(SIX);
            let mut kept = 0;
            for round in 0..10 {
                let proxies = std::slice::from_ref(&proxy);
                kept += count_kept(10, round, proxies, connect).await;
            }
            println!("{flavor:?}: {kept} of 100 kept");
            assert_eq!(kept, 100);
        }
    });
}

/// The same with a master that sentinels name, and with a cluster.
#[test]
#[ignore = "deep: a lease is kept only if renewals are in time"]
fn lease_survives_silence_of_many_servers() {
    run(async {
        let group = group(&Flavor::one());
        let proxy = Proxy::start(group.server(0).port());
        (0..3).for_each(|sentinel| group.set_master(sentinel, proxy.port()));
        let sentinels = group.sentinels();
        let connect = || connect_to_sentinels(&sentinels, GROUP).lease(SIX);
        let kept = count_kept(5, 1, &[proxy], connect).await;
        println!("Sentinel: {kept} of 5 kept");
        assert_eq!(kept, 5);

        let cluster = cluster(&Flavor::one());
        let behind = |server: &Server| {
            let proxy = Proxy::start(server.port());
            let port = proxy.port().to_string();
            server.tell(&["CONFIG", "SET", "cluster-announce-port", &port]);
            proxy
        };
        let proxies: Vec<_> = cluster.servers().iter().map(behind).collect();
        let is_announced = |server: &Server| {
            let slots = format!("{:?}", server.ask(&["CLUSTER", "SLOTS"]));
            let mut all = proxies.iter();
            all.all(|proxy| slots.contains(&proxy.port().to_string()))
        };
        eventually("all nodes announce the proxies", || {
            cluster.servers().iter().all(is_announced)
        })
        .await;
        let url = cluster_url(&cluster);
        let connect = || Client::connect(&url).lease(SIX);
        let kept = count_kept(5, 2, &proxies, connect).await;
        println!("Cluster: {kept} of 5 kept");
        assert_eq!(kept, 5);
    });
}

/// The same once, with a lease that a stalled machine does not cost either.
#[test]
fn silent_connections_are_replaced() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let connect = connect_at(proxy.port());
        let connect = connect.lease(LEASE * 2).request_timeout(LEASE / 10);
        let (_client, guard) = hold(connect).await;
        proxy.stall_connections();
        wait_for_renewal(&[&guard.lease()]).await;
    });
}

/// The count of the replicas ended with the renewal that asked for it, and its
/// dead connection was used again and again.
#[test]
fn silent_connection_is_replaced_when_replicas_are_counted() {
    run(async {
        let setup = Setup::default().option("repl-diskless-sync-delay", "0");
        let master = setup.clone().start(&Flavor::one());
        let of = format!("127.0.0.1 {}", master.port());
        let _replica = setup.option("replicaof", &of).start(&Flavor::one());
        wait_for_replica(&master).await;
        let proxy = Proxy::start(master.port());
        let connect = Client::connect(&format!("redis://127.0.0.1:{}", proxy.port()));
        let connect = connect.lease(LEASE * 2).request_timeout(LEASE / 10);
        let client = connect.connect_timeout(LEASE / 2).await.unwrap();
        let lock = client.mutex(&name()).lock();
        let guard = lock.replicas(Replicas::All, LEASE / 10).await.unwrap();
        // The keeper then has a connection.
        wait_for_renewal(&[&guard.lease()]).await;
        // The count is remembered for a second.
        tokio::time::sleep(LEASE / 8).await;
        proxy.stall_connections();
        wait_for_renewal(&[&guard.lease()]).await;
    });
}

/// A reply that took longer than a quarter of the lease did not count: the
/// connection was closed.
#[test]
fn reply_to_an_overdue_renewal_counts() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let (failed, renewed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let seen = (failed.clone(), renewed.clone());
        let connect = connect_at(proxy.port()).observe(move |event| {
            match event {
                Event::RenewalFailed { .. } => seen.0.fetch_add(1, Ordering::SeqCst),
                Event::Renewed { .. } => seen.1.fetch_add(1, Ordering::SeqCst),
                _ => 0,
            };
        });
        let client = connect.await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        let renewals = AtomicU64::new(0);
        proxy.inject(move |request| match request[0].as_slice() {
            b"EVALSHA" => match renewals.fetch_add(1, Ordering::SeqCst) {
                0 => Fault::Hold,
                _ => Fault::DropReplies,
            },
            _ => Fault::None,
        });
        eventually("the renewal is overdue", || {
            failed.load(Ordering::SeqCst) > 0
        })
        .await;
        proxy.release_held();
        let counts = || renewed.load(Ordering::SeqCst) == 1;
        eventually("its reply counts", || counts() || guard.check().is_err()).await;
        guard.check().expect("renewed");
    });
}

/// The timeout of a renewal, a quarter of the lease, closed the connection, and
/// the next renewals had to connect first.
#[test]
#[ignore = "deep: a lease is kept only if renewals are in time"]
fn short_lease_survives_long_round_trips() {
    run(async {
        for flavor in Flavor::all() {
            let server = flavor.start();
            let proxy = Proxy::start(server.port());
            proxy.latency(Duration::from_millis(60));
            let url = format!("redis://127.0.0.1:{}", proxy.port());
            let client = Client::connect(&url).await.unwrap();
            let long = client.mutex(&name()).lock().await.unwrap();
            let lease = Duration::from_millis(300);
            let guard = client.mutex(&name()).lock().lease(lease).await.unwrap();
            let connections = proxy.connections();
            tokio::time::sleep(Duration::from_secs(60)).await;
            guard.check().expect("kept for a minute");
            long.check().expect("kept for a minute");
            let more = proxy.connections() - connections;
            println!("{flavor:?}: kept, {more} further connections");
            assert!(more <= 1, "{more} further connections");
        }
    });
}

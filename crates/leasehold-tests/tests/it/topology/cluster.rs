//! Cluster: the client follows the slot of a lock when it moves, and when its
//! master dies.

use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Error};
use testkit::{Cluster, Flavor, SeededRng, Server, ServerExt, Setup, Worker};

use crate::support::contract::{KINDS, any_lock, release_to_next};
use crate::support::deployment::{
    Deployment, cluster, cluster_url, oldest_and_newest, wait_for_new_master, wait_for_waiters,
};
use crate::support::worker;
use crate::support::{
    AMPLE, LEASE, PASSWORD, channels, eventually, key, name, run, scaled, wait_for_renewal,
    with_long_timeouts,
};

/// Returns a name whose key is on the master at `index`.
fn name_at(cluster: &Cluster, index: usize) -> String {
    loop {
        let name = name();
        if cluster.owner(cluster.slot(&key(&name)), 0) == index {
            return name;
        }
    }
}

#[test]
fn cluster_failover_keeps_waiters() {
    wait_through_failover(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats a failover on several servers"]
fn cluster_failover_keeps_waiters_on_all_servers() {
    wait_through_failover(&oldest_and_newest());
}

fn wait_through_failover(flavors: &[Flavor]) {
    for flavor in flavors {
        run(async {
            let mut cluster = cluster(flavor);
            let (one, other) = (cluster.client().await, cluster.client().await);
            let names: Vec<_> = (0..KINDS).map(|_| name_at(&cluster, 0)).collect();
            let free = name_at(&cluster, 0);
            let bystander = one.mutex(&name_at(&cluster, 1)).lock().await.unwrap();
            let mut waiting = Vec::new();
            for (kind, name) in (0..).zip(&names) {
                let guard = any_lock(&one, name, kind).await.unwrap();
                let next = tokio::spawn(any_lock(&other, name, kind).into_future());
                waiting.push((guard, next));
            }
            wait_for_waiters(cluster.server(0), KINDS).await;
            cluster.kill(0);
            let killed = Instant::now();
            let slot = cluster.slot(&key(&names[0]));
            cluster.wait_for_new_owner(0, slot, 1);
            println!("{}: failover in {:?}", flavor.name, killed.elapsed());
            wait_for_new_master(&one, &free).await;
            for (guard, next) in waiting {
                let guard = release_to_next(guard, next).await;
                guard.release().await.unwrap();
            }
            // A dead shard does not delay the renewals of another.
            bystander.release().await.unwrap();
        });
    }
}

#[test]
fn waiter_is_woken_after_slot_migration() {
    wake_after_migration(&[Flavor::one()], AMPLE);
}

#[test]
#[ignore = "deep: measures a latency, on several servers"]
fn waiter_is_woken_promptly_after_slot_migration() {
    wake_after_migration(&oldest_and_newest(), Duration::from_millis(600));
}

fn wake_after_migration(flavors: &[Flavor], limit: Duration) {
    for flavor in flavors {
        run(async {
            let cluster = cluster(flavor);
            let (one, other) = (cluster.client().await, cluster.client().await);
            let names: Vec<_> = (0..KINDS).map(|_| name_at(&cluster, 0)).collect();
            let mut waiting = Vec::new();
            for (kind, name) in (0..).zip(&names) {
                let guard = any_lock(&one, name, kind).await.unwrap();
                let next = tokio::spawn(any_lock(&other, name, kind).into_future());
                waiting.push((guard, next));
            }
            wait_for_waiters(cluster.server(0), KINDS).await;
            for name in &names {
                cluster.move_slot(cluster.slot(&key(name)), 0, 1);
            }
            let left = || channels(cluster.server(0)).is_empty();
            eventually("no waiter subscribes there", left).await;
            wait_for_waiters(cluster.server(1), KINDS).await;
            for name in &names {
                assert!(cluster.server(1).exists(name), "the lock did not move");
            }
            let leases: Vec<_> = waiting.iter().map(|(guard, _)| guard.lease()).collect();
            wait_for_renewal(&leases.iter().collect::<Vec<_>>()).await;
            for (kind, (guard, next)) in waiting.into_iter().enumerate() {
                let start = Instant::now();
                guard.release().await.unwrap();
                let guard = next.await.unwrap().unwrap();
                let took = start.elapsed();
                assert!(took < limit, "{kind}: {took:?}");
                guard.release().await.unwrap();
            }
        });
    }
}

/// Several processes lock and release a thousand names while slots move.
#[test]
fn slot_migration_under_load_keeps_exclusion() {
    let cluster = cluster(&Flavor::one());
    let url = cluster_url(&cluster);
    let mut workers: Vec<_> = (0..4).map(|_| worker::start_at(&url, LEASE)).collect();
    let sent = |field: &str| -> u64 {
        let info = |server: &Server| {
            let info = server.ask(&["CLUSTER", "INFO"]);
            let field = format!("{field}:");
            let mut lines = info.text().lines();
            let value = lines.find_map(|line| line.strip_prefix(&field).map(str::to_owned));
            value.map_or(0, |value| value.trim().parse::<u64>().unwrap())
        };
        cluster.servers().iter().map(info).sum()
    };
    // Slots that contain some of the names.
    let slots: Vec<_> = (0..1000)
        .map(|number| cluster.slot(&key(&format!("many:{number}"))))
        .collect();
    let start = Instant::now();
    let mut holds = Vec::new();
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let mut rng = SeededRng::new(100);
            for _ in 0..scaled(10) {
                let slot = slots[usize::try_from(rng.below(1000)).unwrap()];
                let from = cluster.owner(slot, 0);
                cluster.move_slot(slot, from, (from + 1) % 3);
            }
            println!("{} slots moved in {:?}", scaled(10), start.elapsed());
        });
        // The load lasts as long as the moves.
        let mut rounds = 0;
        while !moving.is_finished() || rounds < scaled(2) {
            hold_many(&mut workers, rounds, &mut holds);
            rounds += 1;
        }
    });
    println!("{} holds in {:?}", holds.len(), start.elapsed());
    let mut by_name = holds;
    by_name.sort_unstable();
    for pair in by_name.windows(2) {
        let (one, other) = (&pair[0], &pair[1]);
        if one.0 == other.0 {
            assert!(one.2 <= other.1, "two holders of {}", one.0);
            assert!(one.3 < other.3, "tokens of {} do not increase", one.0);
        }
    }
    let broadcast = || sent("cluster_stats_messages_publish_sent");
    let (before, published) = (
        broadcast(),
        sent("cluster_stats_messages_publishshard_sent"),
    );
    // The counters work: unsharded messages go to all nodes.
    cluster.server(0).tell(&["PUBLISH", "x", "y"]);
    match broadcast() > before {
        true => {
            assert_eq!(before, 0, "messages were broadcast on the cluster bus");
            assert!(published > 0, "no message was published");
        }
        // This version counts neither.
        false => assert_eq!(cluster.server(0).name(), "valkey-8.0"),
    }
}

/// Lets every worker acquire and release some of a thousand names, and appends
/// the interval and the token of each hold.
fn hold_many(workers: &mut [Worker], round: u64, holds: &mut Vec<(String, u64, u64, u64)>) {
    for (index, worker) in (0..).zip(workers.iter_mut()) {
        worker.tell(&format!("hold-many 1000 200 {}", round * 4 + index));
    }
    for worker in workers {
        loop {
            let answer = worker.answer();
            let words: Vec<_> = answer.split(' ').collect();
            let [name, from, to, token] = words.as_slice() else {
                assert_eq!(answer, "done");
                break;
            };
            let number = |word: &str| word.parse().unwrap();
            holds.push(((*name).to_owned(), number(from), number(to), number(token)));
        }
    }
}

#[test]
fn cluster_over_tls_works() {
    run(async {
        let flavor = Flavor::all().pop().unwrap();
        let cluster = Cluster::start(&Setup::default().tls(), &flavor, 3, false);
        let node = cluster.server(0);
        let url = format!("rediss+cluster://127.0.0.1:{}", node.tls_port());
        let builder =
            with_long_timeouts(Client::connect(&url)).root_certificate(node.ca_certificate());
        let client = builder.await.unwrap();
        for _ in 0..20 {
            let guard = client.mutex(&name()).lock().await.unwrap();
            guard.release().await.unwrap();
        }
    });
}

#[test]
fn misconfiguration_is_reported() {
    misconfigure(with_long_timeouts, AMPLE);
}

#[test]
#[ignore = "deep: measures how soon errors are returned"]
fn misconfiguration_is_reported_in_time() {
    misconfigure(|builder| builder, Duration::from_secs(5));
}

fn misconfigure(settings: impl Fn(Connect) -> Connect, limit: Duration) {
    run(async {
        let flavor = Flavor::one();
        let cluster = Cluster::start(&Setup::default(), &flavor, 3, false);
        let node = cluster.server(0).port();
        let alone = flavor.start();
        let start = Instant::now();
        for (url, hint) in [
            (format!("redis://127.0.0.1:{node}"), "redis+cluster://"),
            (
                format!("redis+cluster://127.0.0.1:{}", alone.port()),
                "redis://host",
            ),
            (
                format!("redis+cluster://127.0.0.1:{node}/3"),
                "one database",
            ),
            (format!("redis+cluster://u:{PASSWORD}@127.0.0.1:{node}"), ""),
            ("redis+cluster://127.0.0.1:1".to_owned(), ""),
        ] {
            let error = settings(Client::connect(&url)).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(hint), "{url}: {text}");
            assert!(!text.contains(PASSWORD), "{text}");
            let denied = matches!(error, Error::Denied(_));
            assert_eq!(denied, url.contains(PASSWORD), "{text}");
        }
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    });
}

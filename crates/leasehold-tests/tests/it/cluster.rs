//! A cluster: locks are where their slot is, before, during and after it moves or its master dies.

use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, ReleaseOutcome};
use testkit::{Cluster, Flavor, SeededRng, Server, Setup};

use crate::contract::{KINDS, any_lock, passed_on};
use crate::deployment::{Deployment, cluster, cluster_url, old_and_new};
use crate::support::{
    AMPLE, LEASE, PASSWORD, channels, eventually, key, name, patient, run, scaled, until_renewed,
};
use crate::worker::Worker;

/// A name whose key the master at `index` has.
fn name_at(cluster: &Cluster, index: usize) -> String {
    loop {
        let name = name();
        if cluster.owner(cluster.slot(&key(&name)), 0) == index {
            return name;
        }
    }
}

/// Waits until there is a waiter for one lock of each kind, and this many channels in which they listen.
pub(crate) async fn until_waited_for(server: &Server, listened_to: u64) {
    let all = || {
        let queues = server.ask(&["KEYS", "leasehold:queue:*"]).list().len() as u64;
        queues == KINDS - 1 && channels(server).len() as u64 == listened_to
    };
    eventually("a waiter for each lock", all).await;
}

/// Waits until a client has found the new master of `name`, which is free, after a failover.
pub(crate) async fn until_found(client: &Client, name: &str) {
    let start = Instant::now();
    while let Err(error) = client.mutex(name).holder().await {
        assert!(start.elapsed() < AMPLE, "{error:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn locks_of_all_kinds_are_waited_for_through_a_failover() {
    wait_through_failover(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats a failover on several servers"]
fn cluster_failover_on_old_and_new_passes_locks_on() {
    wait_through_failover(&old_and_new());
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
            until_waited_for(cluster.server(0), KINDS).await;
            cluster.kill(0);
            let killed = Instant::now();
            let slot = cluster.slot(&key(&names[0]));
            cluster.wait_for_new_owner(0, slot, 1);
            println!("{}: failover in {:?}", flavor.name, killed.elapsed());
            until_found(&one, &free).await;
            for (guard, next) in waiting {
                let guard = passed_on(guard, next).await;
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            }
            // A dead shard does not delay another's renewals.
            assert_eq!(bystander.release().await.unwrap(), ReleaseOutcome::Released);
        });
    }
}

#[test]
fn a_waiter_is_woken_after_its_slot_has_moved() {
    wake_after_move(&[Flavor::one()], AMPLE);
}

#[test]
#[ignore = "deep: measures a latency, on several servers"]
fn waiter_whose_slot_moved_is_woken_at_once() {
    wake_after_move(&old_and_new(), Duration::from_millis(600));
}

fn wake_after_move(flavors: &[Flavor], limit: Duration) {
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
            until_waited_for(cluster.server(0), KINDS).await;
            for name in &names {
                cluster.move_slot(cluster.slot(&key(name)), 0, 1);
            }
            let left = || channels(cluster.server(0)).is_empty();
            eventually("no waiter listens there", left).await;
            until_waited_for(cluster.server(1), KINDS).await;
            for name in &names {
                assert!(cluster.server(1).exists(name), "the lock has moved");
            }
            let leases: Vec<_> = waiting.iter().map(|(guard, _)| guard.lease()).collect();
            until_renewed(&leases).await;
            for (kind, (guard, next)) in waiting.into_iter().enumerate() {
                let start = Instant::now();
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
                let guard = next.await.unwrap().unwrap();
                let took = start.elapsed();
                assert!(took < limit, "{kind}: {took:?}");
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            }
        });
    }
}

/// Several processes lock and release a thousand names while slots move.
#[test]
fn slots_that_move_under_load_make_no_second_holder_and_no_error() {
    let cluster = cluster(&Flavor::one());
    let url = cluster_url(&cluster);
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start_at(&url, LEASE)).collect();
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
    // Slots in which some of the names are, so that there is something to disturb.
    let slots: Vec<_> = (0..1000)
        .map(|number| cluster.slot(&key(&format!("many:{number}"))))
        .collect();
    let start = Instant::now();
    let mut holdings = Vec::new();
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
        // However long the moves take, there is load all the while.
        let mut rounds = 0;
        while !moving.is_finished() || rounds < scaled(2) {
            hold_many(&mut workers, rounds, &mut holdings);
            rounds += 1;
        }
    });
    println!("{} holdings in {:?}", holdings.len(), start.elapsed());
    let mut by_name = holdings;
    by_name.sort_unstable();
    for pair in by_name.windows(2) {
        let (one, other) = (&pair[0], &pair[1]);
        if one.0 == other.0 {
            assert!(one.2 <= other.1, "two holders of {}", one.0);
            assert!(one.3 < other.3, "tokens of {} do not rise", one.0);
        }
    }
    let broadcast = || sent("cluster_stats_messages_publish_sent");
    assert_eq!(broadcast(), 0, "broadcast on the bus");
    assert!(
        sent("cluster_stats_messages_publishshard_sent") > 0,
        "nothing was announced"
    );
    // The count counts: what is not sharded goes to all.
    cluster.server(0).tell(&["PUBLISH", "x", "y"]);
    assert!(broadcast() > 0);
}

/// Has every worker take and release some of a thousand names; from, to and token of each holding.
fn hold_many(workers: &mut [Worker], round: u64, holdings: &mut Vec<(String, u64, u64, u64)>) {
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
            holdings.push(((*name).to_owned(), number(from), number(to), number(token)));
        }
    }
}

#[test]
fn a_cluster_speaks_tls() {
    run(async {
        let flavor = Flavor::all().pop().unwrap();
        let cluster = Cluster::start(&Setup::default().tls(), &flavor, 3, false);
        let node = cluster.server(0);
        let url = format!("rediss+cluster://127.0.0.1:{}", node.tls_port());
        let builder = patient(Client::builder(&url)).root_certificate(node.ca_certificate());
        let client = builder.connect().await.unwrap();
        for _ in 0..20 {
            let guard = client.mutex(&name()).lock().await.unwrap();
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        }
    });
}

#[test]
fn what_is_wrong_is_told() {
    make_mistakes(patient, AMPLE);
}

#[test]
#[ignore = "deep: measures how soon errors are returned"]
fn cluster_mistakes_are_reported_in_time() {
    make_mistakes(|builder| builder, Duration::from_secs(5));
}

fn make_mistakes(settings: impl Fn(ClientBuilder) -> ClientBuilder, limit: Duration) {
    run(async {
        let flavor = Flavor::one();
        let cluster = Cluster::start(&Setup::default(), &flavor, 3, false);
        let node = cluster.server(0).port();
        let alone = Server::start(&flavor);
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
            let error = settings(Client::builder(&url)).connect().await.unwrap_err();
            let mut text = error.to_string();
            if let Some(source) = std::error::Error::source(&error) {
                text = format!("{text}: {source}");
            }
            assert!(text.contains(hint), "{url}: {text}");
            assert!(!text.contains(PASSWORD), "{text}");
            let denied = matches!(error, Error::Denied(_));
            assert_eq!(denied, url.contains(PASSWORD), "{text}");
        }
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    });
}

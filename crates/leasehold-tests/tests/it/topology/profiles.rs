//! Servers that lack commands, as managed services and proxies do. An
//! unmodified server without these commands stands for the service.

use std::time::{Duration, Instant};

use leasehold::{Client, LatchState, Loss, Messages};
use testkit::{Cluster, Flavor, SeededRng, Server, ServerExt, Setup};

use super::conformance::check_contract;
use crate::locks::conformance::GATE;
use crate::support::contract::{KINDS, any_lock, any_try_lock, release_to_next};
use crate::support::deployment::{cluster_url, cluster_with, oldest_and_newest};
use crate::support::inspection::allow_inspection;
use crate::support::{
    AMPLE, LEASE, SHORT, client, is_busy, name, percentile, run, scaled, with_least_privilege,
    with_long_timeouts,
};

/// The commands that a service lacks, and how messages reach waiters there.
struct Profile {
    name: &'static str,
    missing: &'static [&'static str],
    messages: Messages,
}

const SHARDED: &[&str] = &["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];

const COMPLETE: Profile = Profile {
    name: "complete",
    missing: &[],
    messages: Messages::Sharded,
};

const UPSTASH: Profile = Profile {
    name: "upstash",
    missing: &[
        "SPUBLISH",
        "SSUBSCRIBE",
        "SUNSUBSCRIBE",
        "WAIT",
        "ROLE",
        "CONFIG",
        "CLUSTER",
    ],
    messages: Messages::Classic,
};

const GARNET: Profile = Profile {
    name: "garnet",
    missing: &["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE", "WAIT"],
    messages: Messages::Classic,
};

const ENTERPRISE: Profile = Profile {
    name: "enterprise",
    missing: &["ROLE", "CONFIG", "CLUSTER", "ASKING", "MONITOR", "DEBUG"],
    messages: Messages::Sharded,
};

/// A proxy without any pub/sub.
const SILENT: Profile = Profile {
    name: "silent",
    missing: &[
        "SPUBLISH",
        "SSUBSCRIBE",
        "SUNSUBSCRIBE",
        "PUBLISH",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "PSUBSCRIBE",
        "PUBSUB",
        "WAIT",
        "ROLE",
    ],
    messages: Messages::Polled,
};

/// What a serverless cluster lacks.
const SERVERLESS: &[&str] = &["WAIT", "PSUBSCRIBE", "PUNSUBSCRIBE"];

impl Profile {
    fn start(&self, flavor: &Flavor) -> Server {
        let server = with_least_privilege(Setup::default().without(self.missing), flavor);
        // What the guide lists for classic channels.
        let more = "+publish +subscribe +unsubscribe +pubsub|numsub";
        let user = format!("ACL SETUSER leasehold {more}");
        server.tell(&user.split(' ').collect::<Vec<_>>());
        server
    }
}

async fn messages(client: &Client) -> Messages {
    let servers = client.server_info().await.expect("the server replies");
    servers[0].messages
}

/// Passes a lock of each kind from one client to another.
async fn check_locks(holding: &Client, waiting: &Client) {
    for kind in 0..KINDS {
        let name = name();
        let held = any_lock(holding, &name, kind).await.unwrap();
        assert!(is_busy(any_try_lock(waiting, &name, kind)).await);
        let waiter = tokio::spawn(any_lock(waiting, &name, kind).into_future());
        // Long enough to subscribe, or to be refused.
        tokio::time::sleep(SHORT).await;
        assert!(!waiter.is_finished(), "kind {kind}: two holders");
        let next = release_to_next(held, waiter).await;
        next.release().await.unwrap();
    }
    let name = name();
    let writer = holding.rw_lock(&name).write().await.unwrap();
    let readers = [holding, waiting].map(|client| {
        let reader = client.rw_lock(&name).read();
        tokio::spawn(reader.into_future())
    });
    tokio::time::sleep(SHORT).await;
    writer.release().await.unwrap();
    for reader in readers {
        let guard = tokio::time::timeout(AMPLE, reader).await.unwrap();
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

async fn check_latch(one: &Client, other: &Client) {
    let name = name();
    let latch = one.latch(&name);
    latch.set(1, AMPLE).await.unwrap();
    let waiting = other.latch(&name);
    let waiting = tokio::spawn(async move { waiting.until_open(Some(AMPLE)).await });
    tokio::time::sleep(SHORT).await;
    assert!(!waiting.is_finished());
    latch.count_down("me").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), LatchState::Open);
}

async fn check_election(one: &Client, other: &Client) {
    let name = name();
    let mut changes = other.election(&name).changes();
    // A follower may see the moments without a leader, or not.
    let mut next_leader = async || loop {
        let change = tokio::time::timeout(AMPLE, changes.next()).await;
        if let Some(term) = change.expect("a change in time").unwrap() {
            return term.process.note;
        }
    };
    let first = one.election(&name).note("one").campaign().await.unwrap();
    assert_eq!(next_leader().await.as_deref(), Some("one"));
    let second = other.election(&name).note("two");
    let second = tokio::spawn(async move { second.campaign().await });
    tokio::time::sleep(SHORT).await;
    first.release().await.unwrap();
    let second = tokio::time::timeout(AMPLE, second).await.unwrap();
    let second = second.unwrap().unwrap();
    assert_eq!(next_leader().await.as_deref(), Some("two"));
    second.release().await.unwrap();
}

async fn check_revocation(holding: &Client, operator: &Client) {
    for kind in 0..KINDS {
        let name = name();
        let guard = any_lock(holding, &name, kind).await.unwrap();
        assert_eq!(operator.force_release(&name).await.unwrap().len(), 1);
        let lost = tokio::time::timeout(AMPLE, guard.lost()).await;
        assert_eq!(lost.unwrap(), Some(Loss::Revoked), "kind {kind}");
    }
}

async fn check_hand_over(giving: &Client, adopting: &Client) {
    let name = name();
    let guard = giving.fair_mutex(&name).lock().await.unwrap();
    let waiter = adopting.fair_mutex(&name).lock();
    let waiter = tokio::spawn(waiter.into_future());
    tokio::time::sleep(SHORT).await;
    let token = guard.token();
    let ticket = guard.hand_over(AMPLE).await.unwrap();
    let adopted = adopting.adopt(&ticket).await.unwrap();
    assert!(adopted.token() > token);
    assert!(!waiter.is_finished(), "two holders");
    adopted.release().await.unwrap();
    let next = tokio::time::timeout(AMPLE, waiter).await.unwrap();
    next.unwrap().unwrap().release().await.unwrap();
}

/// Uses everything that waits for messages.
async fn check_waiting(profile: &Profile, server: Server) {
    allow_inspection(&server);
    let one = client(&server).await;
    let other = client(&server).await;
    assert_eq!(messages(&one).await, profile.messages, "{}", profile.name);
    tokio::join!(
        check_locks(&one, &other),
        check_latch(&one, &other),
        check_election(&one, &other),
        check_revocation(&one, &other),
        check_hand_over(&one, &other),
    );
    let name = name();
    let guard = one.mutex(&name).lock().await.unwrap();
    let shown = other.inspect(&name).await.unwrap().unwrap();
    let connected = match profile.messages {
        Messages::Polled => None,
        _ => Some(true),
    };
    assert_eq!(shown.holders[0].process.connected, connected);
    let watcher = other.clone();
    let watched = name.clone();
    let free = tokio::spawn(async move { watcher.until_free(&watched, Some(AMPLE)).await });
    guard.release().await.unwrap();
    free.await.unwrap().unwrap();
}

#[test]
fn waiters_use_classic_messages_without_sharded_ones() {
    run(check_waiting(&UPSTASH, UPSTASH.start(&Flavor::one())));
}

#[test]
fn waiters_poll_without_any_messages() {
    run(check_waiting(&SILENT, SILENT.start(&Flavor::one())));
}

#[test]
fn enterprise_profile_uses_sharded_messages() {
    run(check_waiting(&ENTERPRISE, ENTERPRISE.start(&Flavor::one())));
}

#[test]
#[ignore = "deep: the whole contract, on several servers"]
fn profiles_conform() {
    for flavor in oldest_and_newest() {
        for profile in [&UPSTASH, &GARNET, &ENTERPRISE, &SILENT] {
            println!("{} {}", flavor.name, profile.name);
            run(async {
                let server = profile.start(&flavor);
                check_contract(&server, GATE).await;
                check_waiting(profile, server).await;
            });
        }
    }
}

/// Returns a client of a cluster.
async fn client_of(cluster: &Cluster) -> Client {
    let connect = with_long_timeouts(Client::connect(&cluster_url(cluster)));
    connect.await.expect("the cluster is up")
}

#[test]
#[ignore = "deep: the whole contract, on several servers"]
fn serverless_profile_conforms() {
    for flavor in oldest_and_newest() {
        for (missing, expected) in [
            (SERVERLESS.to_vec(), Messages::Sharded),
            ([SERVERLESS, SHARDED].concat(), Messages::Polled),
        ] {
            println!("{} without {missing:?}", flavor.name);
            run(async {
                let cluster = cluster_with(Setup::default().without(&missing), &flavor);
                let client = client_of(&cluster).await;
                assert_eq!(messages(&client).await, expected);
                check_contract(&cluster, GATE).await;
                let other = client_of(&cluster).await;
                tokio::join!(
                    check_locks(&client, &other),
                    check_latch(&client, &other),
                    check_election(&client, &other),
                    check_hand_over(&client, &other),
                );
            });
        }
    }
}

/// Measures hand-overs from one client to another, `count` times with each
/// profile and kind in turn.
async fn measure_hand_overs(flavor: &Flavor, count: u64) {
    const MEASURED: [(&str, u64); 2] = [("mutex", 0), ("fair mutex", 1)];
    let profiles = [&COMPLETE, &UPSTASH, &SILENT];
    let servers = profiles.map(|profile| profile.start(flavor));
    let mut times = vec![Vec::new(); profiles.len() * MEASURED.len()];
    let mut rng = SeededRng::new(38);
    let mut clients = Vec::new();
    for server in &servers {
        clients.push((client(server).await, client(server).await));
    }
    for _ in 0..count {
        for (at, (one, other)) in clients.iter().enumerate() {
            for (kind, (_, number)) in MEASURED.iter().enumerate() {
                let name = name();
                let held = any_lock(one, &name, *number).await.unwrap();
                let waiter = any_lock(other, &name, *number);
                let waiter = tokio::spawn(async move {
                    let guard = waiter.await.unwrap();
                    (Instant::now(), guard)
                });
                // Over a whole period of the polls, which begins with the wait.
                let hold = Duration::from_millis(250 + rng.below(1000));
                tokio::time::sleep(hold).await;
                let released = Instant::now();
                held.release().await.unwrap();
                let (acquired, guard) = waiter.await.unwrap();
                times[at * MEASURED.len() + kind].push(acquired - released);
                guard.release().await.unwrap();
            }
        }
    }
    println!("| messages | lock | p50 | p99 | hand-overs |");
    for (at, profile) in profiles.iter().enumerate() {
        for (kind, (label, _)) in MEASURED.iter().enumerate() {
            let sorted = &mut times[at * MEASURED.len() + kind];
            sorted.sort_unstable();
            let (half, most) = (percentile(sorted, 500), percentile(sorted, 990));
            let messages = profile.messages;
            println!("| {messages:?} | {label} | {half:?} | {most:?} | {count} |");
            assert!(most < LEASE, "a message and the poll were missed");
        }
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn hand_over_latency_by_messages() {
    for flavor in oldest_and_newest() {
        println!("{}", flavor.name);
        run(measure_hand_overs(&flavor, scaled(40)));
    }
}

//! Failovers that lose the last writes: without acknowledgement a lock is
//! granted twice, with it never.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Loss, Replicas};
use testkit::sentinel_group::{GROUP, SentinelGroup};
use testkit::{Flavor, Server, ServerExt};

use crate::support::contract::{KINDS, any_lock, any_try_lock};
use crate::support::deployment::wait_for_new_master;
use crate::support::deployment::{
    cluster, cluster_url, connect_to_group, group, oldest_and_newest,
};
use crate::support::{
    AMPLE, LEASE, client, eventually, exists, is_busy, name, run, scaled, server, wait_for_renewal,
    with_long_timeouts,
};

/// Longer than any failover.
const LONG: Duration = AMPLE.saturating_mul(4);

/// The ack timeout for reachable replicas.
const LONG_ACK_TIMEOUT: Duration = Duration::from_secs(8);

/// The ack timeout for unreachable replicas.
const SHORT_ACK_TIMEOUT: Duration = Duration::from_millis(400);

#[test]
fn lossy_failover_grants_twice_without_acks() {
    let flavor = Flavor::one();
    for round in 0..scaled(1) {
        run(fail_over(round, &flavor, AMPLE));
    }
}

#[test]
#[ignore = "deep: repeats a failover on several servers, and measures how soon a loss is reported"]
fn failover_keeps_acked_locks_on_oldest_and_newest() {
    for (round, flavor) in (1..=scaled(3)).zip(oldest_and_newest().iter().cycle()) {
        run(fail_over(round, flavor, Duration::from_millis(400)));
    }
}

/// Fails over. A loss must be reported at most `late` after the deadline.
async fn fail_over(round: u64, flavor: &Flavor, late: Duration) {
    let mut group = group(flavor);
    let builder = |group: &SentinelGroup| with_long_timeouts(connect_to_group(group, GROUP));
    let plain = builder(&group).await.unwrap();
    let connect_with_acks = builder(&group)
        .lease(LONG)
        .replicas(Replicas::All, LONG_ACK_TIMEOUT);
    let connect_with_acks = connect_with_acks.await.unwrap();
    let (kept, lost, renewed, refused) = (name(), name(), name(), name());
    let survivor = any_lock(&connect_with_acks, &kept, round).await.unwrap();

    // No replica receives writes from here on.
    isolate(group.server(0), &[group.server(1), group.server(2)]);
    let stale = any_lock(&plain, &lost, round)
        .fixed_lease(LONG)
        .await
        .unwrap();
    let gone = any_lock(&plain, &renewed, round).await.unwrap();
    let refusal = any_try_lock(&connect_with_acks, &refused, round)
        .replicas(Replicas::All, SHORT_ACK_TIMEOUT);
    let refusal = refusal.await.unwrap_err();
    assert!(
        matches!(refusal, Error::NotReplicated { wanted: 2, .. }),
        "{refusal:?}"
    );
    group.kill(0);
    group.server(1).resume();
    group.server(2).resume();
    group.wait_for_new_master(0);

    let other = builder(&group).await.unwrap();
    // The control: without acknowledgement, both clients hold the lock.
    let second = any_try_lock(&other, &lost, round).await;
    let second = second.expect("the new master does not know the lock");
    stale.check().expect("the lease has not ended");
    assert!(second.token() > stale.token(), "the token did not increase");
    let third = any_try_lock(&other, &renewed, round).await;
    let _third = third.expect("the new master does not know the lock");
    assert_lost(&gone, late).await;

    survivor
        .check()
        .expect("the acknowledged lock survives the failover");
    let is_kept = is_busy(any_try_lock(&other, &kept, round)).await;
    assert!(is_kept, "an acknowledged lock was granted twice");
    wait_for_new_master(&connect_with_acks, &name()).await;
    survivor.release().await.unwrap();
}

/// Pauses the replicas and closes their connections, so that later writes of
/// the master are lost.
fn isolate(master: &Server, replicas: &[&Server]) {
    replicas.iter().for_each(|replica| replica.pause());
    master.tell(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Asserts that a lost holder is notified by its next renewal, or at its
/// deadline.
async fn assert_lost<F>(guard: &Guard<F>, late: Duration) {
    let left = guard.remaining();
    let start = Instant::now();
    let loss = guard.lost().await;
    assert!(
        matches!(loss, Some(Loss::Revoked | Loss::Expired)),
        "{loss:?}"
    );
    assert!(start.elapsed() <= left + late, "reported late");
}

async fn connect_with_acks(url: &str, replicas: impl Into<Replicas>) -> Client {
    let builder = with_long_timeouts(Client::connect(url)).replicas(replicas, LONG_ACK_TIMEOUT);
    builder.await.unwrap()
}

#[test]
fn all_kinds_work_with_replica_acks() {
    lock_all_kinds_with_acks(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats the test on several servers"]
fn replica_acks_work_on_oldest_and_newest() {
    lock_all_kinds_with_acks(&oldest_and_newest());
}

fn lock_all_kinds_with_acks(flavors: &[Flavor]) {
    run(async {
        for flavor in flavors {
            let group = group(flavor);
            let cluster = cluster(flavor);
            let sentinel = with_long_timeouts(connect_to_group(&group, GROUP));
            let sentinel = sentinel.replicas(Replicas::All, LONG_ACK_TIMEOUT);
            let clients = [
                sentinel.await.unwrap(),
                connect_with_acks(&cluster_url(&cluster), Replicas::All).await,
                connect_with_acks(&cluster_url(&cluster), 1).await,
            ];
            let all = clients
                .iter()
                .flat_map(|client| (0..KINDS).map(move |kind| (client.clone(), kind)));
            let handovers = all.map(|(client, kind)| {
                tokio::spawn(async move {
                    let name = name();
                    let first = any_lock(&client, &name, kind).await.unwrap();
                    let next = tokio::spawn(any_lock(&client, &name, kind).into_future());
                    wait_for_renewal(&[&first.lease()]).await;
                    first.extend(LEASE * 2).await.unwrap();
                    first.release().await.unwrap();
                    let second = next.await.unwrap().unwrap();
                    second.release().await.unwrap();
                })
            });
            for kind in handovers.collect::<Vec<_>>() {
                kind.await.unwrap();
            }
        }
    });
}

#[test]
fn missing_ack_releases_and_does_not_renew() {
    run(async {
        let master = server();
        let replica = Flavor::one().start();
        replica.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        let url = format!("redis://127.0.0.1:{}", master.port());
        let in_sync = || master.info("connected_slaves") == 1.0;
        eventually("the replica is in sync", in_sync).await;
        // A stall must not expire the lease on the master, which would be
        // another loss.
        let lease = LEASE / 2;
        let builder = with_long_timeouts(Client::connect(&url)).lease(lease);
        let client = builder.replicas(Replicas::All, lease / 2).await;
        let client = client.unwrap();
        let attached = Instant::now();
        let mut guards = Vec::new();
        for kind in 0..KINDS {
            let held = name();
            let guard = loop {
                // A replica acknowledges nothing for a while after it attaches.
                match any_lock(&client, &held, kind).timeout(LEASE).await {
                    Ok(guard) => break guard,
                    Err(error) => assert!(attached.elapsed() < AMPLE, "{error:?}"),
                }
            };
            guards.push(guard);
        }
        replica.pause();
        for kind in 0..KINDS {
            let refused = name();
            let acquiring =
                any_try_lock(&client, &refused, kind).replicas(Replicas::All, SHORT_ACK_TIMEOUT);
            let error = acquiring.await.unwrap_err();
            let expected = Error::NotReplicated {
                acknowledged: 0,
                wanted: 1,
            };
            assert_eq!(error.to_string(), expected.to_string());
            let gone = || !exists(&master, &refused);
            eventually("the lock is released", gone).await;
        }
        // The master keeps renewing them, but no replica acknowledges.
        for guard in guards {
            assert_eq!(guard.lost().await, Some(Loss::Expired));
        }
        replica.resume();
        drop(client);
        // More replicas than exist.
        let client = connect_with_acks(&url, 3).await;
        let error = client
            .mutex(&name())
            .try_lock()
            .replicas(3, SHORT_ACK_TIMEOUT)
            .await;
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::NotReplicated { wanted: 3, .. }),
            "{error:?}"
        );
    });
}

#[test]
fn ack_timeout_as_long_as_lease_is_rejected() {
    run(async {
        let server = server();
        let client = client(&server).await;
        for timeout in [Duration::ZERO, LEASE, LEASE * 2] {
            let refused = client.mutex(&name()).try_lock().replicas(1, timeout).await;
            assert!(matches!(
                refused,
                Err(Error::Invalid {
                    what: "replicas",
                    ..
                })
            ));
        }
    });
}

//! What a failover costs that loses the last writes: a control without acknowledgement, and none with it.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Loss, ReleaseOutcome, Replicas};
use testkit::sentinel_group::{GROUP, SentinelGroup};
use testkit::{Flavor, Server};

use crate::cluster::until_found;
use crate::contract::{KINDS, any_lock, any_try_lock};
use crate::deployment::{cluster, cluster_url, group, old_and_new, sentinel_builder};
use crate::support::{
    AMPLE, LEASE, client, eventually, exists, name, patient, run, scaled, server, until_renewed,
};

/// Longer than any failover takes.
const LONG: Duration = AMPLE.saturating_mul(4);

/// How long replicas have to acknowledge that can.
const TIME_ENOUGH: Duration = Duration::from_secs(8);

/// How long replicas have to acknowledge that cannot.
const PROMPT: Duration = Duration::from_millis(400);

#[test]
fn a_failover_that_loses_writes_grants_twice_unless_replicas_acknowledged() {
    let flavor = Flavor::one();
    for round in 0..scaled(1) {
        run(fail_over(round, &flavor, AMPLE));
    }
}

#[test]
#[ignore = "deep: repeats a failover on several servers, and measures how soon a loss is reported"]
fn failover_on_old_and_new_keeps_what_was_acked() {
    for (round, flavor) in (1..=scaled(3)).zip(old_and_new().iter().cycle()) {
        run(fail_over(round, flavor, Duration::from_millis(400)));
    }
}

/// A loss must be reported at most `late` after the deadline.
async fn fail_over(round: u64, flavor: &Flavor, late: Duration) {
    let mut group = group(flavor);
    let builder = |group: &SentinelGroup| patient(sentinel_builder(group, GROUP));
    let plain = builder(&group).connect().await.unwrap();
    let careful = builder(&group)
        .lease(LONG)
        .replicas(Replicas::All, TIME_ENOUGH);
    let careful = careful.connect().await.unwrap();
    let (kept, lost, renewed, refused) = (name(), name(), name(), name());
    let survivor = any_lock(&careful, &kept, round).await.unwrap();

    // Whatever is written from here on, no replica will have.
    cut_off(group.server(0), &[group.server(1), group.server(2)]);
    let stale = any_lock(&plain, &lost, round)
        .fixed_lease(LONG)
        .await
        .unwrap();
    let gone = any_lock(&plain, &renewed, round).await.unwrap();
    let refusal = any_try_lock(&careful, &refused, round).replicas(Replicas::All, PROMPT);
    let refusal = refusal.await.unwrap_err();
    assert!(
        matches!(refusal, Error::NotReplicated { wanted: 2, .. }),
        "{refusal:?}"
    );
    group.kill(0);
    group.server(1).resume();
    group.server(2).resume();
    group.wait_for_new_master(0);

    let other = builder(&group).connect().await.unwrap();
    // The control: without acknowledgement both hold it.
    let second = any_try_lock(&other, &lost, round).await.unwrap();
    let second = second.expect("the new master knows nothing of it");
    stale.check().expect("its lease has not ended");
    assert!(second.token() > stale.token(), "tokens must rise");
    let third = any_try_lock(&other, &renewed, round).await.unwrap();
    assert!(third.is_some(), "the new master knows nothing of it");
    reported(&gone, late).await;

    survivor
        .check()
        .expect("acknowledged, so it outlives the failover");
    let taken = any_try_lock(&other, &kept, round).await.unwrap();
    assert!(taken.is_none(), "granted twice though acknowledged");
    until_found(&careful, &name()).await;
    assert_eq!(survivor.release().await.unwrap(), ReleaseOutcome::Released);
}

/// Stops the replicas and closes their connections: what the master writes from now on is lost with it.
fn cut_off(master: &Server, replicas: &[&Server]) {
    replicas.iter().for_each(|replica| replica.pause());
    master.tell(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// A holder that lost its lock learns it by its next renewal, or at its deadline.
async fn reported(guard: &Guard, late: Duration) {
    let left = guard.remaining();
    let start = Instant::now();
    let loss = guard.lost().await;
    assert!(
        matches!(loss, Some(Loss::Revoked | Loss::Expired)),
        "{loss:?}"
    );
    assert!(start.elapsed() <= left + late, "reported late");
}

async fn careful(url: &str, replicas: impl Into<Replicas>) -> Client {
    let builder = patient(Client::builder(url)).replicas(replicas, TIME_ENOUGH);
    builder.connect().await.unwrap()
}

#[test]
fn all_kinds_work_with_acknowledgement() {
    acknowledge_all_kinds(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats the test on several servers"]
fn acknowledgement_on_old_and_new_works() {
    acknowledge_all_kinds(&old_and_new());
}

fn acknowledge_all_kinds(flavors: &[Flavor]) {
    run(async {
        for flavor in flavors {
            let group = group(flavor);
            let cluster = cluster(flavor);
            let sentinel = patient(sentinel_builder(&group, GROUP));
            let sentinel = sentinel.replicas(Replicas::All, TIME_ENOUGH);
            let clients = [
                sentinel.connect().await.unwrap(),
                careful(&cluster_url(&cluster), Replicas::All).await,
                careful(&cluster_url(&cluster), 1).await,
            ];
            let all = clients
                .iter()
                .flat_map(|client| (0..KINDS).map(move |kind| (client.clone(), kind)));
            let held_and_passed_on = all.map(|(client, kind)| {
                tokio::spawn(async move {
                    let name = name();
                    let first = any_lock(&client, &name, kind).await.unwrap();
                    let next = tokio::spawn(any_lock(&client, &name, kind).into_future());
                    until_renewed(&[first.lease()]).await;
                    first.extend(LEASE * 2).await.unwrap();
                    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
                    let second = next.await.unwrap().unwrap();
                    assert_eq!(second.release().await.unwrap(), ReleaseOutcome::Released);
                })
            });
            for kind in held_and_passed_on.collect::<Vec<_>>() {
                kind.await.unwrap();
            }
        }
    });
}

#[test]
fn what_is_not_acknowledged_is_given_back_and_a_renewal_that_is_not_moves_nothing() {
    run(async {
        let master = server();
        let replica = Server::start(&Flavor::one());
        replica.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        let url = format!("redis://127.0.0.1:{}", master.port());
        let in_sync = || master.info("connected_slaves") == 1.0;
        eventually("a replica", in_sync).await;
        // Long enough that a stall does not end it at the master, which would be reported as another loss.
        let lease = LEASE / 2;
        let builder = patient(Client::builder(&url)).lease(lease);
        let client = builder.replicas(Replicas::All, lease / 2).connect().await;
        let client = client.unwrap();
        let attached = Instant::now();
        let mut guards = Vec::new();
        for kind in 0..KINDS {
            let held = name();
            let guard = loop {
                // A replica that has just been attached acknowledges nothing for a while.
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
            let acquiring = any_try_lock(&client, &refused, kind).replicas(Replicas::All, PROMPT);
            let error = acquiring.await.unwrap_err();
            let expected = Error::NotReplicated {
                acknowledged: 0,
                wanted: 1,
            };
            assert_eq!(error.to_string(), expected.to_string());
            let gone = || !exists(&master, &refused);
            eventually("released", gone).await;
        }
        // The master goes on renewing them, but no replica knows.
        for guard in guards {
            assert_eq!(guard.lost().await, Some(Loss::Expired));
        }
        replica.resume();
        drop(client);
        // More replicas than there are.
        let client = careful(&url, 3).await;
        let error = client.mutex(&name()).try_lock().replicas(3, PROMPT).await;
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::NotReplicated { wanted: 3, .. }),
            "{error:?}"
        );
    });
}

#[test]
fn a_timeout_as_long_as_the_lease_is_refused() {
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

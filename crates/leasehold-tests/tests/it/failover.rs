//! What a failover costs that loses the last writes: a control without acknowledgement, and none with it.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Loss, Release, Replicas};
use testkit::group::GROUP;
use testkit::machine::{self, ran_since};
use testkit::{Flavor, Server};

use crate::contract::{KINDS, any_lock, any_try_lock};
use crate::deployment::{cluster, group, old_and_new, sentinel_builder};
use crate::support::{LEASE, beside_others, client, eventually, exists, name, run, scaled, server};

/// Longer than a failover takes.
const LONG: Duration = Duration::from_secs(8);

/// How long replicas have to acknowledge.
const PROMPT: Duration = Duration::from_millis(400);

/// What one failover did.
#[derive(Default)]
struct Tally {
    failovers: u64,
    granted_twice: u64,
    granted_twice_though_acknowledged: u64,
    refused: u64,
}

#[test]
fn a_failover_that_loses_writes_grants_twice_unless_replicas_acknowledged() {
    let _place = machine::beside_others();
    let mut tally = Tally::default();
    for (round, flavor) in (0..scaled(3)).zip(old_and_new().iter().cycle()) {
        run(fail_over(round, flavor, &mut tally));
    }
    let Tally {
        failovers,
        granted_twice,
        granted_twice_though_acknowledged,
        refused,
    } = tally;
    println!(
        "{failovers} failovers: {granted_twice} double grants without acknowledgement, \
         {granted_twice_though_acknowledged} with; {refused} refused as not replicated"
    );
    assert!(granted_twice > 0, "the control shows nothing");
    assert_eq!(granted_twice_though_acknowledged, 0);
    assert_eq!(refused, failovers);
}

async fn fail_over(round: u64, flavor: &Flavor, tally: &mut Tally) {
    let mut group = group(flavor);
    let builder = || sentinel_builder(&group, GROUP).lease(LONG);
    let plain = builder().connect().await.unwrap();
    let careful = builder()
        .replicas(Replicas::All, PROMPT)
        .connect()
        .await
        .unwrap();
    let (kept, lost, refused) = (name(), name(), name());
    let survivor = any_lock(&careful, &kept, round).await.unwrap();

    // Whatever is written from here on, no replica will have.
    cut_off(group.server(0), &[group.server(1), group.server(2)]);
    let stale = any_lock(&plain, &lost, round).await.unwrap();
    let acknowledged = any_try_lock(&careful, &refused, round).await;
    match &acknowledged {
        Err(Error::NotReplicated { wanted: 2, .. }) => tally.refused += 1,
        Ok(Some(_)) => {}
        other => panic!("{other:?}"),
    }
    group.kill(0);
    group.server(1).resume();
    group.server(2).resume();
    group.until_master_is_not(0);

    let other = sentinel_builder(&group, GROUP).connect().await.unwrap();
    let second = any_try_lock(&other, &lost, round).await.unwrap();
    let second = second.expect("the new master knows nothing of it");
    assert!(second.token() > stale.token(), "tokens must rise");
    if stale.check().is_ok() {
        tally.granted_twice += 1;
        told_in_time(&stale).await;
    }
    if any_try_lock(&other, &refused, round)
        .await
        .unwrap()
        .is_some()
        && acknowledged.is_ok_and(|guard| guard.is_some_and(|guard| guard.check().is_ok()))
    {
        tally.granted_twice_though_acknowledged += 1;
    }
    survivor
        .check()
        .expect("acknowledged, so it outlives the failover");
    if any_try_lock(&other, &kept, round).await.unwrap().is_some() {
        tally.granted_twice_though_acknowledged += 1;
    }
    assert_eq!(survivor.release().await.unwrap(), Release::Released);
    tally.failovers += 1;
}

/// Stops the replicas and closes their connections: what the master writes from now on is lost with it.
fn cut_off(master: &Server, replicas: &[&Server]) {
    replicas.iter().for_each(|replica| replica.pause());
    master.tell(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// One that lost its lock learns it by its next renewal, or at its deadline.
async fn told_in_time(guard: &Guard) {
    let left = guard.remaining();
    let start = Instant::now();
    let loss = guard.lost().await;
    assert!(
        matches!(loss, Some(Loss::Taken | Loss::Expired)),
        "{loss:?}"
    );
    assert!(
        ran_since(start) <= left + Duration::from_millis(400),
        "told late"
    );
}

async fn careful(url: &str, replicas: impl Into<Replicas>) -> Client {
    let builder = Client::builder(url).lease(LEASE);
    builder.replicas(replicas, PROMPT).connect().await.unwrap()
}

#[test]
fn all_kinds_work_with_acknowledgement() {
    beside_others(async {
        for flavor in old_and_new() {
            let group = group(&flavor);
            let cluster = cluster(&flavor);
            let sentinel = sentinel_builder(&group, GROUP).replicas(Replicas::All, PROMPT);
            let clients = [
                sentinel.connect().await.unwrap(),
                careful(&crate::deployment::cluster_url(&cluster), Replicas::All).await,
                careful(&crate::deployment::cluster_url(&cluster), 1).await,
            ];
            let all = clients
                .iter()
                .flat_map(|client| (0..KINDS).map(move |kind| (client.clone(), kind)));
            let held_and_passed_on = all.map(|(client, kind)| {
                tokio::spawn(async move {
                    let name = name();
                    let first = any_lock(&client, &name, kind).await.unwrap();
                    let next = tokio::spawn(any_lock(&client, &name, kind).into_future());
                    tokio::time::sleep(LEASE * 2).await;
                    first.check().unwrap();
                    first.extend(LEASE * 2).await.unwrap();
                    assert_eq!(first.release().await.unwrap(), Release::Released);
                    let second = next.await.unwrap().unwrap();
                    assert_eq!(second.release().await.unwrap(), Release::Released);
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
    beside_others(async {
        let master = server();
        let replica = Server::start(&Flavor::one());
        replica.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        let url = format!("redis://127.0.0.1:{}", master.port());
        let in_sync = || master.info("connected_slaves") == 1.0;
        eventually(Duration::from_secs(10), "a replica", in_sync).await;
        let client = careful(&url, Replicas::All).await;
        for kind in 0..KINDS {
            let (held, refused) = (name(), name());
            let in_time = Instant::now();
            let guard = loop {
                // A replica that has just been attached acknowledges nothing for a while.
                match any_lock(&client, &held, kind).wait(LEASE).await {
                    Ok(guard) => break guard,
                    Err(error) => {
                        assert!(ran_since(in_time) < Duration::from_secs(10), "{error:?}");
                    }
                }
            };
            replica.pause();
            let error = any_try_lock(&client, &refused, kind).await.unwrap_err();
            let told = Error::NotReplicated {
                acknowledged: 0,
                wanted: 1,
            };
            assert_eq!(error.to_string(), told.to_string());
            let gone = || !exists(&master, &refused);
            eventually(Duration::from_secs(2), "given back", gone).await;
            // The master goes on renewing it, but nobody else knows.
            assert_eq!(guard.lost().await, Some(Loss::Expired));
            replica.resume();
        }
        drop(client);
        // More replicas than there are.
        let client = careful(&url, 3).await;
        let error = client.mutex(&name()).try_lock().await.unwrap_err();
        assert!(
            matches!(error, Error::NotReplicated { wanted: 3, .. }),
            "{error:?}"
        );
    });
}

#[test]
fn a_timeout_as_long_as_the_lease_is_refused() {
    beside_others(async {
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

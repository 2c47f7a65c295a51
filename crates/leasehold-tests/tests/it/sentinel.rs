//! A group with sentinels: the client is where the master is, before, during and after a failover.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, ReleaseOutcome};
use testkit::sentinel_group::{GROUP, SentinelGroup};
use testkit::{Flavor, Server};

use crate::cluster::{until_found, until_waited_for};
use crate::contract::{KINDS, any_lock, passed_on};
use crate::deployment::{group, sentinel_builder};
use crate::support::{AMPLE, PASSWORD, exists, name, patient, run, until_renewed};

/// It bears outages for longer than sentinels take to agree on a busy machine.
async fn client(group: &SentinelGroup) -> Client {
    let builder = patient(sentinel_builder(group, GROUP)).max_outage(AMPLE * 2);
    builder.connect().await.unwrap()
}

#[test]
fn locks_are_taken_and_waited_for_on_the_master_also_after_a_failover() {
    wait_through_failover(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats a failover on every server"]
fn sentinel_failover_on_every_server_passes_locks_on() {
    wait_through_failover(&Flavor::all());
}

fn wait_through_failover(flavors: &[Flavor]) {
    for flavor in flavors {
        run(async {
            let mut group = group(flavor);
            let (one, other) = (client(&group).await, client(&group).await);
            let names: Vec<_> = (0..KINDS).map(|_| name()).collect();
            let mut waiting = Vec::new();
            for (kind, name) in (0..).zip(&names) {
                let guard = any_lock(&one, name, kind).await.unwrap();
                assert!(exists(group.server(0), name));
                let next = tokio::spawn(any_lock(&other, name, kind).into_future());
                waiting.push((guard, next));
            }
            // On a server that has all slots, one channel is enough for all kinds with a queue.
            until_waited_for(group.server(0), 2).await;
            let killed = Instant::now();
            group.kill(0);
            group.wait_for_new_master(0);
            println!("{}: failover in {:?}", flavor.name, killed.elapsed());
            until_found(&one, &name()).await;
            let master = group.master();
            let mut guards = Vec::new();
            for (name, (guard, next)) in names.iter().zip(waiting) {
                guards.push(passed_on(guard, next).await);
                assert!(exists(group.server(master), name));
            }
            let leases: Vec<_> = guards.iter().map(Guard::lease).collect();
            until_renewed(&leases).await;
            for (name, guard) in names.iter().zip(guards) {
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
                assert!(!exists(group.server(master), name));
            }
        });
    }
}

#[test]
fn a_master_that_was_demoted_while_it_slept_is_left() {
    leave_demoted_master(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon a client leaves"]
fn demoted_master_is_left_within_two_seconds() {
    leave_demoted_master(Duration::from_secs(2));
}

fn leave_demoted_master(limit: Duration) {
    let talks = |server: &Server| {
        let clients = server.ask(&["CLIENT", "LIST"]);
        clients.text().contains("name=leasehold")
    };
    run(async {
        let group = group(&Flavor::one());
        let client = client(&group).await;
        let _ = client.mutex(&name()).lock().await.unwrap().release().await;
        group.server(0).pause();
        group.wait_for_new_master(0);
        group.server(0).resume();
        let master = group.server(group.master());
        let start = Instant::now();
        while talks(group.server(0)) {
            assert!(start.elapsed() < limit, "still talks to the old master");
            // For a moment the old master may still be asked.
            if let Ok(guard) = client.mutex(&name()).lock().await {
                let _ = guard.release().await;
            }
        }
        for _ in 0..20 {
            let name = name();
            let guard = client.mutex(&name).lock().await.unwrap();
            assert!(exists(master, &name), "granted by the old master");
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        }
        assert!(!talks(group.server(0)), "returned to the old master");
    });
}

#[test]
fn a_sentinel_that_is_down_is_passed_over() {
    run(async {
        let mut group = group(&Flavor::one());
        group.kill_sentinel(0);
        let client = client(&group).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        group.kill_sentinel(1);
        // Without a majority there is no failover, but the last sentinel still knows the master.
        until_renewed(&[guard.lease()]).await;
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        let late = self::client(&group).await;
        let guard = late.mutex(&name()).lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

#[test]
fn what_is_wrong_is_told() {
    run(async {
        let group = group(&Flavor::one());
        let error = sentinel_builder(&group, "another")
            .connect()
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        let sentinels = group.sentinels();
        let url = format!("redis+sentinel://leasehold:{PASSWORD}@{sentinels}/{GROUP}");
        let error = Client::connect(&url).await.unwrap_err();
        assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
        let error = Client::connect("redis+sentinel://u:secret@host")
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::Invalid { what: "url", .. }),
            "{error:?}"
        );
        assert!(!error.to_string().contains("secret"));
    });
}

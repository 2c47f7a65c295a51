//! A group with sentinels: the client is where the master is, before, during and after a failover.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Release};
use testkit::Flavor;
use testkit::group::{GROUP, Group};

use crate::contract::{KINDS, any_lock, passed_on};
use crate::deployment::{group, sentinel_builder};
use crate::support::{LEASE, PASSWORD, beside_others, eventually, exists, name};

/// It bears outages for longer than sentinels take to agree on a busy machine.
async fn client(group: &Group) -> Client {
    let builder = sentinel_builder(group, GROUP).outage_limit(Duration::from_secs(120));
    builder.connect().await.unwrap()
}

#[test]
fn locks_are_taken_and_waited_for_on_the_master_also_after_a_failover() {
    for flavor in Flavor::all() {
        beside_others(async {
            let mut group = group(&flavor);
            let (one, other) = (client(&group).await, client(&group).await);
            let names: Vec<_> = (0..KINDS).map(|_| name()).collect();
            let mut waiting = Vec::new();
            for (kind, name) in (0..).zip(&names) {
                let guard = any_lock(&one, name, kind).await.unwrap();
                assert!(exists(group.server(0), name));
                let next = tokio::spawn(any_lock(&other, name, kind).into_future());
                waiting.push((guard, next));
            }
            tokio::time::sleep(LEASE / 2).await;
            let killed = Instant::now();
            group.kill(0);
            group.until_master_is_not(0);
            println!("{}: failover in {:?}", flavor.name, killed.elapsed());
            let master = group.master();
            for (name, (guard, next)) in names.iter().zip(waiting) {
                let guard = passed_on(guard, next).await;
                guard.check().unwrap();
                assert!(exists(group.server(master), name));
                tokio::time::sleep(LEASE).await;
                match guard.release().await.unwrap() {
                    Release::Released => assert!(!exists(group.server(master), name)),
                    // On a busy machine the sentinels may give up the new master too.
                    lost => assert_ne!(group.master(), master, "{lost:?} without a failover"),
                }
            }
        });
    }
}

#[test]
fn a_master_that_was_demoted_while_it_slept_is_left() {
    beside_others(async {
        let group = group(&Flavor::one());
        let client = client(&group).await;
        let _ = client.mutex(&name()).lock().await.unwrap().release().await;
        group.server(0).pause();
        group.until_master_is_not(0);
        group.server(0).resume();
        let master = group.server(group.master());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            let name = name();
            // For a moment it may still be asked, and refuse; what is granted is granted by the master.
            if let Ok(guard) = client.mutex(&name).lock().await {
                if guard.check().is_ok() && start.elapsed() > Duration::from_secs(2) {
                    assert!(
                        exists(master, &name),
                        "granted by a server that is no master"
                    );
                }
                let _ = guard.release().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        eventually(
            Duration::from_secs(3),
            "no connection to the old master",
            || {
                let clients = group.server(0).ask(&["CLIENT", "LIST"]);
                !clients.text().contains("name=leasehold")
            },
        )
        .await;
    });
}

#[test]
fn a_sentinel_that_is_down_is_passed_over() {
    beside_others(async {
        let mut group = group(&Flavor::one());
        group.kill_sentinel(0);
        let client = client(&group).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        group.kill_sentinel(1);
        // Without a majority there is no failover, but who is the master is still known.
        tokio::time::sleep(LEASE * 3).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    });
}

#[test]
fn what_is_wrong_is_told() {
    beside_others(async {
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

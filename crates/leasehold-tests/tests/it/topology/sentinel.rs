//! Sentinel: the client follows the master before, during and after a failover.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard};
use testkit::sentinel_group::{GROUP, SentinelGroup};
use testkit::{Flavor, Server, ServerExt};

use crate::support::contract::{KINDS, any_lock, release_to_next};
use crate::support::deployment::{connect_to_group, group};
use crate::support::deployment::{wait_for_new_master, wait_for_waiters};
use crate::support::{AMPLE, PASSWORD, exists, name, run, wait_for_renewal, with_long_timeouts};

/// Connects a client that retries through outages for longer than sentinels
/// take to agree on a busy machine.
async fn client(group: &SentinelGroup) -> Client {
    let builder = with_long_timeouts(connect_to_group(group, GROUP)).max_outage(AMPLE * 2);
    builder.await.unwrap()
}

#[test]
fn sentinel_failover_keeps_waiters() {
    wait_through_failover(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats a failover on every server"]
fn sentinel_failover_keeps_waiters_on_all_servers() {
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
            // On a server that owns all slots, one channel serves all queued
            // lock types.
            wait_for_waiters(group.server(0), 2).await;
            let killed = Instant::now();
            group.kill(0);
            group.wait_for_new_master(0);
            println!("{}: failover in {:?}", flavor.name, killed.elapsed());
            wait_for_new_master(&one, &name()).await;
            let master = group.master();
            let mut guards = Vec::new();
            for (name, (guard, next)) in names.iter().zip(waiting) {
                guards.push(release_to_next(guard, next).await);
                assert!(exists(group.server(master), name));
            }
            let leases: Vec<_> = guards.iter().map(Guard::lease).collect();
            wait_for_renewal(&leases.iter().collect::<Vec<_>>()).await;
            for (name, guard) in names.iter().zip(guards) {
                guard.release().await.unwrap();
                assert!(!exists(group.server(master), name));
            }
        });
    }
}

#[test]
fn demoted_master_is_left() {
    leave_demoted_master(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon a client leaves"]
fn demoted_master_is_left_within_two_seconds() {
    leave_demoted_master(Duration::from_secs(2));
}

fn leave_demoted_master(limit: Duration) {
    // A sentinel that demotes a master closes all connections, ours included,
    // so we ask until a reply arrives.
    let has_clients = |server: &Server| loop {
        if let Ok(clients) = server.connect().ask(&["CLIENT", "LIST"]) {
            break clients.text().contains("name=leasehold");
        }
    };
    run(async {
        let group = group(&Flavor::one());
        let client = client(&group).await;
        client
            .mutex(&name())
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        group.server(0).pause();
        group.wait_for_new_master(0);
        group.server(0).resume();
        let master = group.server(group.master());
        let start = Instant::now();
        while has_clients(group.server(0)) {
            assert!(start.elapsed() < limit, "still connected to the old master");
            // The client may still reach the old master for a moment.
            if let Ok(guard) = client.mutex(&name()).lock().await {
                let _ = guard.release().await;
            }
        }
        for _ in 0..20 {
            let name = name();
            let guard = client.mutex(&name).lock().await.unwrap();
            assert!(exists(master, &name), "granted by the old master");
            guard.release().await.unwrap();
        }
        assert!(
            !has_clients(group.server(0)),
            "reconnected to the old master"
        );
    });
}

#[test]
fn unreachable_sentinel_is_skipped() {
    run(async {
        let mut group = group(&Flavor::one());
        group.kill_sentinel(0);
        let client = client(&group).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        group.kill_sentinel(1);
        // Without a majority there is no failover, but the last sentinel still
        // knows the master.
        wait_for_renewal(&[&guard.lease()]).await;
        guard.release().await.unwrap();
        let late = self::client(&group).await;
        let guard = late.mutex(&name()).lock().await.unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
fn misconfiguration_is_reported() {
    run(async {
        let group = group(&Flavor::one());
        let error = connect_to_group(&group, "another").await.unwrap_err();
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

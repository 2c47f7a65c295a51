//! Pushed grants: lost, forged, and granted to dead waiters.

use std::time::{Duration, Instant};

use leasehold::{Guard, Loss};
use testkit::{Server, ServerExt};

use super::queue::{hold_elsewhere, waiter_count};
use crate::support::worker;
use crate::support::{AMPLE, LEASE, client, connect_at, eventually, name, run, scaled, server};

/// Releases a fair mutex while its waiter receives no messages. Returns how
/// long the waiter took, and whether its guard was valid.
async fn release_unnoticed() -> (Duration, bool) {
    let (server, name) = (server(), name());
    let held = hold_elsewhere(&server, &name).await;
    let waiter = client(&server).await.fair_mutex(&name);
    let waiter = tokio::spawn(waiter.lock().into_future());
    eventually("the waiter is queued", || waiter_count(&server, &name) == 1).await;
    // No client receives messages from here on; the keepers reconnect.
    server.tell(&["ACL", "SETUSER", "leasehold", "resetchannels"]);
    let released = Instant::now();
    held.release().await.unwrap();
    let got = tokio::time::timeout(AMPLE, waiter).await;
    let guard = got.expect("the waiter acquires the lock").unwrap().unwrap();
    (released.elapsed(), guard.check().is_ok())
}

#[test]
fn missed_grant_is_found_by_heartbeat() {
    run(release_unnoticed());
}

#[test]
#[ignore = "deep: measures a latency"]
fn missed_grant_is_found_within_one_heartbeat() {
    let (took, holds) = run(release_unnoticed());
    assert!(took < Duration::from_millis(1500), "after {took:?}");
    assert!(holds);
}

/// Releases a fair mutex `times` times while its waiter reconnects. Returns the
/// longest time until the waiter acquired it.
async fn release_while_reconnecting(times: u64) -> Duration {
    let server = server();
    let lease = Duration::from_secs(30);
    let client = || connect_at(server.port()).lease(lease);
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let name = name();
        let mutex = client().await.unwrap().fair_mutex(&name);
        let held = mutex.lock().await.unwrap();
        let waiter = client().await.unwrap().fair_mutex(&name);
        let waiter = tokio::spawn(waiter.lock().into_future());
        eventually("the waiter is queued", || waiter_count(&server, &name) == 1).await;
        // The server publishes the grant while the waiter is disconnected.
        let killed = Instant::now();
        server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        held.release().await.unwrap();
        let _guard = waiter.await.unwrap().unwrap();
        longest = longest.max(killed.elapsed());
    }
    longest
}

#[test]
fn grant_during_reconnect_is_found() {
    run(release_while_reconnecting(scaled(2)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn reconnect_triggers_prompt_heartbeat() {
    let longest = run(release_while_reconnecting(scaled(5)));
    assert!(
        // The client reconnects within a second.
        longest < Duration::from_millis(1600),
        "after {longest:?}"
    );
}

/// Releases a fair mutex to a dead process. Returns how long the waiter behind
/// it took.
async fn release_to_dead_waiter() -> Duration {
    let (server, name) = (server(), name());
    let held = hold_elsewhere(&server, &name).await;
    let mut dying = worker::start(server.port(), LEASE);
    dying.tell(&format!("serve {name} 60000 0"));
    eventually("the waiter is queued", || waiter_count(&server, &name) == 1).await;
    let next = client(&server).await.fair_mutex(&name);
    let next = tokio::spawn(next.lock().into_future());
    eventually("the next is queued", || waiter_count(&server, &name) == 2).await;
    dying.kill();
    held.release().await.unwrap();
    let start = Instant::now();
    let _guard = next.await.unwrap().unwrap();
    start.elapsed()
}

#[test]
fn grant_to_dead_waiter_moves_on() {
    run(release_to_dead_waiter());
}

#[test]
#[ignore = "deep: measures a latency"]
fn grant_to_dead_waiter_costs_its_first_lease() {
    let took = run(release_to_dead_waiter());
    let first = Duration::from_secs(2)..Duration::from_millis(4500);
    assert!(first.contains(&took), "{took:?}");
}

/// Returns a granted guard with a fixed lease, and an instant before the grant.
async fn granted_for(length: Duration, server: &Server) -> (Instant, Guard) {
    let name = name();
    let held = hold_elsewhere(server, &name).await;
    let waiter = client(server).await.fair_mutex(&name);
    let waiter = tokio::spawn(waiter.lock().fixed_lease(length).into_future());
    eventually("the waiter is queued", || waiter_count(server, &name) == 1).await;
    let before = Instant::now();
    held.release().await.unwrap();
    (before, waiter.await.unwrap().unwrap())
}

#[test]
fn granted_fixed_lease_keeps_its_length() {
    run(async {
        let server = server();
        let (before, guard) = granted_for(LEASE, &server).await;
        // A grant lasts as long as a queue entry, and the keeper extends it.
        eventually("the lease is extended", || {
            guard.check().unwrap();
            guard.lease().deadline() > before + LEASE * 9 / 10
        })
        .await;
    });
}

#[test]
#[ignore = "deep: measures a time"]
fn granted_fixed_lease_expires_on_time() {
    run(async {
        let server = server();
        let length = Duration::from_secs(5);
        let (before, guard) = granted_for(length, &server).await;
        assert_eq!(guard.lost().await, Some(Loss::Expired));
        let took = before.elapsed();
        let second = Duration::from_secs(1);
        assert!(took > length - second && took < length + second, "{took:?}");
    });
}

#[test]
fn forged_grants_are_rejected() {
    run(async {
        let (server, name) = (server(), name());
        let held = hold_elsewhere(&server, &name).await;
        let waiter = client(&server).await.fair_mutex(&name);
        let waiter = tokio::spawn(waiter.lock().into_future());
        eventually("the waiter is queued", || waiter_count(&server, &name) == 1).await;
        let grants = || server.ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:grant:*"]);
        eventually("the waiter subscribes", || !grants().list().is_empty()).await;
        let grants = grants();
        let channel = grants.list()[0].text();
        for forged in [
            "",
            "x",
            "00000000000000000000000000000001 1 9999999999999999",
        ] {
            let delivered = || server.ask(&["SPUBLISH", channel, forged]).int() == 1;
            eventually("the message is delivered", delivered).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_finished(), "a forged grant was accepted");
        held.release().await.unwrap();
        let _guard = waiter.await.unwrap().unwrap();
    });
}

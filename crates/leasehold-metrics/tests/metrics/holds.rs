//! How holds end: released, handed off, or lost.

use std::time::Duration;

use leasehold::{Error, Loss};
use leasehold_metrics::{
    HANDED_OFF, HELD, HOLD_DURATION, LEASE_MARGIN, LEASE_MARGIN_RATIO, LOST, Metrics,
    RELEASES_PENDING, RENEWALS,
};
use testkit::{Fault, Proxy, ServerExt};

use crate::scrape::Registry;
use crate::{AMPLE, LEASE, SHORT, connect, eventually, observed, release, run, server};

/// Waits until a lock was lost once for `cause`, and for no other.
async fn lost_by(registry: &Registry, cause: &str) {
    let labels = [("lock", "job"), ("kind", "mutex"), ("cause", cause)];
    eventually(cause, || registry.value(LOST, &labels) == 1.0).await;
    assert_eq!(registry.value(LOST, &[]), 1.0);
    assert_eq!(registry.count(HOLD_DURATION, &[("end", "lost")]), 1.0);
    assert_eq!(registry.value(HELD, &[]), 0.0);
}

#[test]
fn losses_state_their_cause() {
    run(async {
        let server = server();

        let (client, registry) = observed(server.port()).await;
        let guard = client.mutex("job").lock().fixed_lease(SHORT).await.unwrap();
        // A counter without a value would hide its first increase.
        assert_eq!(registry.find(LOST, &[("cause", "expired")]), Some(0.0));
        lost_by(&registry, "expired").await;
        drop(guard);

        let (client, registry) = observed(server.port()).await;
        let guard = client.mutex("job").lock().at_most(SHORT).await.unwrap();
        lost_by(&registry, "at_most").await;
        drop(guard);

        let (client, registry) = observed(server.port()).await;
        // The keeper notices that it is stuck even if the machine stalls.
        let lock = client.mutex("job").lock().lease(SHORT * 10);
        let guard = lock.progress_within(SHORT / 10).await.unwrap();
        lost_by(&registry, "stuck").await;
        let withheld = registry.value(RENEWALS, &[("outcome", "withheld")]);
        assert_eq!(withheld, 1.0);
        drop(guard);

        let (client, registry) = observed(server.port()).await;
        let _guard = client.mutex("job").lock().await.unwrap();
        client.force_release("job").await.unwrap();
        lost_by(&registry, "revoked").await;

        let (client, registry) = observed(server.port()).await;
        let _guard = client.mutex("job").lock().await.unwrap();
        client.shutdown(AMPLE).await.unwrap();
        lost_by(&registry, "shut_down").await;
    });
}

#[test]
fn release_of_a_revoked_lock_counts_a_loss() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        let guard = client.mutex("job").lock().await.unwrap();
        server.tell(&["DEL", "lock:job"]);
        let released = guard.release().await;
        assert!(
            matches!(
                released,
                Err(Error::Lost {
                    loss: Loss::Revoked,
                    ..
                })
            ),
            "{released:?}"
        );
        lost_by(&registry, "revoked").await;
    });
}

#[test]
fn expiry_that_a_check_finds_counts_once() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        for _ in 0..5 {
            let lock = client.mutex("job").lock();
            let guard = lock.fixed_lease(Duration::from_millis(30)).await.unwrap();
            while guard.check().is_ok() {
                std::hint::spin_loop();
            }
            drop(guard);
        }
        eventually("all are lost", || registry.value(LOST, &[]) == 5.0).await;
        assert_eq!(registry.value(HELD, &[]), 0.0);
        assert_eq!(registry.count(HOLD_DURATION, &[]), 5.0);
    });
}

#[test]
fn expiry_before_a_shutdown_or_drop_is_reported() {
    run(async {
        let server = server();
        for shuts_down in [true, false].repeat(5) {
            let (client, registry) = observed(server.port()).await;
            let lock = client.mutex("job").lock();
            let guard = lock.fixed_lease(Duration::from_millis(30)).await.unwrap();
            // Notices the expiry before the keeper does.
            while guard.check().is_ok() {
                std::hint::spin_loop();
            }
            drop(guard);
            if shuts_down {
                client.shutdown(AMPLE).await.unwrap();
            }
            drop(client);
            lost_by(&registry, "expired").await;
        }
    });
}

#[test]
fn renewals_record_the_margin_of_the_lease() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        let lease = Duration::from_secs(3);
        let _guard = client.mutex("job").lock().lease(lease).await.unwrap();
        let confirmed = || registry.value(RENEWALS, &[("outcome", "confirmed")]);
        eventually("two renewals", || confirmed() >= 2.0).await;
        let count = registry.count(LEASE_MARGIN, &[]);
        assert!(count >= 2.0);
        let margin = registry.value(&format!("{LEASE_MARGIN}_sum"), &[]) / count;
        // A renewal is due after a sixth of the lease at the earliest.
        assert!(margin > 0.0 && margin <= 2.5, "{margin}");
        let count = registry.count(LEASE_MARGIN_RATIO, &[]);
        let ratio = registry.value(&format!("{LEASE_MARGIN_RATIO}_sum"), &[]) / count;
        assert!(ratio > 0.0 && ratio <= 0.84, "{ratio}");
        assert_eq!(registry.value(RENEWALS, &[("outcome", "failed")]), 0.0);
    });
}

#[test]
fn local_handoff_ends_a_hold_of_its_own() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let mutex = client.mutex("job");
                tokio::spawn(async move {
                    for _ in 0..50 {
                        release(mutex.lock().await.unwrap()).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let ended = |end| registry.count(HOLD_DURATION, &[("end", end)]);
        let labels = [("lock", "job"), ("kind", "mutex")];
        assert!(ended("handed_off") > 0.0);
        assert_eq!(registry.value(HANDED_OFF, &labels), ended("handed_off"));
        assert_eq!(ended("handed_off") + ended("released"), 200.0);
        assert_eq!(registry.value(HELD, &[]), 0.0);
    });
}

#[test]
fn pending_releases_of_all_clients_add_up() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let (metrics, registry) = Registry::new(Metrics::builder());
        let mut guards = Vec::new();
        for name in ["one", "two"] {
            let connect = connect(proxy.port()).observe(metrics.observer());
            let client = connect.await.unwrap();
            let guard = client.mutex(name).lock().fixed_lease(LEASE).await.unwrap();
            guards.push((client, guard));
        }
        let pending = || registry.value(RELEASES_PENDING, &[]);
        assert_eq!(pending(), 0.0);
        proxy.inject(|_| Fault::Hold);
        let clients: Vec<_> = guards.into_iter().map(|(client, _)| client).collect();
        eventually("both releases are pending", || pending() == 2.0).await;
        proxy.heal();
        proxy.release_held();
        eventually("no release is pending", || pending() == 0.0).await;
        drop(clients);
    });
}

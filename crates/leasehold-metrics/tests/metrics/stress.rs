//! Many tasks that acquire, cancel and lose locks of every kind.

use std::time::Duration;

use leasehold::{Client, Error, Guard, Shared};
use leasehold_metrics::{
    ACQUIRE_DURATION, CONNECTIONS, HELD, HOLD_DURATION, RELEASES_PENDING, WAITING,
};
use testkit::{SeededRng, Server, ServerExt, scaled};

use crate::scrape::Registry;
use crate::{AMPLE, eventually, observed, run, server};

/// Acquires locks, and drops some of the futures and guards at random times.
async fn contend(client: Client, seed: u64, rounds: u64) {
    let mut random = SeededRng::new(seed);
    for _ in 0..rounds {
        let kind = random.below(4);
        let name = format!("{kind}:{}", random.below(2));
        let limit = Duration::from_micros(random.below(3000));
        let hold = Duration::from_micros(random.below(300));
        let waiting = async {
            let guard: Guard<Shared> = match kind {
                0 => client.mutex(&name).lock().await?.into(),
                1 => client.fair_mutex(&name).lock().await?.into(),
                2 => client.semaphore(&name, 2).acquire().await?,
                _ => client.rw_lock(&name).read().await?,
            };
            tokio::time::sleep(hold).await;
            match hold.as_micros() % 2 {
                0 => drop(guard),
                _ => guard.release().await?,
            }
            Ok::<_, Error>(())
        };
        if let Ok(outcome) = tokio::time::timeout(limit, waiting).await {
            outcome.unwrap();
        }
    }
}

/// Acquires a lock, and cancels a second acquire. On a slow machine,
/// [`contend`] alone may cancel every acquire.
async fn acquire_and_cancel(client: &Client) {
    let mutex = client.mutex("cancelled");
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(1), mutex.lock().into_future());
    assert!(waiting.await.is_err(), "a held lock was acquired");
    guard.release().await.unwrap();
}

/// Revokes locks until dropped.
async fn revoke(server: &Server) {
    loop {
        server.tell(&["DEL", "lock:0:0"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn assert_balanced(registry: &Registry) {
    let acquired = registry.count(ACQUIRE_DURATION, &[("outcome", "acquired")]);
    let cancelled = registry.count(ACQUIRE_DURATION, &[("outcome", "cancelled")]);
    assert!(acquired > 0.0 && cancelled > 0.0, "{acquired} {cancelled}");
    assert_eq!(acquired, registry.count(HOLD_DURATION, &[]));
}

#[test]
fn gauges_return_to_zero_after_cancellations() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        acquire_and_cancel(&client).await;
        let tasks: Vec<_> = (0..8)
            .map(|seed| tokio::spawn(contend(client.clone(), seed, scaled(150))))
            .collect();
        let contending = async {
            for task in tasks {
                task.await.unwrap();
            }
        };
        tokio::select! {
            () = contending => {}
            () = revoke(&server) => {}
        }
        for gauge in [HELD, WAITING, RELEASES_PENDING] {
            eventually(gauge, || registry.value(gauge, &[]) == 0.0).await;
        }
        // No label may be negative while another is positive.
        let lines = registry.text();
        let gauges = lines.lines().filter(|line| line.starts_with(HELD));
        for line in gauges {
            assert!(line.ends_with(" 0"), "{line}");
        }
        assert_balanced(&registry);
        client.shutdown(AMPLE).await.unwrap();
        drop(client);
        eventually("closed", || registry.value(CONNECTIONS, &[]) == 0.0).await;
    });
}

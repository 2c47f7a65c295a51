//! How acquires end, and how many callers wait.

use std::time::Duration;

use leasehold::Error;
use leasehold_metrics::{ACQUIRE_DURATION, HELD, HOLD_DURATION, WAITING};
use testkit::ServerExt;

use crate::{SHORT, eventually, observed, release, run, server};

const MUTEX: [(&str, &str); 2] = [("lock", "job"), ("kind", "mutex")];

fn acquire<'a>(outcome: &'a str, contended: &'a str) -> [(&'a str, &'a str); 4] {
    let [lock, kind] = MUTEX;
    [lock, kind, ("outcome", outcome), ("contended", contended)]
}

#[test]
fn uncontended_hold_is_counted_once() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        let guard = client.mutex("job").lock().await.unwrap();
        assert_eq!(registry.value(HELD, &MUTEX), 1.0);
        assert_eq!(registry.value(WAITING, &MUTEX), 0.0);
        release(guard).await;
        assert_eq!(registry.value(HELD, &MUTEX), 0.0);
        let granted = acquire("acquired", "false");
        assert_eq!(registry.count(ACQUIRE_DURATION, &granted), 1.0);
        assert_eq!(registry.count(ACQUIRE_DURATION, &[]), 1.0);
        assert_eq!(registry.count(HOLD_DURATION, &[("end", "released")]), 1.0);
        assert_eq!(registry.count(HOLD_DURATION, &[]), 1.0);
    });
}

#[test]
fn refused_acquires_state_their_outcome() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        let guard = client.mutex("job").lock().await.unwrap();

        let refused = client.mutex("job").try_lock().await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
        let busy = acquire("busy", "false");
        assert_eq!(registry.count(ACQUIRE_DURATION, &busy), 1.0);

        let waiting = client.mutex("job").lock().timeout(SHORT);
        waiting.await.unwrap_err();
        let timeout = acquire("timeout", "true");
        assert_eq!(registry.count(ACQUIRE_DURATION, &timeout), 1.0);
        let sum = registry.value(&format!("{ACQUIRE_DURATION}_sum"), &timeout);
        assert!(sum >= SHORT.as_secs_f64(), "{sum}");

        let at_once = client.mutex("job").lock().timeout(Duration::ZERO);
        at_once.await.unwrap_err();
        let timeout = acquire("timeout", "false");
        assert_eq!(registry.count(ACQUIRE_DURATION, &timeout), 1.0);

        release(guard).await;
        server.tell(&["LPUSH", "lock:job", "another type"]);
        client.mutex("job").try_lock().await.unwrap_err();
        let error = acquire("error", "false");
        assert_eq!(registry.count(ACQUIRE_DURATION, &error), 1.0);
        assert_eq!(registry.value(HELD, &[]), 0.0);
        assert_eq!(registry.value(WAITING, &[]), 0.0);
    });
}

#[test]
fn waiter_is_counted_until_it_is_cancelled() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        let _guard = client.mutex("job").lock().await.unwrap();
        let mutex = client.mutex("job");
        let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
        eventually("it waits", || registry.value(WAITING, &MUTEX) == 1.0).await;
        assert_eq!(registry.value(HELD, &MUTEX), 1.0);
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        assert_eq!(registry.value(WAITING, &MUTEX), 0.0);
        let cancelled = acquire("cancelled", "true");
        assert_eq!(registry.count(ACQUIRE_DURATION, &cancelled), 1.0);
    });
}

#[test]
fn waiter_of_another_process_is_contended() {
    run(async {
        let server = server();
        let (holder, _) = observed(server.port()).await;
        let (client, registry) = observed(server.port()).await;
        let guard = holder.fair_mutex("job").lock().await.unwrap();
        let mutex = client.fair_mutex("job");
        let waiter = tokio::spawn(async move { release(mutex.lock().await.unwrap()).await });
        let kind = [("kind", "fair_mutex")];
        eventually("it waits", || registry.value(WAITING, &kind) == 1.0).await;
        release(guard).await;
        waiter.await.unwrap();
        assert_eq!(registry.value(WAITING, &kind), 0.0);
        let contended = [("outcome", "acquired"), ("contended", "true")];
        assert_eq!(registry.count(ACQUIRE_DURATION, &contended), 1.0);
    });
}

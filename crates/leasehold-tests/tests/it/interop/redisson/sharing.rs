//! Shared objects: readers, permits and latches; also tokens and spin locks.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use testkit::ServerExt;

use crate::support::redisson::{Harness, WATCHDOG, acquire, acquire_now, is_refused};
use crate::support::{AMPLE, LEASE, eventually, is_busy, name, scaled};

pub(super) async fn readers_and_writers(harness: &Harness<'_>) {
    let (java, ours, name) = (harness.java, &harness.ours, name());
    let order = |what: &str| format!("lock {what} {name}");
    for round in 0..harness.pace.rounds {
        // Readers of both sides share the lock, and exclude the writers of
        // both.
        let reading = acquire_now(ours, "read", &name).await;
        assert_eq!(java.ask("a", &order("read/try")), "true");
        assert_eq!(java.ask("b", &order("write/try")), "false");
        assert!(is_refused(ours, "write", &name).await);
        assert_eq!(java.ask("a", &order("read/unlock")), "ok");
        let wait = ("b", order("write/lock"));
        let cause = async || {
            reading.release_held().await;
        };
        harness.assert_java_woken(round, wait, cause).await;

        // A writer excludes everyone, and its release wakes the readers of both
        // sides.
        assert!(is_refused(ours, "read", &name).await);
        assert_eq!(java.ask("a", &order("read/try")), "false");
        let reading =
            harness.assert_rust_woken(round, &name, acquire(ours, "read", &name, AMPLE), || {
                assert_eq!(java.ask("b", &order("write/unlock")), "ok");
            });
        let reading = reading.await.unwrap();
        assert_eq!(java.ask("a", &order("read/try")), "true");
        reading.release_held().await;
        let writing =
            harness.assert_rust_woken(round, &name, acquire(ours, "write", &name, AMPLE), || {
                assert_eq!(java.ask("a", &order("read/unlock")), "ok");
            });
        let writing = writing.await.unwrap();
        let wait = ("a", order("read/lock"));
        let cause = async || {
            writing.release_held().await;
        };
        harness.assert_java_woken(round, wait, cause).await;
        assert_eq!(java.ask("a", &order("read/unlock")), "ok");
    }
}

pub(super) async fn permits_are_exchanged(harness: &Harness<'_>) {
    let (java, ours, name) = (harness.java, &harness.ours, name());
    let semaphore = ours.semaphore(&name);
    let order = |what: &str, count: u32| format!("semaphore {what} {name} {count}");
    assert_eq!(java.ask("a", &order("set", 2)), "true");
    assert!(!semaphore.try_set_permits(5).await.unwrap());
    for round in 0..harness.pace.rounds {
        let both = semaphore
            .try_acquire(2)
            .await
            .expect("both permits are free");
        assert_eq!(java.ask("a", &order("try", 1)), "false");
        let wait = ("a", order("acquire", 1));
        let cause = async || {
            both.release().await.unwrap();
        };
        harness.assert_java_woken(round, wait, cause).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        assert!(is_busy(semaphore.try_acquire(2)).await);
        let both =
            harness.assert_rust_woken(round, &name, semaphore.acquire(2).into_future(), || {
                assert_eq!(java.ask("a", &order("release", 1)), "ok");
            });
        drop(both.await.unwrap());
        let available = || java.ask("a", &order("available", 0));
        eventually("the dropped permits are released", || available() == "2").await;
    }
}

pub(super) async fn permits_expire(harness: &Harness<'_>) {
    let (java, ours, name) = (harness.java, &harness.ours, name());
    let semaphore = ours.permit_expirable_semaphore(&name);
    let order = |what: &str, rest: &str| format!("permits {what} {name} {rest}");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    assert_eq!(java.ask("a", &order("set", "5")), "false");
    for round in 0..harness.pace.rounds {
        let both = semaphore
            .try_acquire(2)
            .await
            .expect("both permits are free");
        assert_eq!(java.ask("a", &order("available", "")), "0");
        let wait = ("a", order("acquire", "60000"));
        let release = async || both.release().await.unwrap();
        let said = harness.assert_java_woken(round, wait, release).await;
        assert_eq!(said.text.len(), 32, "{said:?}");
        let both =
            harness.assert_rust_woken(round, &name, semaphore.acquire(2).into_future(), || {
                let released = java.ask("a", &order("release", &said.text));
                assert_eq!(released, "true");
            });
        both.await.unwrap().release().await.unwrap();
    }
    // Rust acquires permits that Java lets expire.
    let start = Instant::now();
    assert_eq!(java.ask("a", &order("try", "0 700")).len(), 32);
    let both = semaphore.acquire(2).await.unwrap();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(600), "{waited:?}");
    let limit = harness.pace.limit + Duration::from_millis(1400);
    assert!(waited < limit, "{waited:?}");
    both.release().await.unwrap();
    assert_eq!(java.ask("a", &order("available", "")), "2");
}

/// Asserts that the keeper renews permits. Java reclaims expired permits at
/// each request, and finds none.
pub(super) async fn permits_are_renewed(harness: &Harness<'_>) {
    let name = name();
    let renewing = harness.ours.clone().watchdog(LEASE);
    let semaphore = renewing.permit_expirable_semaphore(&name);
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let both = semaphore
        .try_acquire(2)
        .await
        .expect("both permits are free");
    let timeouts = format!("{{{name}}}:timeout");
    // The permit that expires first.
    let first_end = || {
        let range = ["ZRANGE", &timeouts, "0", "0", "WITHSCORES"];
        harness.servers[0].ask(&range).list()[1].int()
    };
    let at_first = first_end();
    eventually("both permits are renewed", || first_end() > at_first).await;
    let available = harness
        .java
        .ask("renewed", &format!("permits available {name}"));
    assert_eq!(available, "0");
    both.release().await.unwrap();
}

/// The same for three leases.
pub(super) async fn permits_stay_renewed(harness: &Harness<'_>) {
    let name = name();
    let renewing = harness.ours.clone().watchdog(WATCHDOG);
    let semaphore = renewing.permit_expirable_semaphore(&name);
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let both = semaphore
        .try_acquire(2)
        .await
        .expect("both permits are free");
    tokio::time::sleep(WATCHDOG * 3).await;
    let available = harness.java.ask("a", &format!("permits available {name}"));
    assert_eq!(available, "0");
    both.release().await.unwrap();
}

pub(super) async fn latch_opens(harness: &Harness<'_>) {
    let (java, ours, name) = (harness.java, &harness.ours, name());
    let latch = ours.count_down_latch(&name);
    let order = |what: &str| format!("latch {what} {name} 60000");
    for round in 0..harness.pace.rounds {
        assert!(latch.try_set_count(2).await.unwrap());
        assert_eq!(java.ask("a", &format!("latch set {name} 7")), "false");
        assert_eq!(java.ask("a", &order("down")), "ok");
        assert_eq!(latch.count().await.unwrap(), 1);
        let wait = ("a", order("await"));
        let cause = async || {
            assert_eq!(latch.count_down().await.unwrap(), 0);
        };
        harness.assert_java_woken(round, wait, cause).await;
        assert_eq!(java.ask("a", &format!("latch set {name} 2")), "true");
        assert_eq!(latch.count_down().await.unwrap(), 1);
        let opened = harness.assert_rust_woken(round, &name, latch.until_open(Some(AMPLE)), || {
            assert_eq!(java.ask("b", &order("down")), "ok");
        });
        opened.await.unwrap();
        assert_eq!(latch.count_down().await.unwrap(), 0);
    }
}

pub(super) async fn tokens_increase(harness: &Harness<'_>) {
    let (java, ours, name) = (harness.java, &harness.ours, name());
    let mut last = 0;
    for _ in 0..scaled(5) {
        let guard = ours.fenced_lock(&name).lock().await.unwrap();
        assert!(guard.token().as_u64() > last);
        last = guard.token().as_u64();
        assert_eq!(
            java.ask("a", &format!("fenced token {name}")),
            last.to_string()
        );
        guard.release().await.unwrap();
        let token: u64 = java
            .ask("a", &format!("fenced lock {name}"))
            .parse()
            .unwrap();
        assert!(token > last);
        last = token;
        assert_eq!(java.ask("a", &format!("lock fenced/unlock {name}")), "ok");
    }
}

/// Asserts that both sides poll for a lock whose release is not published.
pub(super) async fn spin_lock_is_polled(harness: &Harness<'_>) {
    let (java, ours, name) = (harness.java, &harness.ours, name());
    let order = |method: &str| format!("lock spin/{method} {name}");
    assert_eq!(java.ask("a", &order("lock")), "ok");
    let mut released = None;
    let waiting = acquire(ours, "lock", &name, AMPLE);
    let woken = harness.assert_rust_woken(0, &name, waiting, || {
        assert_eq!(java.ask("a", &order("unlock")), "ok");
        released = Some(Instant::now());
    });
    let held = woken.await.unwrap();
    let waited = released.expect("the lock was released").elapsed();
    assert!(
        waited < harness.pace.limit.max(Duration::from_secs(5)),
        "{waited:?}"
    );
    java.tell("a", &order("lock"));
    let early = java.response_within("a", Duration::from_millis(300));
    assert!(early.is_none(), "{early:?}");
    held.release_held().await;
    assert_eq!(java.response("a").text, "ok");
}

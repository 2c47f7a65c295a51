//! What is not held by one alone: readers, permits, latches; and tokens, and spin locks.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::ReleaseOutcome;

use super::{Stage, WATCHDOG, is_refused, take, take_now};
use crate::support::{AMPLE, LEASE, eventually, name, scaled};

pub(super) async fn readers_and_writers(stage: &Stage<'_>) {
    let (java, ours, name) = (stage.java, &stage.ours, name());
    let order = |what: &str| format!("lock {what} {name}");
    for round in 0..stage.pace.rounds {
        // Readers of both sides are inside together, writers of neither.
        let reading = take_now(ours, "read", &name).await;
        assert_eq!(java.ask("a", &order("read/try")), "true");
        assert_eq!(java.ask("b", &order("write/try")), "false");
        assert!(is_refused(ours, "write", &name).await);
        assert_eq!(java.ask("a", &order("read/unlock")), "ok");
        let wait = ("b", order("write/lock"));
        let cause = async || {
            reading.give_back().await;
        };
        stage.java_is_woken(round, wait, cause).await;

        // One who writes keeps out all, and lets in both sides' readers.
        assert!(is_refused(ours, "read", &name).await);
        assert_eq!(java.ask("a", &order("read/try")), "false");
        let reading = stage.we_are_woken(round, &name, take(ours, "read", &name, AMPLE), || {
            assert_eq!(java.ask("b", &order("write/unlock")), "ok");
        });
        let reading = reading.await.unwrap();
        assert_eq!(java.ask("a", &order("read/try")), "true");
        reading.give_back().await;
        let writing = stage.we_are_woken(round, &name, take(ours, "write", &name, AMPLE), || {
            assert_eq!(java.ask("a", &order("read/unlock")), "ok");
        });
        let writing = writing.await.unwrap();
        let wait = ("a", order("read/lock"));
        let cause = async || {
            writing.give_back().await;
        };
        stage.java_is_woken(round, wait, cause).await;
        assert_eq!(java.ask("a", &order("read/unlock")), "ok");
    }
}

pub(super) async fn permits_pass(stage: &Stage<'_>) {
    let (java, ours, name) = (stage.java, &stage.ours, name());
    let semaphore = ours.semaphore(&name);
    let order = |what: &str, count: u32| format!("semaphore {what} {name} {count}");
    assert_eq!(java.ask("a", &order("set", 2)), "true");
    assert!(!semaphore.try_set_permits(5).await.unwrap());
    for round in 0..stage.pace.rounds {
        let both = semaphore.try_acquire(2).await.unwrap().expect("both");
        assert_eq!(java.ask("a", &order("try", 1)), "false");
        let wait = ("a", order("acquire", 1));
        let cause = async || {
            both.release().await.unwrap();
        };
        stage.java_is_woken(round, wait, cause).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        assert!(semaphore.try_acquire(2).await.unwrap().is_none());
        let both = stage.we_are_woken(round, &name, semaphore.acquire(2).into_future(), || {
            assert_eq!(java.ask("a", &order("release", 1)), "ok");
        });
        drop(both.await.unwrap());
        let available = || java.ask("a", &order("available", 0));
        eventually("the dropped permits are back", || available() == "2").await;
    }
}

pub(super) async fn permits_expire(stage: &Stage<'_>) {
    let (java, ours, name) = (stage.java, &stage.ours, name());
    let semaphore = ours.permit_expirable_semaphore(&name);
    let order = |what: &str, rest: &str| format!("permits {what} {name} {rest}");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    assert_eq!(java.ask("a", &order("set", "5")), "false");
    for round in 0..stage.pace.rounds {
        let both = semaphore.try_acquire(2).await.unwrap().expect("both");
        assert_eq!(java.ask("a", &order("available", "")), "0");
        let wait = ("a", order("acquire", "60000"));
        let release = async || assert_eq!(both.release().await.unwrap(), ReleaseOutcome::Released);
        let said = stage.java_is_woken(round, wait, release).await;
        assert_eq!(said.text.len(), 32, "{said:?}");
        let both = stage.we_are_woken(round, &name, semaphore.acquire(2).into_future(), || {
            let released = java.ask("a", &order("release", &said.text));
            assert_eq!(released, "true");
        });
        let _ = both.await.unwrap().release().await.unwrap();
    }
    // What Java lets expire is ours then.
    let start = Instant::now();
    assert_eq!(java.ask("a", &order("try", "0 700")).len(), 32);
    let both = semaphore.acquire(2).await.unwrap();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(600), "{waited:?}");
    let limit = stage.pace.limit + Duration::from_millis(1400);
    assert!(waited < limit, "{waited:?}");
    assert_eq!(both.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(java.ask("a", &order("available", "")), "2");
}

/// Java reclaims expired permits whenever it asks, and finds none: our keeper renews them.
pub(super) async fn permits_are_renewed(stage: &Stage<'_>) {
    let name = name();
    let renewing = stage.ours.clone().watchdog(LEASE);
    let semaphore = renewing.permit_expirable_semaphore(&name);
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let both = semaphore.try_acquire(2).await.unwrap().expect("both");
    let timeouts = format!("{{{name}}}:timeout");
    // The permit that expires first.
    let first_end = || {
        let range = ["ZRANGE", &timeouts, "0", "0", "WITHSCORES"];
        stage.servers[0].ask(&range).list()[1].int()
    };
    let at_first = first_end();
    eventually("both were renewed", || first_end() > at_first).await;
    let available = stage
        .java
        .ask("renewed", &format!("permits available {name}"));
    assert_eq!(available, "0");
    assert_eq!(both.release().await.unwrap(), ReleaseOutcome::Released);
}

/// The same for three times as long as they would last by themselves.
pub(super) async fn permits_are_kept(stage: &Stage<'_>) {
    let name = name();
    let renewing = stage.ours.clone().watchdog(WATCHDOG);
    let semaphore = renewing.permit_expirable_semaphore(&name);
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let both = semaphore.try_acquire(2).await.unwrap().expect("both");
    tokio::time::sleep(WATCHDOG * 3).await;
    let available = stage.java.ask("a", &format!("permits available {name}"));
    assert_eq!(available, "0");
    assert_eq!(both.release().await.unwrap(), ReleaseOutcome::Released);
}

pub(super) async fn latch_opens(stage: &Stage<'_>) {
    let (java, ours, name) = (stage.java, &stage.ours, name());
    let latch = ours.count_down_latch(&name);
    let order = |what: &str| format!("latch {what} {name} 60000");
    for round in 0..stage.pace.rounds {
        assert!(latch.try_set_count(2).await.unwrap());
        assert_eq!(java.ask("a", &format!("latch set {name} 7")), "false");
        assert_eq!(java.ask("a", &order("down")), "ok");
        assert_eq!(latch.count().await.unwrap(), 1);
        let wait = ("a", order("await"));
        let cause = async || {
            assert_eq!(latch.count_down().await.unwrap(), 0);
        };
        stage.java_is_woken(round, wait, cause).await;
        assert_eq!(java.ask("a", &format!("latch set {name} 2")), "true");
        assert_eq!(latch.count_down().await.unwrap(), 1);
        let opened = stage.we_are_woken(round, &name, latch.wait_timeout(AMPLE), || {
            assert_eq!(java.ask("b", &order("down")), "ok");
        });
        opened.await.unwrap();
        assert_eq!(latch.count_down().await.unwrap(), 0);
    }
}

pub(super) async fn tokens_rise(stage: &Stage<'_>) {
    let (java, ours, name) = (stage.java, &stage.ours, name());
    let mut last = 0;
    for _ in 0..scaled(5) {
        let guard = ours.fenced_lock(&name).lock().await.unwrap();
        assert!(guard.token().as_u64() > last);
        last = guard.token().as_u64();
        assert_eq!(
            java.ask("a", &format!("fenced token {name}")),
            last.to_string()
        );
        let _ = guard.release().await.unwrap();
        let token: u64 = java
            .ask("a", &format!("fenced lock {name}"))
            .parse()
            .unwrap();
        assert!(token > last);
        last = token;
        assert_eq!(java.ask("a", &format!("lock fenced/unlock {name}")), "ok");
    }
}

/// Its release is announced in no channel: both sides poll.
pub(super) async fn spin_lock_is_found_free(stage: &Stage<'_>) {
    let (java, ours, name) = (stage.java, &stage.ours, name());
    let order = |method: &str| format!("lock spin/{method} {name}");
    assert_eq!(java.ask("a", &order("lock")), "ok");
    let mut released = None;
    let waiting = take(ours, "lock", &name, AMPLE);
    let woken = stage.we_are_woken(0, &name, waiting, || {
        assert_eq!(java.ask("a", &order("unlock")), "ok");
        released = Some(Instant::now());
    });
    let held = woken.await.unwrap();
    let waited = released.expect("it was released").elapsed();
    assert!(
        waited < stage.pace.limit.max(Duration::from_secs(5)),
        "{waited:?}"
    );
    java.tell("a", &order("lock"));
    let early = java.response_within("a", Duration::from_millis(300));
    assert!(early.is_none(), "{early:?}");
    held.give_back().await;
    assert_eq!(java.response("a").text, "ok");
}

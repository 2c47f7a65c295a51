//! What is not held by one alone: readers, permits, latches; and tokens.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::Release;
use leasehold::redisson::Redisson as Ours;
use testkit::Redisson as Java;
use testkit::machine::{ran_between, ran_since};

use super::{AT_ONCE, LONG, WATCHDOG, is_refused, take, take_now};
use crate::support::{eventually, name};

/// Asserts that `thread` is answered `ok` or `true` at once after `cause`, except in the first round.
async fn java_is_told(
    java: &Java,
    round: u32,
    thread: &str,
    order: &str,
    cause: impl AsyncFnOnce(),
) {
    java.tell(thread, order);
    let early = java.answer_within(thread, Duration::from_millis(200));
    assert!(early.is_none(), "{order}: {early:?}");
    let start = Instant::now();
    cause().await;
    let said = java.answer(thread);
    let took = ran_between(start, said.at);
    assert!(!said.text.starts_with("error"), "{order}: {said:?}");
    assert!(round == 0 || took < AT_ONCE, "{order}: {took:?}");
}

/// Asserts that `waiting` is over at once after `cause`, except in the first round.
async fn we_are_told<T>(round: u32, waiting: impl Future<Output = T>, cause: impl FnOnce()) -> T {
    let mut waiting = std::pin::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "too early");
    let start = Instant::now();
    cause();
    let outcome = waiting.await;
    let took = ran_since(start);
    assert!(round == 0 || took < AT_ONCE, "{took:?}");
    outcome
}

pub(super) async fn readers_and_writers(java: &Java, ours: &Ours) {
    let name = name();
    let order = |what: &str| format!("lock {what} {name}");
    for round in 0..3 {
        // Readers of both sides are inside together, writers of neither.
        let reading = take_now(ours, "read", &name).await;
        assert_eq!(java.ask("a", &order("read/try")), "true");
        assert_eq!(java.ask("b", &order("write/try")), "false");
        assert!(is_refused(ours, "write", &name).await);
        assert_eq!(java.ask("a", &order("read/unlock")), "ok");
        java_is_told(java, round, "b", &order("write/lock"), async || {
            reading.give_back().await;
        })
        .await;

        // One who writes keeps out all, and lets in both sides' readers.
        assert!(is_refused(ours, "read", &name).await);
        assert_eq!(java.ask("a", &order("read/try")), "false");
        let reading = we_are_told(round, take(ours, "read", &name, LONG), || {
            assert_eq!(java.ask("b", &order("write/unlock")), "ok");
        });
        let reading = reading.await.unwrap();
        assert_eq!(java.ask("a", &order("read/try")), "true");
        reading.give_back().await;
        let writing = we_are_told(round, take(ours, "write", &name, LONG), || {
            assert_eq!(java.ask("a", &order("read/unlock")), "ok");
        });
        let writing = writing.await.unwrap();
        java_is_told(java, round, "a", &order("read/lock"), async || {
            writing.give_back().await;
        })
        .await;
        assert_eq!(java.ask("a", &order("read/unlock")), "ok");
    }
}

pub(super) async fn permits_pass(java: &Java, ours: &Ours) {
    let name = name();
    let semaphore = ours.semaphore(&name);
    let order = |what: &str, count: u32| format!("semaphore {what} {name} {count}");
    assert_eq!(java.ask("a", &order("set", 2)), "true");
    assert!(!semaphore.try_set_permits(5).await.unwrap());
    for round in 0..3 {
        let both = semaphore.try_acquire(2).await.unwrap().expect("both");
        assert_eq!(java.ask("a", &order("try", 1)), "false");
        java_is_told(java, round, "a", &order("acquire", 1), async || {
            both.release().await.unwrap();
        })
        .await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        assert!(semaphore.try_acquire(2).await.unwrap().is_none());
        let both = we_are_told(round, semaphore.acquire(2).into_future(), || {
            assert_eq!(java.ask("a", &order("release", 1)), "ok");
        });
        drop(both.await.unwrap());
        eventually_available(java, &order("available", 0), "2").await;
    }
}

/// What was dropped is given back in the background.
async fn eventually_available(java: &Java, order: &str, expected: &str) {
    eventually(LONG, "given back", || java.ask("a", order) == expected).await;
}

pub(super) async fn permits_expire(java: &Java, ours: &Ours) {
    let name = name();
    let semaphore = ours.permit_expirable_semaphore(&name);
    let order = |what: &str, rest: &str| format!("permits {what} {name} {rest}");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    assert_eq!(java.ask("a", &order("set", "5")), "false");
    for round in 0..3 {
        let both = semaphore.try_acquire(2).await.unwrap().expect("both");
        assert_eq!(java.ask("a", &order("available", "")), "0");
        // Kept by our watchdog, also against those who reclaim what has expired.
        if round == 1 {
            tokio::time::sleep(WATCHDOG * 3).await;
            assert_eq!(java.ask("a", &order("available", "")), "0");
        }
        java.tell("a", &order("acquire", "60000"));
        let early = java.answer_within("a", Duration::from_millis(200));
        assert!(early.is_none(), "{early:?}");
        let start = Instant::now();
        assert_eq!(both.release().await.unwrap(), Release::Released);
        let said = java.answer("a");
        assert_eq!(said.text.len(), 32, "{said:?}");
        assert!(
            round == 0 || ran_between(start, said.at) < AT_ONCE,
            "{:?}",
            said.at - start
        );
        let both = we_are_told(round, semaphore.acquire(2).into_future(), || {
            let released = java.ask("a", &order("release", &said.text));
            assert_eq!(released, "true");
        });
        let _ = both.await.unwrap().release().await.unwrap();
    }
    // What Java lets expire is ours then.
    assert_eq!(java.ask("a", &order("try", "0 700")).len(), 32);
    let start = Instant::now();
    let both = semaphore.acquire(2).await.unwrap();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(600), "{waited:?}");
    assert!(waited < Duration::from_millis(2000), "{waited:?}");
    assert_eq!(both.release().await.unwrap(), Release::Released);
    assert_eq!(java.ask("a", &order("available", "")), "2");
}

pub(super) async fn latch_opens(java: &Java, ours: &Ours) {
    let name = name();
    let latch = ours.count_down_latch(&name);
    let order = |what: &str| format!("latch {what} {name} 20000");
    for round in 0..3 {
        assert!(latch.try_set_count(2).await.unwrap());
        assert_eq!(java.ask("a", &format!("latch set {name} 7")), "false");
        assert_eq!(java.ask("a", &order("down")), "ok");
        assert_eq!(latch.count().await.unwrap(), 1);
        java_is_told(java, round, "a", &order("await"), async || {
            assert_eq!(latch.count_down().await.unwrap(), 0);
        })
        .await;
        assert_eq!(java.ask("a", &format!("latch set {name} 2")), "true");
        assert_eq!(latch.count_down().await.unwrap(), 1);
        let opened = we_are_told(round, latch.wait(LONG), || {
            assert_eq!(java.ask("b", &order("down")), "ok");
        });
        opened.await.unwrap();
        assert_eq!(latch.count_down().await.unwrap(), 0);
    }
}

pub(super) async fn tokens_rise(java: &Java, ours: &Ours) {
    let name = name();
    let mut last = 0;
    for _ in 0..20 {
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

//! Wake-ups: a release reaches the next holder by push, with a cheap poll as
//! fallback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::{Fault, Proxy, ServerExt};

use super::handover_latency::{ONE_WAY, measure_handovers, median_over_slow_link};
use crate::support::worker;
use crate::support::{
    AMPLE, channels, client, connect_at, eventually, has_subscriber, key, name, run, scaled, server,
};

const LEASE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(2);

#[test]
#[ignore = "deep: measures a latency"]
fn handover_takes_one_release_and_one_request() {
    let median = median_over_slow_link("mutex");
    assert!(
        ONE_WAY * 2 < median && median < ONE_WAY * 5 / 2,
        "{median:?}"
    );
}

/// Hands a mutex back and forth between two processes while the server kills
/// all subscriptions ten times a second. Returns the longest hand-over.
fn handover_without_subscriptions(count: u64) -> Duration {
    let server = server();
    let done = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let mut sides = [(); 2].map(|()| worker::start(server.port(), LEASE));
        let times = measure_handovers(&mut sides, "mutex", MOMENT, count);
        done.store(true, Ordering::SeqCst);
        times
    });
    let longest = times.iter().max().copied().unwrap_or_default();
    println!("{} hand-overs, longest {longest:?}", times.len());
    longest
}

#[test]
fn killed_subscriptions_do_not_stop_handover() {
    handover_without_subscriptions(scaled(50));
}

#[test]
#[ignore = "deep: measures a latency"]
fn killed_subscription_delays_at_most_a_second() {
    let longest = handover_without_subscriptions(scaled(1000));
    assert!(longest < Duration::from_millis(1200), "waited {longest:?}");
}

/// Frees a mutex `times` times without a message, with `cut` while its waiter
/// is disconnected. Returns the longest time until the waiter acquired it.
async fn free_without_message(cut: bool, times: u64) -> Duration {
    let server = server();
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let name = name();
        server.tell(&["SET", &key(&name), "another", "PX", "120000"]);
        let mutex = client(&server).await.mutex(&name);
        let waiting = tokio::spawn(async move {
            let guard = mutex.lock().await;
            guard.map(|guard| (Instant::now(), guard))
        });
        eventually("the waiter subscribes", || has_subscriber(&server, &name)).await;
        // The retry after the subscription is over as well, where time is
        // measured.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let freed = Instant::now();
        if cut {
            server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        server.tell(&["DEL", &key(&name)]);
        let (got, _guard) = waiting.await.unwrap().unwrap();
        longest = longest.max(got.saturating_duration_since(freed));
    }
    longest
}

#[test]
fn missed_wakeup_recovers() {
    for cut in [false, true] {
        run(free_without_message(cut, scaled(1)));
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn missed_wakeup_recovers_within_a_second() {
    let longest = run(free_without_message(false, scaled(3)));
    assert!(longest < Duration::from_millis(1200), "{longest:?}");
}

#[test]
#[ignore = "deep: measures a latency"]
fn reconnect_triggers_prompt_poll() {
    let longest = run(free_without_message(true, scaled(3)));
    assert!(
        // The client reconnects within a second.
        longest < Duration::from_millis(1600),
        "after {longest:?}"
    );
}

/// Returns how long it takes to acquire the lock of a killed process.
async fn acquire_after_crash(lease: Duration) -> Duration {
    let (server, name) = (server(), name());
    let mut worker = worker::start(server.port(), lease);
    worker.ask(&format!("lock {name}"));
    worker.kill();
    let start = Instant::now();
    let _guard = client(&server).await.mutex(&name).lock().await.unwrap();
    start.elapsed()
}

#[test]
fn crashed_holder_lock_is_acquired_at_lease_end() {
    run(acquire_after_crash(Duration::from_millis(400)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn crashed_holder_delays_waiter_by_one_lease() {
    for lease in [400, 1500].map(Duration::from_millis) {
        let took = run(acquire_after_crash(lease));
        assert!(
            took < lease + Duration::from_millis(600),
            "{took:?} for {lease:?}"
        );
    }
}

#[test]
#[ignore = "deep: counts requests per second"]
fn waiters_send_at_most_two_commands_per_second() {
    let server = server();
    run(async {
        for lease in [Duration::from_millis(600), LEASE] {
            let holder = Proxy::start(server.port());
            let waiter = Proxy::start(server.port());
            let name = name();
            let held = connect_at(holder.port()).lease(lease).await.unwrap();
            let guard = held.mutex(&name).lock().await.unwrap();
            let waiting = connect_at(waiter.port()).await.unwrap();
            // A thousand tasks of one process are one waiter.
            let tasks: Vec<_> = (0..1000)
                .map(|_| tokio::spawn(waiting.mutex(&name).lock().into_future()))
                .collect();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (before, start) = (waiter.requests(), Instant::now());
            tokio::time::sleep(Duration::from_secs(6)).await;
            let (sent, took) = (waiter.requests() - before, start.elapsed());
            println!("{sent} commands in {took:?} beside a lease of {lease:?}");
            assert!(
                sent as f64 <= 2.0 * took.as_secs_f64(),
                "{sent} in {took:?}"
            );
            for task in tasks {
                task.abort();
            }
            drop(guard);
        }
    });
}

#[test]
fn ten_thousand_local_tasks_all_acquire() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        let tasks: Vec<_> = (0..scaled(10_000))
            .map(|_| {
                let mutex = client.mutex(&name);
                tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
            })
            .collect();
        eventually("the waiter subscribes", || has_subscriber(&server, &name)).await;
        guard.release().await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn forged_messages_grant_nothing() {
    run(async {
        let server = server();
        let name = name();
        let _guard = client(&server).await.mutex(&name).lock().await.unwrap();
        let mutex = client(&server).await.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        eventually("the waiter subscribes", || has_subscriber(&server, &name)).await;
        let channel = channels(&server).remove(0);
        let mut forger = server.connect();
        let mut delivered = 0;
        while delivered < 2_000 {
            delivered += forger.ask(&["SPUBLISH", &channel, "0"]).unwrap().int();
        }
        assert!(!waiting.is_finished(), "a forged message granted the lock");
        waiting.abort();
    });
}

/// Releases a mutex `after` its waiter replaced a silent connection. Returns
/// how long the waiter took.
async fn release_after_silence(after: Duration) -> Duration {
    let server = server();
    let proxy = Proxy::start(server.port());
    let name = name();
    let subscribed = Arc::new(AtomicU64::new(0));
    let (seen, of_lock) = (subscribed.clone(), key(&name).into_bytes());
    proxy.inject(move |request| {
        let for_lock = request.iter().any(|word| word.ends_with(&of_lock));
        if request[0] == b"SSUBSCRIBE" && for_lock {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        Fault::None
    });
    let holder = client(&server).await;
    let holder = holder
        .mutex(&name)
        .lock()
        .fixed_lease(LEASE * 4)
        .await
        .unwrap();
    // A short timeout, after which the client drops a silent connection.
    let waiter = connect_at(proxy.port()).request_timeout(Duration::from_secs(1));
    let mutex = waiter.await.unwrap().mutex(&name);
    let waiting =
        tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
    eventually("the waiter subscribes", || has_subscriber(&server, &name)).await;
    let before = subscribed.load(Ordering::SeqCst);
    proxy.stall_connections();
    let replaced = || subscribed.load(Ordering::SeqCst) > before;
    eventually("the waiter subscribes again", replaced).await;
    tokio::time::sleep(after).await;
    let released = Instant::now();
    holder.release().await.unwrap();
    let (got, _guard) = waiting.await.unwrap().unwrap();
    got.saturating_duration_since(released)
}

#[test]
fn silent_connection_is_replaced() {
    run(release_after_silence(Duration::ZERO));
}

#[test]
#[ignore = "deep: measures a latency"]
fn replaced_connection_receives_wakeup_promptly() {
    // Long enough for the waiter to drop its other connection as well.
    let took = run(release_after_silence(Duration::from_secs(3)));
    assert!(
        took < Duration::from_millis(600),
        "woken by polling after {took:?}"
    );
}

#[test]
fn waiting_without_subscriptions_polls() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let tried = Arc::new(AtomicBool::new(false));
        let seen = tried.clone();
        proxy.inject(move |request| match request[0].as_slice() {
            b"SSUBSCRIBE" => Fault::CutRequest,
            b"SET" => {
                seen.store(true, Ordering::SeqCst);
                Fault::None
            }
            _ => Fault::None,
        });
        let name = name();
        let holder = client(&server).await.mutex(&name).lock().await.unwrap();
        // A short timeout, after which the waiter continues without a
        // subscription.
        let waiter = connect_at(proxy.port()).request_timeout(Duration::from_secs(1));
        let mutex = waiter.await.unwrap().mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        eventually("the waiter retries", || tried.load(Ordering::SeqCst)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        holder.release().await.unwrap();
        let got = tokio::time::timeout(AMPLE, waiting).await;
        let _guard = got.expect("the waiter polls").unwrap().unwrap();
    });
}

//! A release reaches the next holder by push; behind it stands a poll that costs little.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::{Fault, Proxy};

use crate::hand_over::{FAR, from_afar, hand_overs};
use crate::support::{
    AMPLE, builder_at, channels, client, eventually, is_awaited, key, name, run, scaled, server,
};
use crate::worker::Worker;

const LEASE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(2);

#[test]
#[ignore = "deep: measures a latency"]
fn a_hand_over_between_processes_takes_a_release_and_a_request() {
    let usual = from_afar("mutex");
    assert!(FAR * 2 < usual && usual < FAR * 5 / 2, "{usual:?}");
}

/// Hands a mutex to and fro between two processes while the server kills all subscriptions ten times a second.
/// Returns the longest hand-over.
fn hand_over_without_subscriptions(count: u64) -> Duration {
    let server = server();
    let over = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let mut sides = [(); 2].map(|()| Worker::start(server.port(), LEASE));
        let times = hand_overs(&mut sides, "mutex", MOMENT, count);
        over.store(true, Ordering::SeqCst);
        times
    });
    let longest = times.iter().max().copied().unwrap_or_default();
    println!("{} hand-overs, longest {longest:?}", times.len());
    longest
}

#[test]
fn killed_subscriptions_do_not_stop_hand_overs() {
    hand_over_without_subscriptions(scaled(50));
}

#[test]
#[ignore = "deep: measures a latency"]
fn a_subscription_killed_ten_times_a_second_costs_a_second_at_most() {
    let longest = hand_over_without_subscriptions(scaled(1000));
    assert!(longest < Duration::from_millis(1200), "waited {longest:?}");
}

/// Frees a mutex without a message, and with `cut` while its waiter has lost its connection, `times` times. Returns
/// the longest time until the waiter held the lock.
async fn freed_in_silence(cut: bool, times: u64) -> Duration {
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
        eventually("waits", || is_awaited(&server, &name)).await;
        // The try that follows is over as well, where time is measured.
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
fn release_that_is_not_heard_is_found() {
    for cut in [false, true] {
        run(freed_in_silence(cut, scaled(1)));
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn a_release_that_is_not_heard_is_found_within_a_second() {
    let longest = run(freed_in_silence(false, scaled(3)));
    assert!(longest < Duration::from_millis(1200), "{longest:?}");
}

#[test]
#[ignore = "deep: measures a latency"]
fn new_connection_makes_waiters_look_in_time() {
    let longest = run(freed_in_silence(true, scaled(3)));
    assert!(
        // A connection that broke is made again within a second.
        longest < Duration::from_millis(1600),
        "only after {longest:?}"
    );
}

/// How long it takes to have the lock of a process that was killed.
async fn after_a_crash(lease: Duration) -> Duration {
    let (server, name) = (server(), name());
    let mut worker = Worker::start(server.port(), lease);
    worker.ask(&format!("lock {name}"));
    worker.kill();
    let start = Instant::now();
    let _guard = client(&server).await.mutex(&name).lock().await.unwrap();
    start.elapsed()
}

#[test]
fn the_lock_of_a_crashed_holder_is_taken_when_its_lease_ends() {
    run(after_a_crash(Duration::from_millis(400)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn crashed_holder_costs_its_lease_and_little_more() {
    for lease in [400, 1500].map(Duration::from_millis) {
        let took = run(after_a_crash(lease));
        assert!(
            took < lease + Duration::from_millis(600),
            "{took:?} for {lease:?}"
        );
    }
}

#[test]
#[ignore = "deep: counts requests per second"]
fn those_who_wait_send_two_commands_a_second_at_most() {
    let server = server();
    run(async {
        for lease in [Duration::from_millis(600), LEASE] {
            let holder = Proxy::start(server.port());
            let waiter = Proxy::start(server.port());
            let name = name();
            let held = builder_at(holder.port())
                .lease(lease)
                .connect()
                .await
                .unwrap();
            let guard = held.mutex(&name).lock().await.unwrap();
            let waiting = builder_at(waiter.port()).connect().await.unwrap();
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
fn ten_thousand_tasks_of_one_process_all_get_the_lock() {
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
        eventually("waits", || is_awaited(&server, &name)).await;
        let _ = guard.release().await.unwrap();
        for task in tasks {
            let _ = task.await.unwrap();
        }
    });
}

#[test]
fn a_flood_of_forged_messages_grants_nothing() {
    run(async {
        let server = server();
        let name = name();
        let _guard = client(&server).await.mutex(&name).lock().await.unwrap();
        let mutex = client(&server).await.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        eventually("waits", || is_awaited(&server, &name)).await;
        let channel = channels(&server).remove(0);
        let mut forger = server.connect();
        let mut heard = 0;
        while heard < 2_000 {
            heard += forger.ask(&["SPUBLISH", &channel, "0"]).unwrap().int();
        }
        assert!(!waiting.is_finished(), "granted by a message");
        waiting.abort();
    });
}

/// Releases a mutex after the connections of its waiter fell silent and its subscription was made anew, `after` that.
/// Returns how long the waiter took to have it.
async fn release_after_silence(after: Duration) -> Duration {
    let server = server();
    let proxy = Proxy::start(server.port());
    let name = name();
    let subscribed = Arc::new(AtomicU64::new(0));
    let (seen, of_lock) = (subscribed.clone(), key(&name).into_bytes());
    proxy.inject(move |request| {
        let names_it = request.iter().any(|word| word.ends_with(&of_lock));
        if request[0] == b"SSUBSCRIBE" && names_it {
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
    // A short patience: a silent connection is given up after it.
    let waiter = builder_at(proxy.port()).request_timeout(Duration::from_secs(1));
    let mutex = waiter.connect().await.unwrap().mutex(&name);
    let waiting =
        tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
    eventually("waits", || is_awaited(&server, &name)).await;
    let before = subscribed.load(Ordering::SeqCst);
    proxy.stall_connections();
    let replaced = || subscribed.load(Ordering::SeqCst) > before;
    eventually("listens on a new connection", replaced).await;
    tokio::time::sleep(after).await;
    let released = Instant::now();
    let _ = holder.release().await.unwrap();
    let (got, _guard) = waiting.await.unwrap().unwrap();
    got.saturating_duration_since(released)
}

#[test]
fn a_connection_that_fell_silent_is_replaced() {
    run(release_after_silence(Duration::ZERO));
}

#[test]
#[ignore = "deep: measures a latency"]
fn replaced_connection_hears_a_release_at_once() {
    // Long enough for the waiter to give up its other connection as well.
    let took = run(release_after_silence(Duration::from_secs(3)));
    assert!(took < Duration::from_millis(600), "not by push: {took:?}");
}

#[test]
fn without_subscriptions_waiting_goes_on_by_polling() {
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
        // A short patience: the waiter goes on without a subscription after it.
        let waiter = builder_at(proxy.port()).request_timeout(Duration::from_secs(1));
        let mutex = waiter.connect().await.unwrap().mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        eventually("tried", || tried.load(Ordering::SeqCst)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let _ = holder.release().await.unwrap();
        let got = tokio::time::timeout(AMPLE, waiting).await;
        let _guard = got.expect("polled").unwrap().unwrap();
    });
}

//! Queued locks: FIFO order, pushed grants at constant cost, and dead waiters.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, FairMutex, Guard};
use testkit::{Proxy, Server};
use tokio::task::JoinHandle;

use super::handover_latency::{ONE_WAY, median_over_slow_link};
use crate::support::worker;
use crate::support::{
    AMPLE, LEASE, client, connect_at, eventually, expire, name, owners, run, server,
};

/// Returns the number of waiters of this lock.
pub(super) fn waiter_count(server: &Server, name: &str) -> usize {
    owners(server, "queue", name).len()
}

/// Acquires a fair mutex for a client that does nothing else.
pub(super) async fn hold_elsewhere(server: &Server, name: &str) -> Guard {
    let mutex = client(server).await.fair_mutex(name);
    mutex.lock().await.unwrap()
}

/// Spawns a task that holds the mutex once.
fn hold_once(mutex: &FairMutex) -> JoinHandle<()> {
    let lock = mutex.lock().into_future();
    tokio::spawn(async move {
        lock.await.unwrap().release().await.unwrap();
    })
}

/// What happens to a waiting process.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Served,
    Killed,
    TimesOut,
}

/// Queues processes in this order. Releases the lock after some were killed and
/// some timed out after `timeout`. Returns the tokens of the others in order of
/// arrival.
async fn serve(fates: &[Fate], timeout: Duration) -> Vec<u64> {
    let (server, name) = (server(), name());
    let first = hold_elsewhere(&server, &name).await;
    let start = |fate: &Fate| (*fate, worker::start(server.port(), LEASE));
    let mut workers: Vec<_> = fates.iter().map(start).collect();
    for (number, (fate, worker)) in workers.iter_mut().enumerate() {
        let wait = match fate {
            Fate::TimesOut => timeout,
            _ => AMPLE * 2,
        };
        // From zero to longer than a queue entry lasts without heartbeats.
        let hold = if number == 7 { 4_000 } else { number % 7 * 10 };
        worker.tell(&format!("serve {name} {} {hold}", wait.as_millis()));
        eventually("the waiter is queued", || {
            waiter_count(&server, &name) == number + 1
        })
        .await;
    }
    for (fate, worker) in &mut workers {
        if *fate == Fate::Killed {
            worker.kill();
        }
    }
    for (fate, worker) in &mut workers {
        if *fate == Fate::TimesOut {
            assert!(worker.answer().starts_with("timed out at Some("));
        }
    }
    first.release().await.unwrap();
    let mut tokens = Vec::new();
    for (fate, worker) in &mut workers {
        if *fate == Fate::Served {
            let answer = worker.answer();
            tokens.push(answer.split(' ').next().unwrap().parse().unwrap());
            assert_eq!(worker.answer(), "Released");
        }
    }
    tokens
}

#[test]
fn queue_skips_dead_and_timed_out_waiters() {
    use Fate::{Killed, Served, TimesOut};
    // The last one times out, since its entry need not outlast an arrival.
    let fates = [Served, Killed, Served, TimesOut];
    let mut tokens = run(serve(&fates, Duration::from_secs(4)));
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 2, "a token was issued twice");
}

#[test]
#[ignore = "deep: fifty processes, and an order that holds only where heartbeats come in time"]
fn fifty_processes_are_served_in_fifo_order() {
    let fate = |number: usize| match number {
        _ if number % 3 == 2 => Fate::Killed,
        _ if number % 5 == 4 => Fate::TimesOut,
        _ => Fate::Served,
    };
    let fates: Vec<_> = (0..50).map(fate).collect();
    let tokens = run(serve(&fates, Duration::from_secs(6)));
    assert!(
        tokens.is_sorted_by(|one, two| one < two),
        "out of order: {tokens:?}"
    );
}

#[test]
#[ignore = "deep: counts requests beside heartbeats"]
fn handover_costs_at_most_four_requests() {
    let server = server();
    for (clients, rounds) in [(2, 400), (50, 400), (500, 1000)] {
        let proxy = Proxy::start(server.port());
        let cost = run(requests_per_handover(&proxy, clients, rounds));
        println!("{clients} waiters: {cost:.2} requests per hand-over");
        assert!(
            cost <= 4.0,
            "{cost} requests per hand-over with {clients} waiters"
        );
    }
}

/// Returns the requests per hand-over, without heartbeats, while `clients`
/// clients hold one lock in turn.
async fn requests_per_handover(proxy: &Proxy, clients: usize, rounds: usize) -> f64 {
    let name = name();
    let mut tasks = Vec::new();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(clients + 1));
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(rounds));
    for _ in 0..clients {
        let client: Client = connect_at(proxy.port())
            .lease(Duration::from_secs(30))
            .await
            .unwrap();
        // From here on, the client is subscribed and the script is loaded.
        let mutex = client.fair_mutex(&name);
        drop(mutex.lock().await.unwrap());
        let (start, left) = (start.clone(), left.clone());
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            let order = std::sync::atomic::Ordering::SeqCst;
            while left
                .fetch_update(order, order, |left| left.checked_sub(1))
                .is_ok()
            {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
            client
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = proxy.requests();
    let start_time = Instant::now();
    start.wait().await;
    let mut clients_alive = Vec::new();
    for task in tasks {
        clients_alive.push(task.await.unwrap());
    }
    // At most one heartbeat a second per waiter.
    let heartbeats = start_time.elapsed().as_secs() * clients as u64;
    let requests = proxy.requests() - before;
    println!(
        "{requests} requests in {:?}, at most {heartbeats} heartbeats",
        start_time.elapsed()
    );
    (requests - heartbeats.min(requests)) as f64 / rounds as f64
}

#[test]
#[ignore = "deep: counts requests per second"]
fn waiters_send_one_heartbeat_per_second() {
    run(async {
        let server = server();
        let name = name();
        let _held = hold_elsewhere(&server, &name).await;
        let proxy = Proxy::start(server.port());
        let waiter = connect_at(proxy.port())
            .lease(Duration::from_secs(30))
            .await
            .unwrap();
        // A thousand tasks of one process are one waiter.
        let tasks: Vec<_> = (0..1000)
            .map(|_| tokio::spawn(waiter.fair_mutex(&name).lock().into_future()))
            .collect();
        eventually("the waiter is queued", || waiter_count(&server, &name) == 1).await;
        // The waiter is queued, and its next heartbeat is not near.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (before, start) = (proxy.requests(), Instant::now());
        tokio::time::sleep(Duration::from_secs(6)).await;
        let (sent, took) = (proxy.requests() - before, start.elapsed());
        // One more than the seconds, for a heartbeat at either end.
        let limit = took.as_secs() + 1;
        assert!((5..=limit).contains(&sent), "{sent} requests in {took:?}");
        for task in tasks {
            task.abort();
        }
    });
}

#[test]
#[ignore = "deep: measures a latency"]
fn fair_handover_needs_no_request_of_next_waiter() {
    // The release and its message. A waiter that had to send a request would
    // need another round trip.
    let median = median_over_slow_link("fair");
    assert!(median < ONE_WAY * 3 / 2, "{median:?}");
}

/// Kills a holder and the waiters behind it. Returns when, and after how many
/// requests, the last waiter acquires the lock. With `expired`, the holder's
/// lease ends at once.
async fn outlive(dead: usize, lease: Duration, expired: bool) -> (Duration, u64) {
    let (server, name) = (server(), name());
    let proxy = Proxy::start(server.port());
    let mut workers: Vec<_> = (0..dead + 2)
        .map(|_| worker::start(proxy.port(), lease))
        .collect();
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("serve {name} 60000 60000"));
        match number {
            0 => assert!(!worker.answer().is_empty()),
            _ => {
                eventually("the waiter is queued", || {
                    waiter_count(&server, &name) == number
                })
                .await;
            }
        }
    }
    if !expired {
        // Long enough for everyone's renewals and heartbeats.
        tokio::time::sleep(lease).await;
    }
    let mut last = workers.pop().unwrap();
    let before = proxy.requests();
    for worker in &mut workers {
        worker.kill();
    }
    let killed = Instant::now();
    if expired {
        expire(&server, &name, &owners(&server, "holders", &name)[0]);
    }
    let answer = last.answer();
    assert!(!answer.starts_with("timed out"), "{answer}");
    (killed.elapsed(), proxy.requests() - before)
}

#[test]
fn dead_holder_and_waiters_are_skipped() {
    run(outlive(2, LEASE, true));
}

#[test]
#[ignore = "deep: measures a latency and counts requests"]
fn dead_holder_and_waiters_cost_one_lease() {
    let lease = Duration::from_secs(3);
    let (took, sent) = run(outlive(10, lease, false));
    println!("after {took:?} and {sent} requests");
    assert!(took < lease + Duration::from_secs(1), "after {took:?}");
    assert!(sent < 100, "{sent} requests");
}

#[test]
fn queue_position_is_known_while_waiting() {
    run(async {
        let (server, name) = (server(), name());
        let _held = hold_elsewhere(&server, &name).await;
        let (one, other) = (client(&server).await, client(&server).await);
        let (first, second) = (one.fair_mutex(&name), other.fair_mutex(&name));
        assert_eq!(second.queue_position(), None);
        let ahead = tokio::spawn(first.lock().into_future());
        eventually("the first is queued", || first.queue_position() == Some(1)).await;
        // Long enough for the position to be known and to change.
        let waiter = tokio::spawn(second.lock().timeout(LEASE / 2).into_future());
        eventually("the second is queued", || {
            second.queue_position() == Some(2)
        })
        .await;
        ahead.abort();
        eventually("the second moves up", || second.queue_position() == Some(1)).await;
        let error = waiter.await.unwrap().unwrap_err();
        let expected = matches!(
            error,
            Error::Timeout {
                position: Some(1),
                holder: Some(_),
                ..
            }
        );
        assert!(expected, "{error:?}");
        assert_eq!(second.queue_position(), None);
        eventually("the waiter leaves the queue", || {
            waiter_count(&server, &name) == 0
        })
        .await;
    });
}

#[test]
fn unreachable_waiter_reenters_at_old_position() {
    run(async {
        let (server, name) = (server(), name());
        let held = hold_elsewhere(&server, &name).await;
        let proxy = Proxy::start(server.port());
        let first = connect_at(proxy.port()).await.unwrap();
        let first = first.fair_mutex(&name);
        let one = hold_once(&first);
        eventually("the first is queued", || waiter_count(&server, &name) == 1).await;
        let lost = owners(&server, "queue", &name).remove(0);
        let second = client(&server).await.fair_mutex(&name);
        let other = hold_once(&second);
        eventually("the second is queued", || {
            second.queue_position() == Some(2)
        })
        .await;
        proxy.refuse(true);
        proxy.sever();
        eventually("the second moves up", || second.queue_position() == Some(1)).await;
        assert!(
            !owners(&server, "queue", &name).contains(&lost),
            "the entry is not evicted"
        );
        proxy.heal();
        eventually("the first is back at its position", || {
            second.queue_position() == Some(2) && first.queue_position() == Some(1)
        })
        .await;
        held.release().await.unwrap();
        one.await.unwrap();
        other.await.unwrap();
    });
}

#[test]
fn cancelled_waiter_leaves_entry_to_next_task() {
    run(async {
        let (server, name) = (server(), name());
        let held = hold_elsewhere(&server, &name).await;
        let (cancelled, other) = (client(&server).await, client(&server).await);
        let cancelled = cancelled.fair_mutex(&name);
        let first = tokio::spawn(cancelled.lock().into_future());
        eventually("the waiter is queued", || waiter_count(&server, &name) == 1).await;
        let behind = hold_once(&cancelled);
        let other = hold_once(&other.fair_mutex(&name));
        eventually("the next is queued", || waiter_count(&server, &name) == 2).await;
        let before = owners(&server, "queue", &name);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        // The waiting task continues for the next task, with the same entry.
        assert_eq!(owners(&server, "queue", &name), before);
        eventually("its position is known", || {
            cancelled.queue_position() == Some(1)
        })
        .await;
        held.release().await.unwrap();
        behind.await.unwrap();
        other.await.unwrap();
    });
}

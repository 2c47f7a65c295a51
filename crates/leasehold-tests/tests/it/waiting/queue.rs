//! Locks with a line: served in order, handed over at once and at constant cost, whoever dies.

use std::time::{Duration, Instant};

use leasehold::{Client, FairMutex, Guard, Loss};
use testkit::{Proxy, Server};
use tokio::task::JoinHandle;

use super::handover_latency::{FAR, from_afar};
use crate::support::worker::Worker;
use crate::support::{
    AMPLE, LEASE, builder_at, client, eventually, expire, name, owners, run, scaled, server,
};

/// How many waiters the queue of this lock has.
fn waiting(server: &Server, name: &str) -> usize {
    owners(server, "queue", name).len()
}

/// A fair mutex, held by a client that does nothing else.
async fn held_by_another(server: &Server, name: &str) -> Guard {
    let mutex = client(server).await.fair_mutex(name);
    mutex.lock().await.unwrap()
}

/// Has a task hold the mutex once.
fn hold_once(mutex: &FairMutex) -> JoinHandle<()> {
    let lock = mutex.lock().into_future();
    tokio::spawn(async move {
        let _ = lock.await.unwrap().release().await.unwrap();
    })
}

/// What becomes of a process that waits.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Served,
    Killed,
    GivesUp,
}

/// Has processes wait in this order, and releases the lock when some are killed and some have given up, each after
/// `patience`. Returns the tokens of the others in the order of their arrival.
async fn serve(fates: &[Fate], patience: Duration) -> Vec<u64> {
    let (server, name) = (server(), name());
    let first = held_by_another(&server, &name).await;
    let start = |fate: &Fate| (*fate, Worker::start(server.port(), LEASE));
    let mut workers: Vec<_> = fates.iter().map(start).collect();
    for (number, (fate, worker)) in workers.iter_mut().enumerate() {
        let limit = match fate {
            Fate::GivesUp => patience,
            _ => AMPLE * 2,
        };
        // From nothing to longer than the server keeps a place in the queue without a heartbeat.
        let hold = if number == 7 { 4_000 } else { number % 7 * 10 };
        worker.tell(&format!("serve {name} {} {hold}", limit.as_millis()));
        eventually("queued", || waiting(&server, &name) == number + 1).await;
    }
    for (fate, worker) in &mut workers {
        if *fate == Fate::Killed {
            worker.kill();
        }
    }
    for (fate, worker) in &mut workers {
        if *fate == Fate::GivesUp {
            assert!(worker.answer().starts_with("gave up at Some("));
        }
    }
    let _ = first.release().await.unwrap();
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
fn queue_with_dead_and_impatient_serves_the_others() {
    use Fate::{GivesUp, Killed, Served};
    // The last gives up: it need not be there when another arrives.
    let fates = [Served, Killed, Served, GivesUp];
    let mut tokens = run(serve(&fates, Duration::from_secs(4)));
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 2, "each has a token of its own");
}

#[test]
#[ignore = "deep: fifty processes, and an order that holds only where heartbeats come in time"]
fn fifty_processes_are_served_in_the_order_in_which_they_came() {
    let fate = |number: usize| match number {
        _ if number % 3 == 2 => Fate::Killed,
        _ if number % 5 == 4 => Fate::GivesUp,
        _ => Fate::Served,
    };
    let fates: Vec<_> = (0..50).map(fate).collect();
    let tokens = run(serve(&fates, Duration::from_secs(6)));
    assert!(
        tokens.is_sorted_by(|one, two| one < two),
        "passed: {tokens:?}"
    );
}

#[test]
#[ignore = "deep: counts requests beside heartbeats"]
fn a_hand_over_costs_at_most_four_requests_however_many_wait() {
    let server = server();
    for (clients, rounds) in [(2, 400), (50, 400), (500, 1000)] {
        let proxy = Proxy::start(server.port());
        let cost = run(hand_over_cost(&proxy, clients, rounds));
        println!("{clients} waiting: {cost:.2} requests per hand-over");
        assert!(
            cost <= 4.0,
            "{cost} requests per hand-over with {clients} waiting"
        );
    }
}

/// Requests per hand-over while so many clients hold one lock in turn, without their heartbeats.
async fn hand_over_cost(proxy: &Proxy, clients: usize, rounds: usize) -> f64 {
    let name = name();
    let mut tasks = Vec::new();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(clients + 1));
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(rounds));
    for _ in 0..clients {
        let client: Client = builder_at(proxy.port())
            .lease(Duration::from_secs(30))
            .connect()
            .await
            .unwrap();
        // The subscription is made once for the client, and the script is known from here on.
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
                let _ = mutex.lock().await.unwrap().release().await.unwrap();
            }
            client
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = proxy.requests();
    let began = Instant::now();
    start.wait().await;
    let mut alive = Vec::new();
    for task in tasks {
        alive.push(task.await.unwrap());
    }
    // At most one heartbeat a second for each who waits.
    let beats = began.elapsed().as_secs() * clients as u64;
    let requests = proxy.requests() - before;
    println!(
        "{requests} requests in {:?}, at most {beats} heartbeats",
        began.elapsed()
    );
    (requests - beats.min(requests)) as f64 / rounds as f64
}

#[test]
#[ignore = "deep: counts requests per second"]
fn those_who_wait_send_nothing_but_a_heartbeat_a_second() {
    run(async {
        let server = server();
        let name = name();
        let _held = held_by_another(&server, &name).await;
        let proxy = Proxy::start(server.port());
        let waiter = builder_at(proxy.port())
            .lease(Duration::from_secs(30))
            .connect()
            .await
            .unwrap();
        // A thousand tasks of one process are one waiter.
        let tasks: Vec<_> = (0..1000)
            .map(|_| tokio::spawn(waiter.fair_mutex(&name).lock().into_future()))
            .collect();
        eventually("queued", || waiting(&server, &name) == 1).await;
        // What entering the queue takes is over, and no heartbeat is near.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (before, start) = (proxy.requests(), Instant::now());
        tokio::time::sleep(Duration::from_secs(6)).await;
        let (sent, took) = (proxy.requests() - before, start.elapsed());
        // One more than the seconds: the first and the last may lie at the ends.
        let most = took.as_secs() + 1;
        assert!((5..=most).contains(&sent), "{sent} requests in {took:?}");
        for task in tasks {
            task.abort();
        }
    });
}

#[test]
#[ignore = "deep: measures a latency"]
fn the_next_in_line_has_the_lock_as_soon_as_a_message_can_tell() {
    // The release, and the message that it sets off: a waiter that asks first needs two journeys.
    let usual = from_afar("fair");
    assert!(usual < FAR * 3 / 2, "{usual:?}");
}

/// Kills a holder and the waiters behind it together. Returns after how long and how many requests the last waiter,
/// which lives, has the lock. With `expired` the holder's lease ends at once, and its renewals are not waited for.
async fn outlive(dead: usize, lease: Duration, expired: bool) -> (Duration, u64) {
    let (server, name) = (server(), name());
    let proxy = Proxy::start(server.port());
    let mut workers: Vec<_> = (0..dead + 2)
        .map(|_| Worker::start(proxy.port(), lease))
        .collect();
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("serve {name} 60000 60000"));
        match number {
            0 => assert!(!worker.answer().is_empty()),
            _ => eventually("queued", || waiting(&server, &name) == number).await,
        }
    }
    if !expired {
        // Long enough for renewals and heartbeats of all.
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
    assert!(!answer.starts_with("gave up"), "{answer}");
    (killed.elapsed(), proxy.requests() - before)
}

#[test]
fn dead_holder_and_dead_waiters_are_passed_over() {
    run(outlive(2, LEASE, true));
}

#[test]
#[ignore = "deep: measures a latency and counts requests"]
fn a_holder_and_ten_waiters_that_die_together_cost_one_lease() {
    let lease = Duration::from_secs(3);
    let (took, sent) = run(outlive(10, lease, false));
    println!("after {took:?} and {sent} requests");
    assert!(took < lease + Duration::from_secs(1), "only after {took:?}");
    assert!(sent < 100, "{sent} requests");
}

#[test]
fn a_place_in_line_is_known_while_waiting_and_when_giving_up() {
    run(async {
        let (server, name) = (server(), name());
        let _held = held_by_another(&server, &name).await;
        let (one, other) = (client(&server).await, client(&server).await);
        let (first, second) = (one.fair_mutex(&name), other.fair_mutex(&name));
        assert_eq!(second.queue_position(), None);
        let ahead = tokio::spawn(first.lock().into_future());
        eventually("first", || first.queue_position() == Some(1)).await;
        // Long enough for the place to be known and to change before the waiter gives up.
        let waiting = tokio::spawn(second.lock().timeout(LEASE / 2).into_future());
        eventually("second", || second.queue_position() == Some(2)).await;
        ahead.abort();
        eventually("moved up", || second.queue_position() == Some(1)).await;
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().ends_with("; number 1 in line"), "{error}");
        assert!(error.to_string().contains("held by process"), "{error}");
        assert_eq!(second.queue_position(), None);
        eventually("left", || self::waiting(&server, &name) == 0).await;
    });
}

#[test]
fn one_who_was_out_of_reach_gets_back_in_where_it_was() {
    run(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let proxy = Proxy::start(server.port());
        let first = builder_at(proxy.port()).connect().await.unwrap();
        let first = first.fair_mutex(&name);
        let one = hold_once(&first);
        eventually("first", || waiting(&server, &name) == 1).await;
        let lost = owners(&server, "queue", &name).remove(0);
        let second = client(&server).await.fair_mutex(&name);
        let other = hold_once(&second);
        eventually("second", || second.queue_position() == Some(2)).await;
        proxy.refuse(true);
        proxy.sever();
        eventually("moved up", || second.queue_position() == Some(1)).await;
        assert!(!owners(&server, "queue", &name).contains(&lost), "given up");
        proxy.heal();
        eventually("back before the second", || {
            second.queue_position() == Some(2) && first.queue_position() == Some(1)
        })
        .await;
        let _ = held.release().await.unwrap();
        one.await.unwrap();
        other.await.unwrap();
    });
}

#[test]
fn one_who_gives_up_leaves_its_place_to_the_next_task_of_its_process() {
    run(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let (impatient, other) = (client(&server).await, client(&server).await);
        let impatient = impatient.fair_mutex(&name);
        let first = tokio::spawn(impatient.lock().into_future());
        eventually("queued", || waiting(&server, &name) == 1).await;
        let behind = hold_once(&impatient);
        let other = hold_once(&other.fair_mutex(&name));
        eventually("behind", || waiting(&server, &name) == 2).await;
        let before = owners(&server, "queue", &name);
        first.abort();
        eventually("taken over", || {
            let line = owners(&server, "queue", &name);
            line.len() == 2 && !before.contains(&line[0])
        })
        .await;
        eventually("known", || impatient.queue_position() == Some(1)).await;
        let _ = held.release().await.unwrap();
        behind.await.unwrap();
        other.await.unwrap();
    });
}

/// Releases a fair mutex whose waiter cannot hear it. Returns how long the waiter took to have the lock, and whether
/// it then held it.
async fn unheard_grant() -> (Duration, bool) {
    let (server, name) = (server(), name());
    let held = held_by_another(&server, &name).await;
    let waiter = client(&server).await.fair_mutex(&name);
    let waiter = tokio::spawn(waiter.lock().into_future());
    eventually("queued", || waiting(&server, &name) == 1).await;
    // No client hears anything from here on; the keepers connect anew.
    server.tell(&["ACL", "SETUSER", "leasehold", "resetchannels"]);
    let released = Instant::now();
    let _ = held.release().await.unwrap();
    let got = tokio::time::timeout(AMPLE, waiter).await;
    let guard = got.expect("found").unwrap().unwrap();
    (released.elapsed(), guard.check().is_ok())
}

#[test]
fn a_grant_whose_message_was_lost_is_found_by_the_next_heartbeat() {
    run(unheard_grant());
}

#[test]
#[ignore = "deep: measures a latency"]
fn unheard_grant_is_found_within_a_heartbeat() {
    let (took, holds) = run(unheard_grant());
    assert!(took < Duration::from_millis(1500), "only after {took:?}");
    assert!(holds);
}

/// Releases a fair mutex while its waiter has lost its connection, `times` times. Returns the longest time until the
/// waiter held the lock.
async fn grants_between_connections(times: u64) -> Duration {
    let server = server();
    let lease = Duration::from_secs(30);
    let client = || builder_at(server.port()).lease(lease).connect();
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let name = name();
        let mutex = client().await.unwrap().fair_mutex(&name);
        let held = mutex.lock().await.unwrap();
        let waiter = client().await.unwrap().fair_mutex(&name);
        let waiter = tokio::spawn(waiter.lock().into_future());
        eventually("queued", || waiting(&server, &name) == 1).await;
        // The grant is published while the waiter cannot hear it.
        let killed = Instant::now();
        server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let _ = held.release().await.unwrap();
        let _guard = waiter.await.unwrap().unwrap();
        longest = longest.max(killed.elapsed());
    }
    longest
}

#[test]
fn grant_between_two_connections_is_found() {
    run(grants_between_connections(scaled(2)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn new_connection_makes_the_queue_ask_in_time() {
    let longest = run(grants_between_connections(scaled(5)));
    assert!(
        // A connection that broke is made again within a second.
        longest < Duration::from_millis(1600),
        "only after {longest:?}"
    );
}

/// Releases a fair mutex to a process that has died. Returns how long the waiter behind it took to have the lock.
async fn grant_to_the_dead() -> Duration {
    let (server, name) = (server(), name());
    let held = held_by_another(&server, &name).await;
    let mut dying = Worker::start(server.port(), LEASE);
    dying.tell(&format!("serve {name} 60000 0"));
    eventually("queued", || waiting(&server, &name) == 1).await;
    let next = client(&server).await.fair_mutex(&name);
    let next = tokio::spawn(next.lock().into_future());
    eventually("behind", || waiting(&server, &name) == 2).await;
    dying.kill();
    let _ = held.release().await.unwrap();
    let start = Instant::now();
    let _guard = next.await.unwrap().unwrap();
    start.elapsed()
}

#[test]
fn a_grant_to_one_who_died_passes_on_after_its_first_lease() {
    run(grant_to_the_dead());
}

#[test]
#[ignore = "deep: measures a latency"]
fn grant_to_dead_waiter_costs_its_first_lease() {
    let took = run(grant_to_the_dead());
    let first = Duration::from_secs(2)..Duration::from_millis(4500);
    assert!(first.contains(&took), "{took:?}");
}

/// A guard with a fixed lease of this length that was granted to a waiter, and the moment before it was.
async fn granted_for(length: Duration, server: &Server) -> (Instant, Guard) {
    let name = name();
    let held = held_by_another(server, &name).await;
    let waiter = client(server).await.fair_mutex(&name);
    let waiter = tokio::spawn(waiter.lock().fixed_lease(length).into_future());
    eventually("queued", || waiting(server, &name) == 1).await;
    let before = Instant::now();
    let _ = held.release().await.unwrap();
    (before, waiter.await.unwrap().unwrap())
}

#[test]
fn a_fixed_lease_lasts_its_length_after_a_grant_too() {
    run(async {
        let server = server();
        let (before, guard) = granted_for(LEASE, &server).await;
        // A grant is for as long as a place is kept; the keeper adds what is missing.
        eventually("lengthened", || {
            guard.check().unwrap();
            guard.deadline() > before + LEASE * 9 / 10
        })
        .await;
    });
}

#[test]
#[ignore = "deep: measures a time"]
fn fixed_lease_after_a_grant_expires_on_time() {
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
fn forged_grants_are_not_believed() {
    run(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let waiter = client(&server).await.fair_mutex(&name);
        let waiter = tokio::spawn(waiter.lock().into_future());
        eventually("queued", || waiting(&server, &name) == 1).await;
        let grants = || server.ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:grant:*"]);
        eventually("listens", || !grants().list().is_empty()).await;
        let grants = grants();
        let channel = grants.list()[0].text();
        for forged in [
            "",
            "x",
            "00000000000000000000000000000001 1 9999999999999999",
        ] {
            let heard = || server.ask(&["SPUBLISH", channel, forged]).int() == 1;
            eventually("heard", heard).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_finished(), "believed a forged grant");
        let _ = held.release().await.unwrap();
        let _guard = waiter.await.unwrap().unwrap();
    });
}

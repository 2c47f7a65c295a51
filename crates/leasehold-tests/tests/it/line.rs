//! Locks with a line: served in order, handed over at once and at constant cost, whoever dies.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard};
use testkit::machine::ran_since;
use testkit::{Proxy, Server};

use crate::hand_over::{FAR, from_afar};
use crate::support::{
    LEASE, alone, beside_others, builder_at, client, eventually, name, run, scaled, server,
};
use crate::worker::Worker;

/// How many wait in the only line of this server.
fn waiting(server: &Server) -> usize {
    let lines = server.ask(&["KEYS", "leasehold:line:*"]);
    let count = |line: &testkit::Answer| server.ask(&["ZCARD", line.text()]).int();
    lines.list().iter().map(count).sum::<i64>() as usize
}

/// A fair mutex that one who does nothing else holds.
async fn held_by_another(server: &Server, name: &str) -> Guard {
    let mutex = client(server).await.fair_mutex(name);
    mutex.lock().await.unwrap()
}

#[test]
fn fifty_processes_are_served_in_the_order_in_which_they_came() {
    const PROCESSES: usize = 50;
    let killed = |number: usize| number % 3 == 2;
    let gives_up = |number: usize| number % 5 == 4 && !killed(number);
    beside_others(async {
        let (server, name) = (server(), name());
        let first = held_by_another(&server, &name).await;
        let mut workers: Vec<_> = (0..PROCESSES)
            .map(|_| Worker::start(server.port(), Duration::from_secs(10)))
            .collect();
        for (number, worker) in workers.iter_mut().enumerate() {
            let limit = if gives_up(number) { 6_000 } else { 120_000 };
            // From nothing to longer than a place in line is kept without a heartbeat.
            let hold = if number == 7 { 4_000 } else { number % 7 * 10 };
            worker.tell(&format!("serve {name} {limit} {hold}"));
            eventually(Duration::from_secs(5), "in line", || {
                waiting(&server) == number + 1
            })
            .await;
        }
        for (_, worker) in workers.iter_mut().enumerate().filter(|(at, _)| killed(*at)) {
            worker.kill();
        }
        for (_, worker) in workers
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| gives_up(*at))
        {
            assert!(worker.answer().starts_with("gave up at Some("));
        }
        let _ = first.release().await.unwrap();
        let mut last = 0;
        for (number, worker) in workers
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| !killed(*at) && !gives_up(*at))
        {
            let answer = worker.answer();
            let token: u64 = answer.split(' ').next().unwrap().parse().unwrap();
            assert!(token > last, "number {number} was passed");
            last = token;
            assert_eq!(worker.answer(), "Released");
        }
    });
}

#[test]
fn a_hand_over_costs_at_most_four_requests_however_many_wait() {
    alone(|| {
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
    });
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
            .request_timeout(Duration::from_secs(5))
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
fn those_who_wait_send_nothing_but_a_heartbeat_a_second() {
    alone(|| {
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
            eventually(Duration::from_secs(2), "in line", || waiting(&server) == 1).await;
            // What getting in line takes is over, and no heartbeat is near.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let (before, start) = (proxy.requests(), Instant::now());
            tokio::time::sleep(Duration::from_secs(6)).await;
            let (sent, took) = (proxy.requests() - before, start.elapsed());
            let most = took.as_secs();
            assert!((5..=most).contains(&sent), "{sent} requests in {took:?}");
            for task in tasks {
                task.abort();
            }
        });
    });
}

#[test]
fn the_next_in_line_has_the_lock_as_soon_as_a_message_can_tell() {
    alone(|| {
        // The release, and the message that it sets off: who had to ask first would need two journeys.
        let usual = from_afar("fair");
        assert!(usual < FAR * 3 / 2, "{usual:?}");
    });
}

#[test]
fn a_holder_and_ten_waiters_that_die_together_cost_one_lease() {
    let lease = Duration::from_secs(3);
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let name = name();
        let mut workers: Vec<_> = (0..12)
            .map(|_| Worker::start(proxy.port(), lease))
            .collect();
        for (number, worker) in workers.iter_mut().enumerate() {
            worker.tell(&format!("serve {name} 60000 60000"));
            match number {
                0 => assert!(!worker.answer().is_empty()),
                _ => {
                    eventually(Duration::from_secs(5), "in line", || {
                        waiting(&server) == number
                    })
                    .await;
                }
            }
        }
        // Long enough for renewals and heartbeats of all.
        tokio::time::sleep(lease).await;
        let mut last = workers.pop().unwrap();
        let before = proxy.requests();
        for worker in &mut workers {
            worker.kill();
        }
        let killed = Instant::now();
        last.answer();
        let (took, sent) = (ran_since(killed), proxy.requests() - before);
        println!("after {took:?} and {sent} requests");
        assert!(took < lease + Duration::from_secs(1), "only after {took:?}");
        assert!(sent < 100, "{sent} requests");
    });
}

#[test]
fn a_place_in_line_is_known_while_waiting_and_when_giving_up() {
    beside_others(async {
        let (server, name) = (server(), name());
        let _held = held_by_another(&server, &name).await;
        let (one, other) = (client(&server).await, client(&server).await);
        let (first, second) = (one.fair_mutex(&name), other.fair_mutex(&name));
        assert_eq!(second.position(), None);
        let ahead = tokio::spawn(first.lock().into_future());
        eventually(Duration::from_secs(1), "first", || {
            first.position() == Some(1)
        })
        .await;
        let waiting = tokio::spawn(second.lock().wait(Duration::from_secs(3)).into_future());
        eventually(Duration::from_secs(1), "second", || {
            second.position() == Some(2)
        })
        .await;
        ahead.abort();
        eventually(Duration::from_secs(1), "moved up", || {
            second.position() == Some(1)
        })
        .await;
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().ends_with("; number 1 in line"), "{error}");
        assert!(error.to_string().contains("held by process"), "{error}");
        assert_eq!(second.position(), None);
    });
}

#[test]
fn one_who_was_out_of_reach_gets_back_in_where_it_was() {
    beside_others(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let proxy = Proxy::start(server.port());
        let first = builder_at(proxy.port()).connect().await.unwrap();
        let first = tokio::spawn(first.fair_mutex(&name).lock().into_future());
        eventually(Duration::from_secs(1), "first", || waiting(&server) == 1).await;
        let second = client(&server).await.fair_mutex(&name);
        let second = tokio::spawn(second.lock().into_future());
        eventually(Duration::from_secs(1), "second", || waiting(&server) == 2).await;
        proxy.refuse(true);
        proxy.sever();
        eventually(Duration::from_secs(3), "given up", || waiting(&server) == 1).await;
        proxy.heal();
        eventually(Duration::from_secs(3), "back", || waiting(&server) == 2).await;
        let _ = held.release().await.unwrap();
        let held = tokio::time::timeout(Duration::from_secs(2), first).await;
        let held = held.expect("the first is served first").unwrap().unwrap();
        assert!(!second.is_finished());
        let _ = held.release().await.unwrap();
        let _ = second.await.unwrap().unwrap();
    });
}

#[test]
fn one_who_gives_up_leaves_its_place_to_the_next_task_of_its_process() {
    beside_others(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let impatient = client(&server).await.fair_mutex(&name);
        let limit = Duration::from_millis(700);
        let first = tokio::spawn(impatient.lock().wait(limit).into_future());
        eventually(Duration::from_secs(1), "in line", || waiting(&server) == 1).await;
        let behind = tokio::spawn(impatient.lock().into_future());
        let other = client(&server).await.fair_mutex(&name);
        let other = tokio::spawn(other.lock().into_future());
        eventually(Duration::from_secs(1), "behind", || waiting(&server) == 2).await;
        assert!(first.await.unwrap().is_err(), "gave up");
        eventually(Duration::from_secs(1), "taken over", || {
            waiting(&server) == 2 && impatient.position() == Some(1)
        })
        .await;
        let _ = held.release().await.unwrap();
        let held = tokio::time::timeout(Duration::from_secs(2), behind).await;
        let held = held.expect("served in its turn").unwrap().unwrap();
        assert!(!other.is_finished());
        let _ = held.release().await.unwrap();
        let _ = other.await.unwrap().unwrap();
    });
}

#[test]
fn a_grant_whose_message_was_lost_is_found_by_the_next_heartbeat() {
    beside_others(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let waiter = client(&server).await.fair_mutex(&name);
        let waiter = tokio::spawn(waiter.lock().into_future());
        eventually(Duration::from_secs(1), "in line", || waiting(&server) == 1).await;
        // Nobody hears anything from here on; the keepers connect anew.
        server.tell(&["ACL", "SETUSER", "leasehold", "resetchannels"]);
        let released = Instant::now();
        let _ = held.release().await.unwrap();
        let got = tokio::time::timeout(Duration::from_secs(3), waiter).await;
        let guard = got.expect("found").unwrap().unwrap();
        guard.check().unwrap();
        assert!(ran_since(released) < Duration::from_millis(1500));
    });
}

#[test]
fn after_a_new_connection_those_in_line_ask_at_once() {
    beside_others(async {
        let server = server();
        let lease = Duration::from_secs(30);
        let client = || builder_at(server.port()).lease(lease).connect();
        for _ in 0..scaled(5) {
            let name = name();
            let mutex = client().await.unwrap().fair_mutex(&name);
            let held = mutex.lock().await.unwrap();
            let waiter = client().await.unwrap().fair_mutex(&name);
            let waiter = tokio::spawn(waiter.lock().into_future());
            eventually(Duration::from_secs(1), "in line", || waiting(&server) == 1).await;
            // The grant is published while nobody can hear it.
            let killed = Instant::now();
            server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            let _ = held.release().await.unwrap();
            let _guard = waiter.await.unwrap().unwrap();
            let took = ran_since(killed);
            assert!(took < Duration::from_millis(600), "only after {took:?}");
        }
    });
}

#[test]
fn a_grant_to_one_who_died_passes_on_after_its_first_lease() {
    beside_others(async {
        let (server, name) = (server(), name());
        let lease = Duration::from_secs(30);
        let owner = builder_at(server.port())
            .lease(lease)
            .connect()
            .await
            .unwrap();
        let held = owner.fair_mutex(&name).lock().await.unwrap();
        let mut dying = Worker::start(server.port(), lease);
        dying.tell(&format!("serve {name} 60000 0"));
        eventually(Duration::from_secs(5), "in line", || waiting(&server) == 1).await;
        let next = owner.fair_mutex(&name);
        let next = tokio::spawn(next.lock().into_future());
        eventually(Duration::from_secs(1), "behind", || waiting(&server) == 2).await;
        dying.kill();
        let _ = held.release().await.unwrap();
        let start = Instant::now();
        let _guard = next.await.unwrap().unwrap();
        let took = start.elapsed();
        assert!(
            took > Duration::from_secs(2),
            "never granted to the dead: {took:?}"
        );
        let ran = ran_since(start);
        assert!(ran < Duration::from_millis(4500), "only after {ran:?}");
    });
}

#[test]
fn a_fixed_lease_lasts_its_length_after_a_grant_too() {
    beside_others(async {
        let (server, name) = (server(), name());
        let held = held_by_another(&server, &name).await;
        let waiter = client(&server).await.fair_mutex(&name);
        let length = Duration::from_secs(5);
        let waiter = tokio::spawn(waiter.lock().lease(length).into_future());
        eventually(Duration::from_secs(1), "in line", || waiting(&server) == 1).await;
        let _ = held.release().await.unwrap();
        let granted = Instant::now();
        let guard = waiter.await.unwrap().unwrap();
        let lost = guard.lost().await;
        let took = granted.elapsed();
        assert_eq!(lost, Some(leasehold::Loss::Expired));
        assert!(
            took > length - LEASE / 2 && ran_since(granted) < length + LEASE / 2,
            "{took:?}"
        );
    });
}

#[test]
fn forged_grants_are_not_believed() {
    beside_others(async {
        let (server, name) = (server(), name());
        let _held = held_by_another(&server, &name).await;
        let waiter = client(&server).await.fair_mutex(&name);
        let waiter = tokio::spawn(waiter.lock().into_future());
        eventually(Duration::from_secs(1), "in line", || waiting(&server) == 1).await;
        let channels = server.ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:grant:*"]);
        let channel = channels.list()[0].text();
        for forged in [
            "",
            "x",
            "00000000000000000000000000000001 1 9999999999999999",
        ] {
            assert_eq!(server.ask(&["SPUBLISH", channel, forged]).int(), 1);
        }
        tokio::time::sleep(LEASE).await;
        assert!(!waiter.is_finished(), "believed a forged grant");
        waiter.abort();
    });
}

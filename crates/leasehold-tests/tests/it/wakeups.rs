//! A release reaches the next holder by push; behind it stands a poll that costs little.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::machine::{ran_between, ran_since, worst_since};
use testkit::{Fault, Proxy};

use crate::hand_over::{FAR, from_afar, hand_overs};
use crate::support::{
    alone, beside_others, builder_at, channels, client, key, name, run, scaled, server,
};
use crate::worker::Worker;

const LEASE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(2);

#[test]
fn a_hand_over_between_processes_takes_a_release_and_a_request() {
    alone(|| {
        let usual = from_afar("mutex");
        assert!(FAR * 2 < usual && usual < FAR * 5 / 2, "{usual:?}");
    });
}

#[test]
fn a_subscription_killed_ten_times_a_second_costs_a_second_at_most() {
    beside_others(async {
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
            let mut times = hand_overs(&mut sides, "mutex", MOMENT, scaled(1000));
            times.sort_unstable();
            over.store(true, Ordering::SeqCst);
            times
        });
        let longest = *times.last().unwrap();
        println!("{} hand-overs, longest {longest:?}", times.len());
        assert!(longest < Duration::from_millis(1200), "waited {longest:?}");
    });
}

#[test]
fn a_release_that_is_not_heard_is_found_within_a_second() {
    beside_others(async {
        let server = server();
        let waiter = client(&server).await;
        for _ in 0..scaled(3) {
            let name = name();
            let guard = client(&server)
                .await
                .mutex(&name)
                .lock()
                .lease(LEASE)
                .await
                .unwrap();
            let mutex = waiter.mutex(&name);
            let waiting =
                tokio::spawn(
                    async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) },
                );
            tokio::time::sleep(Duration::from_millis(300)).await;
            let deleted = Instant::now();
            server.tell(&["DEL", &key(&name)]);
            let (got, _guard) = waiting.await.unwrap().unwrap();
            assert!(
                got - deleted < Duration::from_millis(1200),
                "{:?}",
                got - deleted
            );
            drop(guard);
        }
    });
}

#[test]
fn after_a_new_connection_those_who_wait_look_at_once() {
    beside_others(async {
        let server = server();
        for _ in 0..scaled(3) {
            let name = name();
            server.tell(&["SET", &key(&name), "somebody", "PX", "60000"]);
            let mutex = client(&server).await.mutex(&name);
            let waiting = tokio::spawn(async move {
                let guard = mutex.lock().await;
                guard.map(|guard| (Instant::now(), guard))
            });
            tokio::time::sleep(Duration::from_millis(200)).await;
            // The lock becomes free without a word, while nobody could have heard one.
            let killed = Instant::now();
            server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            server.tell(&["DEL", &key(&name)]);
            let (got, _guard) = waiting.await.unwrap().unwrap();
            let took = ran_between(killed, got);
            assert!(took < Duration::from_millis(600), "only after {took:?}");
        }
    });
}

#[test]
fn the_lock_of_a_crashed_holder_is_taken_when_its_lease_ends() {
    beside_others(async {
        let server = server();
        for lease in [400, 1500].map(Duration::from_millis) {
            let name = name();
            let mut worker = Worker::start(server.port(), lease);
            worker.ask(&format!("lock {name}"));
            worker.kill();
            let start = Instant::now();
            let _guard = client(&server).await.mutex(&name).lock().await.unwrap();
            let took = ran_since(start);
            assert!(
                took < lease + Duration::from_millis(600),
                "{took:?} for {lease:?}"
            );
        }
    });
}

#[test]
fn those_who_wait_send_two_commands_a_second_at_most() {
    alone(|| {
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
                // A holder that was not run for long has lost it, and those who wait have it.
                let lost = worst_since(start) > lease / 3;
                let few = sent as f64 <= 2.0 * took.as_secs_f64();
                assert!(few || lost, "{sent} in {took:?}");
                for task in tasks {
                    task.abort();
                }
                drop(guard);
            }
        });
    });
}

#[test]
fn ten_thousand_tasks_of_one_process_all_get_the_lock() {
    beside_others(async {
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
        tokio::time::sleep(Duration::from_millis(500)).await;
        let _ = guard.release().await.unwrap();
        for task in tasks {
            let _ = task.await.unwrap();
        }
    });
}

#[test]
fn a_flood_of_forged_messages_grants_nothing() {
    beside_others(async {
        let server = server();
        let name = name();
        let _guard = client(&server).await.mutex(&name).lock().await.unwrap();
        let mutex = client(&server).await.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        tokio::time::sleep(Duration::from_millis(200)).await;
        let channel = channels(&server).remove(0);
        let mut forger = server.connect();
        for _ in 0..10_000 {
            assert_eq!(forger.ask(&["SPUBLISH", &channel, "0"]).unwrap().int(), 1);
        }
        assert!(!waiting.is_finished(), "granted by a message");
        waiting.abort();
    });
}

#[test]
fn a_connection_that_fell_silent_is_replaced() {
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let name = name();
        let holder = client(&server)
            .await
            .mutex(&name)
            .lock()
            .lease(LEASE)
            .await
            .unwrap();
        let waiter = builder_at(proxy.port()).connect().await.unwrap();
        let mutex = waiter.mutex(&name);
        let waiting =
            tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.strand();
        // Long enough for the next look, its patience, and a new connection.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let released = Instant::now();
        let _ = holder.release().await.unwrap();
        let (got, _guard) = waiting.await.unwrap().unwrap();
        assert!(
            ran_between(released, got) < Duration::from_millis(600),
            "not by push: {:?}",
            got - released
        );
    });
}

#[test]
fn without_subscriptions_waiting_goes_on_by_polling() {
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        proxy.judge(|request| match request[0].as_slice() {
            b"SSUBSCRIBE" => Fault::CutRequest,
            _ => Fault::None,
        });
        let name = name();
        let holder = client(&server).await.mutex(&name).lock().await.unwrap();
        let waiter = builder_at(proxy.port()).connect().await.unwrap();
        let mutex = waiter.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        tokio::time::sleep(Duration::from_millis(500)).await;
        let _ = holder.release().await.unwrap();
        let got = tokio::time::timeout(Duration::from_secs(5), waiting).await;
        let _guard = got.expect("polled").unwrap().unwrap();
    });
}

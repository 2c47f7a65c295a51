//! Where Redisson has a fault that the wire format does not force on us, ours has not: each test shows both.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{Loss, Release};
use testkit::machine::{ran_between, ran_since};
use testkit::{Flavor, Fleet, Redisson as Java, Server};

use super::{
    AT_ONCE, LONG, WATCHDOG, alone_with_newest, client, enter, fleet, of, server, take_now,
    with_newest,
};
use crate::support::{eventually, run, url_at};

/// Long enough for whoever was woken.
const WHILE: Duration = Duration::from_millis(1500);

/// Waits until so many hear of `channel`, and a moment more: Java's threads look once again when they do.
async fn until_heard(server: &Server, channel: &str, ears: i64) {
    let heard = || server.ask(&["PUBSUB", "NUMSUB", channel]).list()[1].int() == ears;
    eventually(LONG, "all who wait hear", heard).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[test]
fn those_behind_a_dead_waiter_do_not_spin() {
    alone_with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = Fleet {
            fair_wait: Duration::from_secs(4),
            ..fleet(&server)
        };
        let java = Java::start(version, &fleet);
        let waits = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        run(async {
            let ours = of(&client(&url_at(server.port())).await).fair_wait(fleet.fair_wait);
            let mut costs = Vec::new();
            for who in ["Java", "Rust"] {
                let held = take_now(&ours, "fair", "job").await;
                // One that is next in line, and dies.
                let mut doomed = Java::start(version, &fleet);
                doomed.tell("a", "lock fair/lock job");
                eventually(LONG, "the first waits", || waits() == 1).await;
                let other = client(&url_at(server.port())).await.redisson();
                let fair = other.fair_wait(fleet.fair_wait).fair_lock("job");
                let mut waiting = None;
                match who {
                    "Java" => java.tell("a", "lock fair/lock job"),
                    _ => waiting = Some(tokio::spawn(fair.lock().into_future())),
                }
                eventually(LONG, "the second waits", || waits() == 2).await;
                doomed.kill();
                held.give_back().await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                let before = server.info("total_commands_processed");
                tokio::time::sleep(Duration::from_secs(1)).await;
                let commands = server.info("total_commands_processed") - before;
                println!("{who}: {commands} commands a second behind a dead waiter");
                costs.push(commands);
                // Both have it when the dead one is given up.
                match waiting {
                    Some(waiting) => drop(waiting.await.unwrap().unwrap()),
                    None => {
                        assert_eq!(java.answer("a").text, "ok");
                        assert_eq!(java.ask("a", "lock fair/unlock job"), "ok");
                    }
                }
            }
            assert!(costs[0] > 1000.0 && costs[1] < 100.0, "{costs:?}");
        });
    });
}

#[test]
fn a_living_waiter_keeps_its_place_however_long_others_hold() {
    alone_with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = Fleet {
            fair_wait: WATCHDOG / 2,
            ..fleet(&server)
        };
        let java = Java::start(version, &fleet);
        let waits = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        run(async {
            let holder = of(&client(&url_at(server.port())).await).fair_wait(fleet.fair_wait);
            for first in ["Java", "Rust"] {
                let held = take_now(&holder, "fair", "job").await;
                let other = of(&client(&url_at(server.port())).await).fair_wait(fleet.fair_wait);
                let take = move || tokio::spawn(other.fair_lock("job").lock().into_future());
                let (mut waiting, mut take) = (None, Some(take));
                if first == "Rust" {
                    waiting = take.take().map(|take| take());
                    eventually(LONG, "one waits", || waits() == 1).await;
                }
                java.tell("a", "lock fair/lock job");
                if first == "Java" {
                    eventually(LONG, "one waits", || waits() == 1).await;
                    waiting = take.take().map(|take| take());
                }
                eventually(LONG, "both wait", || waits() == 2).await;
                let head = || server.ask(&["LINDEX", "redisson_lock_queue:{job}", "0"]);
                let at_first = head();
                // Java's asks at the end of the lease and finds that it was given up, by itself.
                tokio::time::sleep(WATCHDOG * 3).await;
                let passed = head() != at_first;
                assert_eq!(passed, first == "Java", "{first} was first");
                held.give_back().await;
                // Either way it is ours first, and then Java's.
                drop(waiting.expect("it waits").await.unwrap().unwrap());
                assert_eq!(java.answer("a").text, "ok");
                assert_eq!(java.ask("a", "lock fair/unlock job"), "ok");
            }
        });
    });
}

#[test]
fn a_message_that_never_comes_costs_a_second_and_not_for_ever() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        run(async {
            let ours = client(&url_at(server.port())).await.redisson();
            assert!(ours.semaphore("s").try_set_permits(1).await.unwrap());
            let one = ours.semaphore("s").acquire(1).await.unwrap();
            assert!(ours.count_down_latch("l").try_set_count(1).await.unwrap());
            java.tell("a", "semaphore acquire s 1");
            java.tell("b", "latch await l 60000");
            let permit = tokio::spawn(ours.semaphore("s").acquire(2).into_future());
            let latch = ours.count_down_latch("l");
            let opened = tokio::spawn(async move { latch.wait(LONG).await });
            until_heard(&server, "redisson_countdownlatch__channel__{l}", 2).await;
            until_heard(&server, "redisson_sc:{s}", 2).await;
            // What a release does, but for the message.
            server.tell(&["SET", "s", "3"]);
            server.tell(&["DEL", "l"]);
            let start = Instant::now();
            permit.await.unwrap().unwrap().release().await.unwrap();
            opened.await.unwrap().unwrap();
            assert!(ran_since(start) < LONG / 4, "{:?}", start.elapsed());
            drop(one);
        });
        // Ours has announced what it gave back, so Java's semaphore goes on; its latch never does.
        assert_eq!(java.answer("a").text, "ok");
        let said = java.answer_within("b", WHILE);
        assert!(said.is_none(), "{said:?}");
    });
}

#[test]
fn a_downgrade_lets_waiting_readers_in() {
    alone_with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        run(async {
            let ours = client(&url_at(server.port())).await.redisson();
            // Java's own way wakes nobody: the reader sleeps until the lease could have ended.
            assert_eq!(java.ask("a", "lock write/lease job 20000"), "ok");
            java.tell("b", "lock read/lock job");
            assert!(
                java.answer_within("b", Duration::from_millis(300))
                    .is_none()
            );
            assert_eq!(java.ask("a", "lock read/lease job 20000"), "ok");
            assert_eq!(java.ask("a", "lock write/unlock job"), "ok");
            assert!(java.answer_within("b", WHILE).is_none());
            assert_eq!(java.ask("a", "lock read/unlock job"), "ok");
            assert_eq!(java.answer("b").text, "ok");
            assert_eq!(java.ask("b", "lock read/unlock job"), "ok");

            let lock = ours.read_write_lock("job");
            let writing = lock.write_lock().lock().await.unwrap();
            java.tell("b", "lock read/lock job");
            let reading = tokio::spawn(lock.read_lock().lock().into_future());
            tokio::time::sleep(Duration::from_millis(300)).await;
            let start = Instant::now();
            let first = writing.downgrade().await.unwrap();
            let second = reading.await.unwrap().unwrap();
            assert!(ran_since(start) < AT_ONCE, "{:?}", start.elapsed());
            let said = java.answer("b");
            assert_eq!(said.text, "ok");
            assert!(
                ran_between(start, said.at) < AT_ONCE * 2,
                "{:?}",
                said.at - start
            );
            // And it is a reader as any other.
            assert!(lock.write_lock().try_lock().await.unwrap().is_none());
            assert_eq!(first.release().await.unwrap(), Release::Released);
            assert_eq!(second.release().await.unwrap(), Release::Released);
            assert_eq!(java.ask("b", "lock read/unlock job"), "ok");
            assert!(lock.write_lock().try_lock().await.unwrap().is_some());
        });
    });
}

#[test]
fn a_fair_lock_that_was_lost_is_told_when_it_is_released() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        run(async {
            let ours = client(&url_at(server.port())).await.redisson();
            assert_eq!(java.ask("a", "lock fair/lock job"), "ok");
            server.tell(&["DEL", "job"]);
            assert_eq!(java.ask("a", "lock fair/unlock job"), "ok");
            let held = take_now(&ours, "fair", "job").await;
            server.tell(&["DEL", "job"]);
            assert_eq!(held.release().await, Release::WasLost { loss: Loss::Taken });
        });
    });
}

#[test]
fn leases_of_a_writer_do_not_add_up() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        let left = || server.ask(&["PTTL", "job"]).int();
        run(async {
            assert_eq!(java.ask("a", "lock write/lease job 20000"), "ok");
            assert_eq!(java.ask("a", "lock write/lease job 20000"), "ok");
            assert!(left() > 30_000);
            assert_eq!(java.ask("a", "lock write/force job"), "true");
            let ours = client(&url_at(server.port())).await.redisson();
            let ours = ours.watchdog(Duration::from_secs(20));
            let first = enter(&ours, "write", "job").await;
            let _second = first.again().await;
            let counted = || server.ask(&["HVALS", "job"]);
            eventually(LONG, "entered twice", || {
                counted().list().iter().any(|value| value.text() == "2")
            })
            .await;
            assert!(left() <= 20_000, "{}", left());
        });
    });
}

#[test]
fn a_latch_that_is_deleted_opens_for_those_who_wait() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        run(async {
            let ours = client(&url_at(server.port())).await.redisson();
            let latch = ours.count_down_latch("l");
            for (by_us, told) in [(false, false), (true, true)] {
                assert!(latch.try_set_count(1).await.unwrap());
                let thread = format!("waits-{by_us}");
                java.tell(&thread, "latch await l 60000");
                until_heard(&server, "redisson_countdownlatch__channel__{l}", 1).await;
                let deleted = match by_us {
                    true => latch.delete().await.unwrap().to_string(),
                    false => java.ask("a", "latch delete l"),
                };
                assert_eq!(deleted, "true");
                let said = java.answer_within(&thread, WHILE);
                assert_eq!(said.is_some(), told, "{said:?}");
            }
        });
    });
}

//! Where Redisson has a fault that the wire format does not force on us, ours has not: each test shows both.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{Client, Loss, ReleaseOutcome};
use testkit::{Flavor, Redisson as Java, RedissonConfig};

use super::{
    AT_ONCE, ENDLESS, ONCE, Stage, WATCHDOG, client, enter, of, server, take_now, with_newest,
};
use crate::support::{AMPLE, eventually, run, url_at};

#[test]
#[ignore = "deep: counts the commands of a second"]
fn those_behind_a_dead_waiter_do_not_spin() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig {
            fair_wait: Duration::from_secs(4),
            ..RedissonConfig::single(server.port(), WATCHDOG)
        };
        let java = Java::start(version, &fleet);
        let waits = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        run(async {
            let ours = of(&client(&url_at(server.port())).await).watchdog(WATCHDOG);
            let ours = ours.fair_wait(fleet.fair_wait);
            let mut costs = Vec::new();
            for who in ["Java", "Rust"] {
                let held = take_now(&ours, "fair", "job").await;
                // One that is next in line, and dies.
                let mut doomed = Java::start(version, &fleet);
                doomed.tell("a", "lock fair/lock job");
                eventually("the first waits", || waits() == 1).await;
                let other = client(&url_at(server.port())).await.redisson();
                let fair = other.fair_wait(fleet.fair_wait).fair_lock("job");
                let mut waiting = None;
                match who {
                    "Java" => java.tell("a", "lock fair/lock job"),
                    _ => waiting = Some(tokio::spawn(fair.lock().into_future())),
                }
                eventually("the second waits", || waits() == 2).await;
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
                        assert_eq!(java.response("a").text, "ok");
                        assert_eq!(java.ask("a", "lock fair/unlock job"), "ok");
                    }
                }
            }
            assert!(costs[0] > 1000.0 && costs[1] < 100.0, "{costs:?}");
        });
    });
}

#[test]
#[ignore = "deep: waits for three watchdogs, and a stall costs a waiter its place"]
fn a_living_waiter_keeps_its_place_however_long_others_hold() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig {
            fair_wait: WATCHDOG / 2,
            ..RedissonConfig::single(server.port(), WATCHDOG)
        };
        let java = Java::start(version, &fleet);
        let waits = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        run(async {
            let of = |client: &Client| of(client).watchdog(WATCHDOG).fair_wait(fleet.fair_wait);
            let holder = of(&client(&url_at(server.port())).await);
            for first in ["Java", "Rust"] {
                let held = take_now(&holder, "fair", "job").await;
                let other = of(&client(&url_at(server.port())).await);
                let take = move || tokio::spawn(other.fair_lock("job").lock().into_future());
                let (mut waiting, mut take) = (None, Some(take));
                if first == "Rust" {
                    waiting = take.take().map(|take| take());
                    eventually("one waits", || waits() == 1).await;
                }
                java.tell("a", "lock fair/lock job");
                if first == "Java" {
                    eventually("one waits", || waits() == 1).await;
                    waiting = take.take().map(|take| take());
                }
                eventually("both wait", || waits() == 2).await;
                let head = || server.ask(&["LINDEX", "redisson_lock_queue:{job}", "0"]);
                let at_first = head();
                // Java's asks at the end of the lease and finds that it was given up, by itself.
                tokio::time::sleep(WATCHDOG * 3).await;
                let passed = head() != at_first;
                assert_eq!(passed, first == "Java", "{first} was first");
                held.give_back().await;
                // Either way it is ours first, and then Java's.
                drop(waiting.expect("it waits").await.unwrap().unwrap());
                assert_eq!(java.response("a").text, "ok");
                assert_eq!(java.ask("a", "lock fair/unlock job"), "ok");
            }
        });
    });
}

#[test]
fn redisson_faults_are_not_on_our_side() {
    with_newest(|version| {
        play(version, &async |stage: &Stage<'_>| {
            a_message_that_never_comes_costs_a_poll_and_not_for_ever(stage, AMPLE).await;
            a_downgrade_lets_waiting_readers_in(stage, AMPLE).await;
            a_latch_that_is_deleted_opens_for_those_who_wait(stage).await;
            a_fair_lock_that_was_lost_is_told_when_it_is_released(stage).await;
            leases_of_a_writer_do_not_add_up(stage).await;
        });
    });
}

#[test]
#[ignore = "deep: measures how soon waiters go on"]
fn waiters_that_redisson_strands_go_on_at_once() {
    with_newest(|version| {
        play(version, &async |stage: &Stage<'_>| {
            redisson_strands_its_own_waiters(stage).await;
            let poll = Duration::from_secs(5);
            a_message_that_never_comes_costs_a_poll_and_not_for_ever(stage, poll).await;
            a_downgrade_lets_waiting_readers_in(stage, AT_ONCE).await;
        });
    });
}

fn play(version: &str, scenes: &impl AsyncFn(&Stage<'_>)) {
    let server = server(&Flavor::one());
    let java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
    run(async { scenes(&Stage::new(&java, &server, ONCE).await).await });
}

/// Waits until `thread` of Java waits, and a waiter of ours hears of `name` too.
async fn until_both_wait(stage: &Stage<'_>, thread: &str, name: &str) {
    stage.java_waits(thread).await;
    let both_wait = || stage.listeners(name) == 2;
    eventually("both sides are subscribed", both_wait).await;
}

/// The faults themselves, each of which leaves a waiter asleep.
async fn redisson_strands_its_own_waiters(stage: &Stage<'_>) {
    let (java, server) = (stage.java, stage.servers[0]);
    let stays_asleep = |thread: &str| {
        let said = java.response_within(thread, Duration::from_millis(1500));
        assert!(said.is_none(), "{thread}: {said:?}");
    };

    assert_eq!(java.ask("a", "latch set unannounced 1"), "true");
    java.tell("unannounced", "latch await unannounced 60000");
    stage.java_waits("unannounced").await;
    server.tell(&["DEL", "unannounced"]);
    stays_asleep("unannounced");

    assert_eq!(java.ask("a", "latch set deleted 1"), "true");
    java.tell("deleted", "latch await deleted 60000");
    stage.java_waits("deleted").await;
    assert_eq!(java.ask("a", "latch delete deleted"), "true");
    stays_asleep("deleted");

    // The reader sleeps until the lease could have ended.
    assert_eq!(java.ask("a", "lock write/lease downgraded 300000"), "ok");
    java.tell("b", "lock read/lock downgraded");
    stage.java_waits("b").await;
    assert_eq!(java.ask("a", "lock read/lease downgraded 300000"), "ok");
    assert_eq!(java.ask("a", "lock write/unlock downgraded"), "ok");
    stays_asleep("b");
    assert_eq!(java.ask("a", "lock read/unlock downgraded"), "ok");
    assert_eq!(java.response("b").text, "ok");
}

async fn a_message_that_never_comes_costs_a_poll_and_not_for_ever(
    stage: &Stage<'_>,
    limit: Duration,
) {
    let (java, ours, server) = (stage.java, &stage.ours, stage.servers[0]);
    assert!(ours.semaphore("s").try_set_permits(1).await.unwrap());
    let one = ours.semaphore("s").acquire(1).await.unwrap();
    assert!(ours.count_down_latch("l").try_set_count(1).await.unwrap());
    java.tell("a", "semaphore acquire s 1");
    let permit = tokio::spawn(ours.semaphore("s").acquire(2).into_future());
    let latch = ours.count_down_latch("l");
    let opened = tokio::spawn(async move { latch.wait_timeout(AMPLE).await });
    until_both_wait(stage, "a", "s").await;
    stage.until_heard("l").await;
    // What a release does, but for the message.
    server.tell(&["SET", "s", "3"]);
    server.tell(&["DEL", "l"]);
    let start = Instant::now();
    permit.await.unwrap().unwrap().release().await.unwrap();
    opened.await.unwrap().unwrap();
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    drop(one);
    // Our release was announced, so Java's waiter goes on.
    assert_eq!(java.response("a").text, "ok");
}

async fn a_downgrade_lets_waiting_readers_in(stage: &Stage<'_>, limit: Duration) {
    let (java, ours) = (stage.java, &stage.ours);
    let lock = ours.read_write_lock("job");
    let writing = lock.write_lock().lock().await.unwrap();
    java.tell("a", "lock read/lock job");
    let reading = tokio::spawn(lock.read_lock().lock().into_future());
    until_both_wait(stage, "a", "job").await;
    let start = Instant::now();
    let first = writing.downgrade().await.unwrap();
    let second = reading.await.unwrap().unwrap();
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    let said = java.response("a");
    assert_eq!(said.text, "ok");
    assert!((said.at - start) < limit * 2, "{:?}", said.at - start);
    // And it is a reader as any other.
    assert!(lock.write_lock().try_lock().await.unwrap().is_none());
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(second.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(java.ask("a", "lock read/unlock job"), "ok");
    assert!(lock.write_lock().try_lock().await.unwrap().is_some());
}

async fn a_latch_that_is_deleted_opens_for_those_who_wait(stage: &Stage<'_>) {
    let (java, latch) = (stage.java, stage.ours.count_down_latch("latch"));
    assert!(latch.try_set_count(1).await.unwrap());
    java.tell("a", "latch await latch 60000");
    stage.java_waits("a").await;
    assert!(latch.delete().await.unwrap());
    assert_eq!(java.response("a").text, "true");
}

async fn a_fair_lock_that_was_lost_is_told_when_it_is_released(stage: &Stage<'_>) {
    let (java, ours, server) = (stage.java, &stage.ours, stage.servers[0]);
    assert_eq!(java.ask("a", "lock fair/lock fair"), "ok");
    server.tell(&["DEL", "fair"]);
    assert_eq!(java.ask("a", "lock fair/unlock fair"), "ok");
    let held = take_now(ours, "fair", "fair").await;
    server.tell(&["DEL", "fair"]);
    assert_eq!(
        held.release().await,
        ReleaseOutcome::AlreadyLost {
            loss: Loss::Revoked
        }
    );
}

async fn leases_of_a_writer_do_not_add_up(stage: &Stage<'_>) {
    let (java, server) = (stage.java, stage.servers[0]);
    let left = || server.ask(&["PTTL", "written"]).int();
    assert_eq!(java.ask("a", "lock write/lease written 20000"), "ok");
    assert_eq!(java.ask("a", "lock write/lease written 20000"), "ok");
    assert!(left() > 21_000);
    assert_eq!(java.ask("a", "lock write/force written"), "true");
    let ours = stage.ours.clone().watchdog(Duration::from_secs(20));
    let first = enter(&ours, "write", "written").await;
    let _second = first.again().await;
    let counted = || server.ask(&["HVALS", "written"]);
    eventually("entered twice", || {
        counted().list().iter().any(|value| value.text() == "2")
    })
    .await;
    assert!(left() <= 20_000, "{}", left());
}

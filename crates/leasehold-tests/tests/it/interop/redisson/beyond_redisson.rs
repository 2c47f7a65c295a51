//! Faults of Redisson that the wire format does not force on this library. Each
//! test shows both sides.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{Client, Loss};
use testkit::{Flavor, Redisson as Java, RedissonConfig, ServerExt};

use crate::support::redisson::{
    AT_ONCE, Harness, LONG_WATCHDOG, ONCE, WATCHDOG, acquire_now, acquire_reentrant, client,
    redisson_of, server, with_newest,
};
use crate::support::{AMPLE, eventually, is_busy, loss_of, run, url_at};

#[test]
#[ignore = "deep: counts the commands per second"]
fn waiter_behind_dead_waiter_does_not_spin() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig {
            fair_wait: Duration::from_secs(4),
            ..RedissonConfig::single(server.port(), WATCHDOG)
        };
        let java = Java::start(version, &fleet);
        let waiter_count = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        run(async {
            let ours = redisson_of(&client(&url_at(server.port())).await).watchdog(WATCHDOG);
            let ours = ours.fair_wait(fleet.fair_wait);
            let mut costs = Vec::new();
            for who in ["Java", "Rust"] {
                let held = acquire_now(&ours, "fair", "job").await;
                // A process that is next in the queue, and dies.
                let mut dying = Java::start(version, &fleet);
                dying.tell("a", "lock fair/lock job");
                eventually("the first waits", || waiter_count() == 1).await;
                let other = client(&url_at(server.port())).await.redisson();
                let fair = other.fair_wait(fleet.fair_wait).fair_lock("job");
                let mut waiting = None;
                match who {
                    "Java" => java.tell("a", "lock fair/lock job"),
                    _ => waiting = Some(tokio::spawn(fair.lock().into_future())),
                }
                eventually("the second waits", || waiter_count() == 2).await;
                dying.kill();
                held.release_held().await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                let before = server.info("total_commands_processed");
                tokio::time::sleep(Duration::from_secs(1)).await;
                let commands = server.info("total_commands_processed") - before;
                println!("{who}: {commands} commands a second behind a dead waiter");
                costs.push(commands);
                // Both acquire the lock when the dead waiter is evicted.
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
#[ignore = "deep: waits for three watchdogs, and a stall costs a waiter its position"]
fn live_waiter_keeps_its_queue_position() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig {
            fair_wait: WATCHDOG / 2,
            ..RedissonConfig::single(server.port(), WATCHDOG)
        };
        let java = Java::start(version, &fleet);
        let waiter_count = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        run(async {
            let redisson_of = |client: &Client| {
                redisson_of(client)
                    .watchdog(WATCHDOG)
                    .fair_wait(fleet.fair_wait)
            };
            let holder = redisson_of(&client(&url_at(server.port())).await);
            for first in ["Java", "Rust"] {
                let held = acquire_now(&holder, "fair", "job").await;
                let other = redisson_of(&client(&url_at(server.port())).await);
                let acquire = move || tokio::spawn(other.fair_lock("job").lock().into_future());
                let (mut waiting, mut acquire) = (None, Some(acquire));
                if first == "Rust" {
                    waiting = acquire.take().map(|acquire| acquire());
                    eventually("one waits", || waiter_count() == 1).await;
                }
                java.tell("a", "lock fair/lock job");
                if first == "Java" {
                    eventually("one waits", || waiter_count() == 1).await;
                    waiting = acquire.take().map(|acquire| acquire());
                }
                eventually("both wait", || waiter_count() == 2).await;
                let head = || server.ask(&["LINDEX", "redisson_lock_queue:{job}", "0"]);
                let at_first = head();
                // Java retries at the end of the lease and finds that it
                // evicted itself.
                tokio::time::sleep(WATCHDOG * 3).await;
                let passed = head() != at_first;
                assert_eq!(passed, first == "Java", "{first} was first");
                held.release_held().await;
                // Either way, Rust acquires the lock first, and then Java.
                drop(
                    waiting
                        .expect("the waiter was spawned")
                        .await
                        .unwrap()
                        .unwrap(),
                );
                assert_eq!(java.response("a").text, "ok");
                assert_eq!(java.ask("a", "lock fair/unlock job"), "ok");
            }
        });
    });
}

#[test]
fn redisson_faults_do_not_affect_leasehold() {
    with_newest(|version| {
        run_scenes(version, &async |harness: &Harness<'_>| {
            missing_message_costs_one_poll(harness, AMPLE).await;
            downgrade_grants_waiting_readers(harness, AMPLE).await;
            deleted_latch_wakes_waiters(harness).await;
            release_of_lost_fair_lock_reports_loss(harness).await;
            writer_leases_do_not_add_up(harness).await;
        });
    });
}

#[test]
#[ignore = "deep: measures how soon waiters continue"]
fn stranded_waiters_continue_promptly() {
    with_newest(|version| {
        run_scenes(version, &async |harness: &Harness<'_>| {
            redisson_strands_waiters(harness).await;
            let poll = Duration::from_secs(5);
            missing_message_costs_one_poll(harness, poll).await;
            downgrade_grants_waiting_readers(harness, AT_ONCE).await;
        });
    });
}

fn run_scenes(version: &str, scenes: &impl AsyncFn(&Harness<'_>)) {
    let server = server(&Flavor::one());
    let java = Java::start(
        version,
        &RedissonConfig::single(server.port(), LONG_WATCHDOG),
    );
    run(async { scenes(&Harness::new(&java, &server, ONCE).await).await });
}

/// Waits until `thread` of Java blocks, and a Rust waiter subscribes to `name`
/// too.
async fn wait_until_both_wait(harness: &Harness<'_>, thread: &str, name: &str) {
    harness.wait_until_java_blocks(thread).await;
    let both_wait = || harness.listeners(name) == 2;
    eventually("both sides are subscribed", both_wait).await;
}

/// Shows the faults themselves, each of which strands a waiter.
async fn redisson_strands_waiters(harness: &Harness<'_>) {
    let (java, server) = (harness.java, harness.servers[0]);
    let stays_asleep = |thread: &str| {
        let said = java.response_within(thread, Duration::from_millis(1500));
        assert!(said.is_none(), "{thread}: {said:?}");
    };

    assert_eq!(java.ask("a", "latch set unannounced 1"), "true");
    java.tell("unannounced", "latch await unannounced 60000");
    harness.wait_until_java_blocks("unannounced").await;
    server.tell(&["DEL", "unannounced"]);
    stays_asleep("unannounced");

    assert_eq!(java.ask("a", "latch set deleted 1"), "true");
    java.tell("deleted", "latch await deleted 60000");
    harness.wait_until_java_blocks("deleted").await;
    assert_eq!(java.ask("a", "latch delete deleted"), "true");
    stays_asleep("deleted");

    // The reader sleeps until the lease could have ended.
    assert_eq!(java.ask("a", "lock write/lease downgraded 300000"), "ok");
    java.tell("b", "lock read/lock downgraded");
    harness.wait_until_java_blocks("b").await;
    assert_eq!(java.ask("a", "lock read/lease downgraded 300000"), "ok");
    assert_eq!(java.ask("a", "lock write/unlock downgraded"), "ok");
    stays_asleep("b");
    assert_eq!(java.ask("a", "lock read/unlock downgraded"), "ok");
    assert_eq!(java.response("b").text, "ok");
}

async fn missing_message_costs_one_poll(harness: &Harness<'_>, limit: Duration) {
    let (java, ours, server) = (harness.java, &harness.ours, harness.servers[0]);
    assert!(ours.semaphore("s").try_set_permits(1).await.unwrap());
    let one = ours.semaphore("s").acquire(1).await.unwrap();
    assert!(ours.count_down_latch("l").try_set_count(1).await.unwrap());
    java.tell("a", "semaphore acquire s 1");
    let permit = tokio::spawn(ours.semaphore("s").acquire(2).into_future());
    let latch = ours.count_down_latch("l");
    let opened = tokio::spawn(async move { latch.until_open(Some(AMPLE)).await });
    wait_until_both_wait(harness, "a", "s").await;
    harness.wait_for_subscriber("l").await;
    // Like a release, but without the message.
    server.tell(&["SET", "s", "3"]);
    server.tell(&["DEL", "l"]);
    let start = Instant::now();
    permit.await.unwrap().unwrap().release().await.unwrap();
    opened.await.unwrap().unwrap();
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    drop(one);
    // The Rust release publishes, so the Java waiter continues.
    assert_eq!(java.response("a").text, "ok");
}

async fn downgrade_grants_waiting_readers(harness: &Harness<'_>, limit: Duration) {
    let (java, ours) = (harness.java, &harness.ours);
    let lock = ours.read_write_lock("job");
    let writing = lock.write_lock().lock().await.unwrap();
    java.tell("a", "lock read/lock job");
    let reading = tokio::spawn(lock.read_lock().lock().into_future());
    wait_until_both_wait(harness, "a", "job").await;
    let start = Instant::now();
    let first = writing.downgrade().await.unwrap();
    let second = reading.await.unwrap().unwrap();
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    let said = java.response("a");
    assert_eq!(said.text, "ok");
    assert!((said.at - start) < limit * 2, "{:?}", said.at - start);
    // It is an ordinary reader.
    assert!(is_busy(lock.write_lock().try_lock()).await);
    first.release().await.unwrap();
    second.release().await.unwrap();
    assert_eq!(java.ask("a", "lock read/unlock job"), "ok");
    drop(lock.write_lock().try_lock().await.unwrap());
}

async fn deleted_latch_wakes_waiters(harness: &Harness<'_>) {
    let (java, latch) = (harness.java, harness.ours.count_down_latch("latch"));
    assert!(latch.try_set_count(1).await.unwrap());
    java.tell("a", "latch await latch 60000");
    harness.wait_until_java_blocks("a").await;
    assert!(latch.delete().await.unwrap());
    assert_eq!(java.response("a").text, "true");
}

async fn release_of_lost_fair_lock_reports_loss(harness: &Harness<'_>) {
    let (java, ours, server) = (harness.java, &harness.ours, harness.servers[0]);
    assert_eq!(java.ask("a", "lock fair/lock fair"), "ok");
    server.tell(&["DEL", "fair"]);
    assert_eq!(java.ask("a", "lock fair/unlock fair"), "ok");
    let held = acquire_now(ours, "fair", "fair").await;
    server.tell(&["DEL", "fair"]);
    assert_eq!(loss_of(held.release().await), Some(Loss::Revoked));
}

async fn writer_leases_do_not_add_up(harness: &Harness<'_>) {
    let (java, server) = (harness.java, harness.servers[0]);
    let left = || server.ask(&["PTTL", "written"]).int();
    assert_eq!(java.ask("a", "lock write/lease written 20000"), "ok");
    assert_eq!(java.ask("a", "lock write/lease written 20000"), "ok");
    assert!(left() > 21_000);
    assert_eq!(java.ask("a", "lock write/force written"), "true");
    let ours = harness.ours.clone().watchdog(Duration::from_secs(20));
    let first = acquire_reentrant(&ours, "write", "written").await;
    let _second = first.reacquire().await;
    let counted = || server.ask(&["HVALS", "written"]);
    eventually("the lock is entered twice", || {
        counted().list().iter().any(|value| value.text() == "2")
    })
    .await;
    assert!(left() <= 20_000, "{}", left());
}

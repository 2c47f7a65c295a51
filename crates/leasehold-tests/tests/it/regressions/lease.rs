//! Bugs of the lease layer: owners, losses, waiters and the keeper.

use std::process::Command;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use testkit::{Flavor, SeededRng, Server, ServerExt, Setup};

use super::waiting::wait_for_waiters;
use crate::support::{
    AMPLE, LEASE, SHORT, client, connect_at, eventually, name, run, scaled, server, url_at,
    wait_for_replica, with_long_timeouts,
};

/// Forked processes drew the same owners from random bytes that their parent
/// had prefetched, and both held the lock.
#[test]
fn forked_processes_draw_distinct_owners() {
    let server = server();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "regressions::lease::forks",
            "--ignored",
            "--nocapture",
        ])
        .env("LEASEHOLD_FORKS", url_at(server.port()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let tokens: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_once("token "))
        .collect();
    assert_eq!(tokens.len(), 2, "{output:?}");
    assert_ne!(tokens[0].1, tokens[1].1, "{said}");
}

#[test]
#[ignore = "the body of worker processes"]
fn forks() {
    let Ok(url) = std::env::var("LEASEHOLD_FORKS") else {
        return;
    };
    let hold = |name: &'static str| {
        let url = url.clone();
        run(async move {
            let client = with_long_timeouts(Client::connect(&url)).await.unwrap();
            let guard = client.fair_mutex(name).lock().await.unwrap();
            let token = guard.token();
            tokio::time::sleep(Duration::from_secs(1)).await;
            guard.release().await.unwrap();
            client.shutdown(AMPLE).await.unwrap();
            token
        })
    };
    hold("before");
    let mut children = Vec::new();
    for _ in 0..2 {
        match fork::fork().unwrap() {
            fork::Fork::Parent(pid) => children.push(pid),
            fork::Fork::Child => {
                println!("token {}", hold("after"));
                std::process::exit(0);
            }
        }
    }
    for pid in children {
        fork::waitpid(pid).unwrap();
    }
}

/// The keeper, busy with other leases, slept past the deadline of a new one
/// that was shorter than its rounds.
#[test]
#[ignore = "deep: measures when a loss is reported, a thousand times"]
fn loss_is_reported_before_next_holder() {
    run(async {
        let rounds = scaled(1_000);
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let _other = ours.mutex(&name()).lock().await.unwrap();
        let mut rng = SeededRng::new(rounds);
        let (mut seen, mut late) = (0, Vec::new());
        for round in 0..rounds {
            let name = name();
            let limit = Duration::from_millis(60 + rng.below(140));
            let (ours, theirs) = (ours.mutex(&name), theirs.mutex(&name));
            let acquire = match round % 2 {
                0 => ours.try_lock().fixed_lease(LEASE).at_most(limit),
                _ => ours.try_lock().fixed_lease(limit),
            };
            // The machine stalled for as long as the lease.
            let Ok(guard) = acquire.await else {
                continue;
            };
            let next = tokio::spawn(async move {
                let guard = theirs.lock().await.unwrap();
                (Instant::now(), guard)
            });
            guard.lost().await.unwrap();
            let lost = Instant::now();
            let (taken, _guard) = next.await.unwrap();
            seen += 1;
            late.extend(lost.checked_duration_since(taken));
        }
        late.sort();
        // This task wakes up after the report, so a busy machine adds to the
        // result.
        println!("{seen} losses, {} reported late: {late:?}", late.len());
        assert!(late.last().is_none_or(|most| *most < LEASE / 400));
        assert!(seen > rounds / 2, "{seen} of {rounds}");
    });
}

/// The keeper renewed the lock of a task that was handed it and was never
/// polled.
#[test]
fn unpolled_successor_holds_lock_for_one_lease() {
    run(async {
        let server = server();
        let lease = Duration::from_secs(2);
        let builder = |lease| connect_at(server.port()).lease(lease);
        let ours = builder(lease).await.unwrap();
        let theirs = builder(lease).await.unwrap();
        let lock = ours.mutex(&name());
        let first = lock.lock().await.unwrap();
        let waits = tokio::spawn(lock.lock().into_future());
        wait_for_waiters(&server).await;
        let mut unpolled = lock.lock().into_future();
        let polled = tokio::time::timeout(SHORT, &mut unpolled).await;
        assert!(polled.is_err(), "the lock is held");
        drop(first);
        drop(waits.await.unwrap().unwrap());
        let start = Instant::now();
        let next = theirs.mutex(lock.name()).lock().timeout(AMPLE).await;
        assert!(next.is_ok(), "{:?} after {:?}", next, start.elapsed());
        drop(unpolled);
    });
}

/// A local leader that was not polled kept the other waiters of its process
/// from a free lock.
#[test]
fn unpolled_waiter_does_not_block_local_waiters() {
    run(async {
        let server = server();
        for fair in [false, true] {
            let name = name();
            let ours = client(&server).await;
            let lock = || match fair {
                true => ours.fair_mutex(&name).lock(),
                false => ours.mutex(&name).lock(),
            };
            let held = lock().await.unwrap();
            let mut unpolled = lock().into_future();
            let polled = tokio::time::timeout(SHORT, &mut unpolled).await;
            assert!(polled.is_err(), "the lock is held");
            held.release().await.unwrap();
            let next = lock().timeout(AMPLE).await;
            assert!(next.is_ok(), "fair: {fair}, {next:?}");
            drop(unpolled);
        }
    });
}

/// Each acquire with replica acknowledgement had its own connection.
#[test]
fn replicated_acquires_share_few_connections() {
    share_connections(scaled(300));
}

#[test]
#[ignore = "deep: ten thousand acquires at once"]
fn ten_thousand_acquires_share_few_connections() {
    share_connections(scaled(10_000));
}

fn share_connections(acquires: u64) {
    run(async {
        let (master, _replica) = pair().await;
        let url = format!("redis://127.0.0.1:{}", master.port());
        let client = with_long_timeouts(Client::connect(&url)).lease(AMPLE);
        let client = client.await.unwrap();
        let before = master.info("total_connections_received");
        let acquire = |_| {
            let lock = client.mutex(&name()).lock();
            tokio::spawn(lock.replicas(1, LEASE).into_future())
        };
        let tasks: Vec<_> = (0..acquires).map(acquire).collect();
        let mut guards = Vec::new();
        for task in tasks {
            guards.push(task.await.unwrap().unwrap());
        }
        let made = master.info("total_connections_received") - before;
        assert!(made <= 32.0, "{made} connections");
    });
}

/// `WAIT` preceded a script that the server did not know, and so did not cover
/// its writes.
#[test]
fn unknown_script_is_acknowledged() {
    run(async {
        let (master, replica) = pair().await;
        let url = format!("redis://127.0.0.1:{}", master.port());
        let client = with_long_timeouts(Client::connect(&url)).await.unwrap();
        let lock = client.mutex(&name()).lock().fixed_lease(AMPLE * 5);
        let guard = lock.replicas(1, SHORT).await.unwrap();
        // `WAIT` after no new write counts a replica that has acknowledged
        // everything.
        eventually("the replica acknowledges all writes", || {
            let written = format!("offset={},", master.info("master_repl_offset"));
            let acknowledged = master.ask(&["INFO", "replication"]);
            acknowledged.text().contains(&written)
        })
        .await;
        replica.pause();
        master.tell(&["SCRIPT", "FLUSH"]);
        let extended = guard.extend(AMPLE * 10).await;
        replica.resume();
        assert!(
            matches!(extended, Err(Error::NotReplicated { .. })),
            "{extended:?}"
        );
    });
}

async fn pair() -> (Server, Server) {
    let at_once = Setup::default().option("repl-diskless-sync-delay", "0");
    let master = at_once.start(&Flavor::one());
    let replica = Flavor::one().start();
    replica.tell(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    wait_for_replica(&master).await;
    (master, replica)
}

/// Every reentry of a Redisson lock was a separate message to the keeper.
#[test]
fn reentry_leaves_keeper_no_backlog() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let client = with_long_timeouts(Client::connect(&url)).await.unwrap();
        let lock = client.redisson().lock(&name()).reentrant();
        let _outer = lock.lock().await.unwrap();
        for _ in 0..scaled(20_000) {
            drop(lock.lock().await.unwrap());
        }
        let before = server.info("total_commands_processed");
        client.shutdown(AMPLE).await.unwrap();
        let left = server.info("total_commands_processed") - before;
        assert!(left < 100.0, "{left} commands are pending");
    });
}

/// A timeout without end overflowed an instant, and a task panicked.
#[test]
fn timeout_without_end_is_rejected() {
    run(async {
        let server = server();
        let url = url_at(server.port());
        let builder = || Client::connect(&url);
        let urls = [&url[..]; 3];
        for (setting, outcome) in [
            (
                "request_timeout",
                builder().request_timeout(Duration::MAX).await,
            ),
            (
                "connect_timeout",
                builder().connect_timeout(Duration::MAX).await,
            ),
            (
                "request_timeout",
                builder().request_timeout(Duration::ZERO).await,
            ),
        ] {
            let error = outcome.expect_err("out of range");
            let Error::Invalid { what, .. } = error else {
                panic!("{error:?}");
            };
            assert_eq!(what, setting);
        }
        let quorum = leasehold::Quorum::connect(urls).request_timeout(Duration::MAX);
        let error = quorum.await.expect_err("out of range");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    });
}

#[test]
fn waits_without_end_are_allowed() {
    run(async {
        let server = server();
        let builder = connect_at(server.port()).max_outage(Duration::MAX);
        let client = builder.slow_hold(Duration::MAX).await.unwrap();
        let name = name();
        let held = client.fair_mutex(&name).lock().await.unwrap();
        let waiting = client.fair_mutex(&name).lock().timeout(Duration::MAX);
        let waiting = tokio::spawn(waiting.into_future());
        eventually("it waits", || {
            !crate::support::owners(&server, "queue", &name).is_empty()
        })
        .await;
        drop(held);
        let next = waiting.await.unwrap().unwrap();
        next.extend(LEASE).await.unwrap();
        client.shutdown(Duration::MAX).await.unwrap();
    });
}

//! Local hand-off between the tasks of one process: new tokens, few requests,
//! and bounded in time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Acquire, Client, Error, Guard, Loss};
use testkit::{Connection, SeededRng, Server, ServerExt};
use tokio::task::JoinHandle;

use crate::support::{
    AMPLE, client, clock, connect_at, eventually, exists, has_subscriber, key, name,
    only_counters_left, only_holder, owners, poll_at_most, run, scaled, server,
};

/// The lock types with local hand-off.
pub(crate) const KINDS: [&str; 2] = ["mutex", "fair"];

fn lock(client: &Client, kind: &str, name: &str) -> Acquire {
    match kind {
        "mutex" => client.mutex(name).lock(),
        _ => client.fair_mutex(name).lock(),
    }
}

/// Returns whether a client waits for this lock on the server.
fn is_waited_for(server: &Server, kind: &str, name: &str) -> bool {
    match kind {
        "mutex" => has_subscriber(server, name),
        _ => !owners(server, "queue", name).is_empty(),
    }
}

/// Lets `tasks` tasks hold one lock `count` times each, and checks exclusion
/// and the order of tokens. Returns the commands per hold that the server
/// executed.
async fn contend(
    server: &Server,
    kind: &'static str,
    handoff: bool,
    tasks: u64,
    count: u64,
) -> f64 {
    let client = client(server).await;
    let name = name();
    let held = Arc::new(Mutex::new(Vec::new()));
    let before = server.info("total_commands_processed");
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (client, name, held) = (client.clone(), name.clone(), held.clone());
            tokio::spawn(async move {
                for _ in 0..count {
                    let guard = lock(&client, kind, &name)
                        .local_handoff(handoff)
                        .await
                        .unwrap();
                    let (start, token) = (clock(), guard.token().as_u64());
                    tokio::task::yield_now().await;
                    let end = clock();
                    // Count only holds that were valid to their end.
                    if guard.check().is_ok() {
                        held.lock().unwrap().push((start, end, token));
                    }
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let total = tasks.len() as u64 * count;
    for task in tasks {
        task.await.unwrap();
    }
    let commands = server.info("total_commands_processed") - before;
    let mut held = std::mem::take(&mut *held.lock().unwrap());
    assert!(
        held.len() as u64 * 2 > total,
        "only {} valid holds",
        held.len()
    );
    held.sort_unstable();
    for pair in held.windows(2) {
        let ((_, end, one), (start, _, two)) = (pair[0], pair[1]);
        assert!(end <= start, "two holders: {pair:?}");
        assert!(one < two, "tokens out of order: {pair:?}");
    }
    eventually("the lock is free", || !exists(server, &name)).await;
    commands / total as f64
}

/// Spawns `tasks` tasks that hold the lock in a loop until they are aborted.
fn spawn_endless_holders(
    tasks: usize,
    client: &Client,
    kind: &'static str,
    name: &str,
    held: &Arc<AtomicU64>,
) -> Vec<JoinHandle<()>> {
    let spawn_holder = || {
        let (client, name, held) = (client.clone(), name.to_owned(), held.clone());
        tokio::spawn(async move {
            loop {
                let guard = lock(&client, kind, &name).await.unwrap();
                held.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        })
    };
    (0..tasks).map(|_| spawn_holder()).collect()
}

#[test]
fn handoff_keeps_exclusion_and_token_order() {
    run(async {
        let server = server();
        for kind in KINDS {
            for handoff in [true, false] {
                contend(&server, kind, handoff, 16, scaled(20)).await;
            }
        }
    });
}

#[test]
#[ignore = "deep: counts commands per hold"]
fn handoff_gives_new_token_with_few_requests() {
    run(async {
        let server = server();
        for kind in KINDS {
            let handoff = contend(&server, kind, true, 64, 50).await;
            let off = contend(&server, kind, false, 64, 50).await;
            println!("{kind}: {handoff} commands per hold, {off} without");
            assert!(handoff < 1.0 && off > 3.0, "{kind}: {handoff} {off}");
        }
    });
}

/// Acquires the lock `times` times from another process whose tasks never stop.
/// Returns the longest wait.
async fn wait_beside_local_waiters(kind: &'static str, times: u64) -> Duration {
    let (server, name) = (server(), name());
    let contend = client(&server).await;
    let tasks = spawn_endless_holders(16, &contend, kind, &name, &Arc::default());
    // To the server, each client is a process.
    let other = client(&server).await;
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        let guard = lock(&other, kind, &name).timeout(AMPLE).await.unwrap();
        longest = longest.max(start.elapsed());
        guard.release().await.unwrap();
    }
    for task in tasks {
        task.abort();
    }
    longest
}

#[test]
fn local_waiters_yield_to_other_process() {
    for kind in KINDS {
        run(wait_beside_local_waiters(kind, scaled(5)));
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn other_process_is_not_starved() {
    for kind in KINDS {
        let longest = run(wait_beside_local_waiters(kind, 50));
        println!("{kind}: another process waited at most {longest:?}");
        assert!(longest < Duration::from_millis(500), "{kind}: {longest:?}");
    }
}

#[test]
#[ignore = "deep: measures shares"]
fn processes_with_local_waiters_share_lock() {
    run(async {
        const PROCESSES: usize = 3;
        let server = server();
        for kind in KINDS {
            let name = name();
            let held: [Arc<AtomicU64>; PROCESSES] = Default::default();
            let mut tasks = Vec::new();
            for held in &held {
                // To the server, each client is a process.
                let client = client(&server).await;
                tasks.extend(spawn_endless_holders(8, &client, kind, &name, held));
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            let held = held.each_ref().map(|count| count.load(Ordering::Relaxed));
            for task in tasks {
                task.abort();
            }
            println!("{kind}: {held:?}");
            let smallest_share = *held.iter().min().unwrap() as f64;
            let even_share = held.iter().sum::<u64>() as f64 / PROCESSES as f64;
            assert!(smallest_share > even_share * 0.4, "{kind}: {held:?}");
        }
    });
}

#[test]
fn equal_options_allow_handoff() {
    run(async {
        let server = server();
        for kind in KINDS {
            // A hand-off window that takes too long ends at the server. One of
            // many must be short enough.
            let start = Instant::now();
            loop {
                let owners_seen = hand_off_to(&server, kind, |lock| lock, &[]).await;
                if owners_seen.before == owners_seen.after {
                    break;
                }
                assert!(start.elapsed() < AMPLE, "{kind}: never handed off");
            }
        }
    });
}

#[test]
fn different_options_prevent_handoff() {
    run(async {
        let server = server();
        let others: [fn(Acquire) -> Acquire; 5] = [
            |lock| lock.note("another"),
            |lock| lock.fixed_lease(Duration::from_secs(7)),
            |lock| lock.at_most(Duration::from_secs(7)),
            |lock| lock.at_least(Duration::from_millis(1)),
            |lock| lock.local_handoff(false),
        ];
        for kind in KINDS {
            for (number, other) in others.into_iter().enumerate() {
                let owners_seen = hand_off_to(&server, kind, other, &[]).await;
                assert_ne!(owners_seen.before, owners_seen.after, "{kind} {number}");
            }
        }
    });
}

/// The owners on the server during a first and a second hold.
pub(crate) struct Owners {
    pub(crate) before: String,
    pub(crate) after: String,
    /// The guard of the second hold.
    guard: Guard,
}

/// Makes two tasks wait for one lock, the second with its own options, and the
/// first release it. Sends `command` to the server just before that.
pub(crate) async fn hand_off_to(
    server: &Server,
    kind: &'static str,
    set_options: fn(Acquire) -> Acquire,
    command: &'static [&'static str],
) -> Owners {
    let client = client(server).await;
    let name = name();
    let first = lock(&client, kind, &name).await.unwrap();
    let second = {
        let (waiting, name) = (lock(&client, kind, &name), name.clone());
        let mut connection = server.connect();
        tokio::spawn(async move {
            let guard = waiting.await.unwrap();
            let before = value(&mut connection, &name);
            if !command.is_empty() {
                connection.ask(command).unwrap();
            }
            let token = guard.token();
            let released = guard.release().await;
            assert!(!command.is_empty() || released.is_ok(), "{released:?}");
            (before, token)
        })
    };
    eventually("the second waits", || is_waited_for(server, kind, &name)).await;
    let third = set_options(lock(&client, kind, &name)).into_future();
    let third = tokio::spawn(third);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let first_token = first.token();
    first.release().await.unwrap();
    let (before, second_token) = second.await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert!(first_token < second_token && second_token < third.token());
    let after = value(&mut server.connect(), &name);
    Owners {
        before,
        after,
        guard: third,
    }
}

/// Returns the owner that the server considers the holder.
fn value(connection: &mut Connection, name: &str) -> String {
    let holder = only_holder(|args| connection.ask(args).ok(), name);
    holder.expect("one holder exists")
}

/// Drops acquires during local hand-offs. Returns how long the next acquire
/// takes.
async fn drop_during_handoff(kind: &'static str, rounds: u64) -> Duration {
    const TASKS: u64 = 16;
    let server = server();
    let client = connect_at(server.port()).lease(Duration::from_secs(300));
    let client = client.await.unwrap();
    let name = name();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, name) = (client.clone(), name.clone());
            tokio::spawn(async move {
                let mut rng = SeededRng::new(task + 1);
                let mut held = 0;
                for _ in 0..rounds {
                    let acquiring = lock(&client, kind, &name).into_future();
                    if let Some(guard) = poll_at_most(acquiring, rng.below(6)).await {
                        held += 1;
                        drop(guard.unwrap());
                    }
                }
                held
            })
        })
        .collect();
    let mut held = 0;
    for task in tasks {
        held += task.await.unwrap();
    }
    let total = TASKS * rounds;
    println!("{held} of {total} were held");
    assert!((1..total).contains(&held), "{held} of {total} were held");
    let start = Instant::now();
    let guard = lock(&client, kind, &name).timeout(AMPLE).await.unwrap();
    let took = start.elapsed();
    guard.release().await.unwrap();
    eventually("only counters are left", || only_counters_left(&server)).await;
    took
}

#[test]
fn dropped_waiters_do_not_strand_handoff() {
    for kind in KINDS {
        run(drop_during_handoff(kind, scaled(50)));
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn lock_is_released_after_waiters_are_dropped() {
    for kind in KINDS {
        let took = run(drop_during_handoff(kind, 200));
        // Before any waiter polls.
        assert!(took < Duration::from_secs(4), "{kind}: {took:?}");
    }
}

#[test]
fn revoked_lease_is_not_handed_off() {
    run(async {
        let server = server();
        let mut guards = Vec::new();
        for kind in KINDS {
            let owners_seen = hand_off_to(&server, kind, |lock| lock, &["FLUSHALL"]).await;
            // The loss was not yet known at the hand-off, but the server
            // reserved no token.
            assert_ne!(owners_seen.before, owners_seen.after, "handed off");
            guards.push(owners_seen.guard);
        }
        server.tell(&["FLUSHALL"]);
        for guard in guards {
            let lost = tokio::time::timeout(AMPLE, guard.lost()).await;
            assert_eq!(lost, Ok(Some(Loss::Revoked)));
            assert!(matches!(guard.check(), Err(Error::Lost { .. })));
        }
    });
}

#[test]
fn earlier_leases_report_released() {
    run(async {
        let server = server();
        for kind in KINDS {
            let client = client(&server).await;
            let name = name();
            let first = lock(&client, kind, &name).await.unwrap();
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let waiting = lock(&client, kind, &name);
                    tokio::spawn(async move {
                        let guard = waiting.await.unwrap();
                        let lease = guard.lease().clone();
                        assert!(lease.check().is_ok());
                        let lost = tokio::spawn({
                            let lease = lease.clone();
                            async move { lease.lost().await }
                        });
                        guard.release().await.unwrap();
                        assert!(matches!(lease.check(), Err(Error::Lost { .. })));
                        assert_eq!(lease.remaining(), Duration::ZERO);
                        assert_eq!(lost.await.unwrap(), None);
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
        }
    });
}

#[test]
fn lost_lease_is_not_handed_off() {
    run(async {
        let server = server();
        for kind in KINDS {
            let client = client(&server).await;
            let name = name();
            let first = lock(&client, kind, &name).await.unwrap();
            let waiting = || tokio::spawn(lock(&client, kind, &name).into_future());
            let second = waiting();
            eventually("the second waits", || is_waited_for(&server, kind, &name)).await;
            let third = waiting();
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(first);
            let one = second.await.unwrap().unwrap();
            // The task keeps the guard of a lost lock; the next one does not
            // wait for it.
            server.tell(&["DEL", &key(&name)]);
            assert_eq!(one.lost().await, Some(Loss::Revoked));
            let next = tokio::time::timeout(AMPLE, third).await;
            let next = next.unwrap().unwrap().unwrap();
            assert!(one.token() < next.token());
        }
    });
}

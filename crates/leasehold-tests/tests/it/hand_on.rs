//! Tasks of one process hand a lock on to each other: each with its own token, without asking the server, and not for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Acquire, Client, Error, Guard, Loss, ReleaseOutcome};
use testkit::{Connection, SeededRng, Server};
use tokio::task::JoinHandle;

use crate::support::{
    AMPLE, builder_at, client, clock, eventually, exists, is_awaited, key, name, nothing_is_left,
    only_holder, owners, poll_times, run, scaled, server,
};

/// The kinds that are handed on.
pub(crate) const KINDS: [&str; 2] = ["mutex", "fair"];

fn lock(client: &Client, kind: &str, name: &str) -> Acquire {
    match kind {
        "mutex" => client.mutex(name).lock(),
        _ => client.fair_mutex(name).lock(),
    }
}

/// Whether a client has asked the server for this lock and waits.
fn waits(server: &Server, kind: &str, name: &str) -> bool {
    match kind {
        "mutex" => is_awaited(server, name),
        _ => !owners(server, "queue", name).is_empty(),
    }
}

/// Has `tasks` hold one lock `count` times each, and checks that no two hold it at once and that tokens rise. Returns
/// how many commands the server ran for a holding.
async fn crowd(server: &Server, kind: &'static str, on: bool, tasks: u64, count: u64) -> f64 {
    let client = client(server).await;
    let name = name();
    let held = Arc::new(Mutex::new(Vec::new()));
    let before = server.info("total_commands_processed");
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (client, name, held) = (client.clone(), name.clone(), held.clone());
            tokio::spawn(async move {
                for _ in 0..count {
                    let guard = lock(&client, kind, &name).local_handoff(on).await.unwrap();
                    let (start, token) = (clock(), guard.token().as_u64());
                    tokio::task::yield_now().await;
                    let end = clock();
                    // Only what was certainly held to its end counts.
                    if guard.check().is_ok() {
                        held.lock().unwrap().push((start, end, token));
                    }
                    let _ = guard.release().await.unwrap();
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
    assert!(held.len() as u64 * 2 > total, "{} were held", held.len());
    held.sort_unstable();
    for pair in held.windows(2) {
        let ((_, end, one), (start, _, two)) = (pair[0], pair[1]);
        assert!(end <= start, "two holders: {pair:?}");
        assert!(one < two, "tokens rise in the order of holding: {pair:?}");
    }
    eventually("it is free", || !exists(server, &name)).await;
    commands / total as f64
}

/// So many tasks that hold the lock again and again, until they are aborted.
fn endlessly(
    tasks: usize,
    client: &Client,
    kind: &'static str,
    name: &str,
    held: &Arc<AtomicU64>,
) -> Vec<JoinHandle<()>> {
    let endless = || {
        let (client, name, held) = (client.clone(), name.to_owned(), held.clone());
        tokio::spawn(async move {
            loop {
                let guard = lock(&client, kind, &name).await.unwrap();
                held.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                let _ = guard.release().await.unwrap();
            }
        })
    };
    (0..tasks).map(|_| endless()).collect()
}

#[test]
fn crowd_has_one_holder_at_a_time_and_rising_tokens() {
    run(async {
        let server = server();
        for kind in KINDS {
            for on in [true, false] {
                crowd(&server, kind, on, 16, scaled(20)).await;
            }
        }
    });
}

#[test]
#[ignore = "deep: counts commands per holding"]
fn each_has_its_own_token_and_the_server_is_hardly_asked() {
    run(async {
        let server = server();
        for kind in KINDS {
            let on = crowd(&server, kind, true, 64, 50).await;
            let off = crowd(&server, kind, false, 64, 50).await;
            println!("{kind}: {on} commands a holding, {off} when turned off");
            assert!(on < 1.0 && off > 3.0, "{kind}: {on} {off}");
        }
    });
}

/// Has another process take the lock `times` times from one whose tasks never stop. Returns its longest wait.
async fn beside_a_crowd(kind: &'static str, times: u64) -> Duration {
    let (server, name) = (server(), name());
    let crowd = client(&server).await;
    let tasks = endlessly(16, &crowd, kind, &name, &Arc::default());
    // A client of its own is a process of its own to the server.
    let other = client(&server).await;
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        let guard = lock(&other, kind, &name).timeout(AMPLE).await.unwrap();
        longest = longest.max(start.elapsed());
        let _ = guard.release().await.unwrap();
    }
    for task in tasks {
        task.abort();
    }
    longest
}

#[test]
fn crowd_of_one_process_lets_another_in() {
    for kind in KINDS {
        run(beside_a_crowd(kind, scaled(5)));
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn another_process_is_not_kept_waiting() {
    for kind in KINDS {
        let longest = run(beside_a_crowd(kind, 50));
        println!("{kind}: another waited {longest:?} at most");
        assert!(longest < Duration::from_millis(500), "{kind}: {longest:?}");
    }
}

#[test]
#[ignore = "deep: measures shares"]
fn crowds_of_several_processes_share_it() {
    run(async {
        const CROWDS: usize = 3;
        let server = server();
        for kind in KINDS {
            let name = name();
            let held: [Arc<AtomicU64>; CROWDS] = Default::default();
            let mut tasks = Vec::new();
            for held in &held {
                // A client of its own is a process of its own to the server.
                let client = client(&server).await;
                tasks.extend(endlessly(8, &client, kind, &name, held));
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            let held = held.each_ref().map(|count| count.load(Ordering::Relaxed));
            for task in tasks {
                task.abort();
            }
            println!("{kind}: {held:?}");
            let least = *held.iter().min().unwrap() as f64;
            let even = held.iter().sum::<u64>() as f64 / CROWDS as f64;
            assert!(least > even * 0.4, "{kind}: {held:?}");
        }
    });
}

#[test]
fn one_who_asks_for_the_same_gets_it_from_the_one_before() {
    run(async {
        let server = server();
        for kind in KINDS {
            // A round that lasts too long for this goes back to the server: one of many must be short enough.
            let start = Instant::now();
            loop {
                let passed = pass(&server, kind, |lock| lock, &[]).await;
                if passed.before == passed.after {
                    break;
                }
                assert!(start.elapsed() < AMPLE, "{kind}: always asks the server");
            }
        }
    });
}

#[test]
fn one_who_asks_for_something_else_asks_the_server() {
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
                let passed = pass(&server, kind, other, &[]).await;
                assert_ne!(passed.before, passed.after, "{kind} {number}");
            }
        }
    });
}

/// What stood on the server for one who waited, and for the one behind it.
pub(crate) struct Passed {
    pub(crate) before: String,
    pub(crate) after: String,
    /// Of the one behind.
    guard: Guard,
}

/// Has two tasks wait for one lock, the second on terms of its own, and the first give it to it; just before, the
/// server is told to do something.
pub(crate) async fn pass(
    server: &Server,
    kind: &'static str,
    terms: fn(Acquire) -> Acquire,
    told: &'static [&'static str],
) -> Passed {
    let client = client(server).await;
    let name = name();
    let first = lock(&client, kind, &name).await.unwrap();
    let second = {
        let (waiting, name) = (lock(&client, kind, &name), name.clone());
        let mut connection = server.connect();
        tokio::spawn(async move {
            let guard = waiting.await.unwrap();
            let before = value(&mut connection, &name);
            if !told.is_empty() {
                connection.ask(told).unwrap();
            }
            let token = guard.token();
            let released = guard.release().await.unwrap();
            assert!(!told.is_empty() || released == ReleaseOutcome::Released);
            (before, token)
        })
    };
    eventually("the second waits", || waits(server, kind, &name)).await;
    let third = terms(lock(&client, kind, &name)).into_future();
    let third = tokio::spawn(third);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let first_token = first.token();
    let _ = first.release().await.unwrap();
    let (before, second_token) = second.await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert!(first_token < second_token && second_token < third.token());
    let after = value(&mut server.connect(), &name);
    Passed {
        before,
        after,
        guard: third,
    }
}

/// The owner that the server takes for the holder.
fn value(connection: &mut Connection, name: &str) -> String {
    let value = connection.ask(&["GET", &key(name)]).unwrap();
    only_holder(&value).expect("one holder")
}

/// Drops acquires while a lock goes around. Returns how long it then takes to have it.
async fn drop_while_it_goes_around(kind: &'static str, rounds: u64) -> Duration {
    const TASKS: u64 = 16;
    let server = server();
    let client = builder_at(server.port()).lease(Duration::from_secs(300));
    let client = client.connect().await.unwrap();
    let name = name();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, name) = (client.clone(), name.clone());
            tokio::spawn(async move {
                let mut rng = SeededRng::new(task + 1);
                let mut held = 0;
                for _ in 0..rounds {
                    let acquiring = lock(&client, kind, &name).into_future();
                    if let Some(guard) = poll_times(acquiring, rng.below(6)).await {
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
    let _ = guard.release().await.unwrap();
    eventually("nothing is left", || nothing_is_left(&server)).await;
    took
}

#[test]
fn those_who_are_dropped_while_it_goes_around_strand_nobody() {
    for kind in KINDS {
        run(drop_while_it_goes_around(kind, scaled(50)));
    }
}

#[test]
#[ignore = "deep: measures a latency"]
fn lock_is_free_soon_after_its_waiters_are_dropped() {
    for kind in KINDS {
        let took = run(drop_while_it_goes_around(kind, 200));
        // Before anyone asks again without being called.
        assert!(took < Duration::from_secs(4), "{kind}: {took:?}");
    }
}

#[test]
fn what_was_taken_away_is_not_handed_on_and_is_told() {
    run(async {
        let server = server();
        let mut guards = Vec::new();
        for kind in KINDS {
            let passed = pass(&server, kind, |lock| lock, &["FLUSHALL"]).await;
            // Not yet known to be lost when it was left to the next: but no token was to be had for it.
            assert_ne!(passed.before, passed.after, "taken anew");
            guards.push(passed.guard);
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
fn those_who_had_it_see_that_it_is_over() {
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
                        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
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
fn those_behind_one_whose_lease_is_lost_ask_the_server() {
    run(async {
        let server = server();
        for kind in KINDS {
            let client = client(&server).await;
            let name = name();
            let first = lock(&client, kind, &name).await.unwrap();
            let waiting = || tokio::spawn(lock(&client, kind, &name).into_future());
            let second = waiting();
            eventually("the second waits", || waits(&server, kind, &name)).await;
            let third = waiting();
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(first);
            let one = second.await.unwrap().unwrap();
            // It keeps the guard of a lock that it has lost: the other does not wait for it.
            server.tell(&["DEL", &key(&name)]);
            assert_eq!(one.lost().await, Some(Loss::Revoked));
            let next = tokio::time::timeout(AMPLE, third).await;
            let next = next.unwrap().unwrap().unwrap();
            assert!(one.token() < next.token());
        }
    });
}

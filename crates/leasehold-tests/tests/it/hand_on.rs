//! Tasks of one process hand a lock on to each other: each with its own token, without asking the server, and not for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::kinds::Lock;
use leasehold::{Client, Error, Guard, Loss, Release};
use testkit::machine::ran_since;
use testkit::{Connection, Dice, Server};
use tokio::task::JoinHandle;

use crate::support::{
    alone, beside_others, builder_at, client, eventually, exists, key, name, nothing_is_left,
    poll_times, run, server,
};

/// The kinds that are handed on.
const KINDS: [&str; 2] = ["mutex", "fair"];

fn lock(client: &Client, kind: &str, name: &str) -> Lock {
    match kind {
        "mutex" => client.mutex(name).lock(),
        _ => client.fair_mutex(name).lock(),
    }
}

/// Has `tasks` hold one lock `count` times each; how many requests the server got for it.
async fn crowd(server: &Server, kind: &'static str, on: bool, tasks: u64, count: u64) -> f64 {
    let client = client(server).await;
    let name = name();
    let order = Arc::new(Mutex::new(Vec::new()));
    let before = server.info("total_commands_processed");
    let inside = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (client, name, order) = (client.clone(), name.clone(), order.clone());
            let inside = inside.clone();
            tokio::spawn(async move {
                for _ in 0..count {
                    let guard = lock(&client, kind, &name).hand_on(on).await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    guard.check().unwrap();
                    order.lock().unwrap().push(guard.token().as_u64());
                    tokio::task::yield_now().await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    assert_eq!(guard.release().await.unwrap(), Release::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let commands = server.info("total_commands_processed") - before;
    let order = order.lock().unwrap().clone();
    assert!(
        order.is_sorted_by(|one, two| one < two),
        "tokens rise in the order of holding"
    );
    eventually(Duration::from_secs(2), "it is free", || {
        !exists(server, &name)
    })
    .await;
    commands / order.len() as f64
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
fn each_has_its_own_token_and_the_server_is_hardly_asked() {
    alone(|| {
        run(async {
            let server = server();
            for kind in KINDS {
                let on = crowd(&server, kind, true, 64, 50).await;
                let off = crowd(&server, kind, false, 64, 50).await;
                println!("{kind}: {on} commands a holding, {off} when turned off");
                assert!(on < 1.0 && off > 3.0, "{kind}: {on} {off}");
            }
        });
    });
}

#[test]
fn another_process_is_not_kept_waiting() {
    alone(|| {
        run(async {
            let server = server();
            for kind in KINDS {
                let name = name();
                let crowd = client(&server).await;
                let tasks = endlessly(16, &crowd, kind, &name, &Arc::default());
                // A client of its own is a process of its own to the server.
                let other = client(&server).await;
                let mut longest = Duration::ZERO;
                for _ in 0..50 {
                    let start = Instant::now();
                    let guard = lock(&other, kind, &name).await.unwrap();
                    longest = longest.max(ran_since(start));
                    let _ = guard.release().await.unwrap();
                }
                println!("{kind}: another waited {longest:?} at most");
                assert!(longest < Duration::from_millis(500), "{kind}: {longest:?}");
                for task in tasks {
                    task.abort();
                }
            }
        });
    });
}

#[test]
fn crowds_of_several_processes_share_it() {
    alone(|| {
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
    });
}

#[test]
fn one_who_asks_for_the_same_gets_it_from_the_one_before() {
    beside_others(async {
        let server = server();
        for kind in KINDS {
            let passed = pass(&server, kind, |lock| lock, &[]).await;
            assert_eq!(
                passed.before, passed.after,
                "{kind}: nothing has changed there"
            );
        }
    });
}

#[test]
fn one_who_asks_for_something_else_asks_the_server() {
    beside_others(async {
        let server = server();
        let others: [fn(Lock) -> Lock; 5] = [
            |lock| lock.note("another"),
            |lock| lock.lease(Duration::from_secs(7)),
            |lock| lock.at_most(Duration::from_secs(7)),
            |lock| lock.at_least(Duration::from_millis(1)),
            |lock| lock.hand_on(false),
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
struct Passed {
    before: String,
    after: String,
    /// Of the one behind.
    guard: Guard,
}

/// Has two tasks wait for one lock, the second on terms of its own, and the first give it to it; just before, the
/// server is told to do something.
async fn pass(
    server: &Server,
    kind: &'static str,
    terms: fn(Lock) -> Lock,
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
            let before = value(&mut connection, kind, &name);
            if !told.is_empty() {
                connection.ask(told).unwrap();
            }
            let token = guard.token();
            assert_eq!(guard.release().await.unwrap(), Release::Released);
            (before, token)
        })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let third = terms(lock(&client, kind, &name)).into_future();
    let third = tokio::spawn(third);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let first_token = first.token();
    let _ = first.release().await.unwrap();
    let (before, second_token) = second.await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert!(first_token < second_token && second_token < third.token());
    let after = value(&mut server.connect(), kind, &name);
    Passed {
        before,
        after,
        guard: third,
    }
}

/// What stands on the server for the holder.
fn value(connection: &mut Connection, kind: &str, name: &str) -> String {
    let command = match kind {
        "mutex" => "GET",
        _ => "HKEYS",
    };
    format!("{:?}", connection.ask(&[command, &key(name)]).unwrap())
}

#[test]
fn those_who_are_dropped_while_it_goes_around_strand_nobody() {
    beside_others(async {
        let server = server();
        for kind in KINDS {
            let client = builder_at(server.port()).lease(Duration::from_secs(300));
            let client = client.connect().await.unwrap();
            let name = name();
            let tasks: Vec<_> = (0..16)
                .map(|task| {
                    let (client, name) = (client.clone(), name.clone());
                    tokio::spawn(async move {
                        let mut dice = Dice::new(task + 1);
                        let mut held = 0;
                        for _ in 0..200 {
                            let acquiring = lock(&client, kind, &name).into_future();
                            if let Some(guard) = poll_times(acquiring, dice.below(6)).await {
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
            println!("{held} of 3200 were held");
            assert!((300..2900).contains(&held), "{held} of 3200 were held");
            let start = Instant::now();
            let guard = lock(&client, kind, &name).await.unwrap();
            // Before anyone asks again without being called.
            assert!(
                ran_since(start) < Duration::from_secs(4),
                "{:?}",
                start.elapsed()
            );
            let _ = guard.release().await.unwrap();
        }
        eventually(Duration::from_secs(2), "nothing is left", || {
            nothing_is_left(&server)
        })
        .await;
    });
}

#[test]
fn what_was_taken_away_is_not_handed_on_and_is_told() {
    beside_others(async {
        let server = server();
        for kind in KINDS {
            let passed = pass(&server, kind, |lock| lock, &["FLUSHALL"]).await;
            // Not yet known to be lost when it was left to the next: but no token was to be had for it.
            assert_ne!(passed.before, passed.after, "taken anew");
            server.tell(&["FLUSHALL"]);
            let lost = tokio::time::timeout(Duration::from_secs(12), passed.guard.lost()).await;
            assert_eq!(lost, Ok(Some(Loss::Taken)));
            assert!(matches!(passed.guard.check(), Err(Error::Lost { .. })));
        }
    });
}

#[test]
fn those_who_had_it_see_that_it_is_over() {
    beside_others(async {
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
                        assert_eq!(guard.release().await.unwrap(), Release::Released);
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
    beside_others(async {
        let server = server();
        for kind in KINDS {
            let client = builder_at(server.port()).lease(Duration::from_millis(900));
            let client = client.connect().await.unwrap();
            let name = name();
            let first = lock(&client, kind, &name).await.unwrap();
            let waiting = || tokio::spawn(lock(&client, kind, &name).into_future());
            let second = waiting();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let third = waiting();
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(first);
            let one = second.await.unwrap().unwrap();
            // It keeps the guard of a lock that it has lost: the other does not wait for it.
            server.tell(&["DEL", &key(&name)]);
            assert_eq!(one.lost().await, Some(Loss::Taken));
            let next = tokio::time::timeout(Duration::from_secs(3), third).await;
            let next = next.unwrap().unwrap().unwrap();
            assert!(one.token() < next.token());
        }
    });
}

//! The semaphore: permits are conserved, whoever crashes, and the large are not passed by the small.

use std::time::{Duration, Instant};

use leasehold::{Client, Error};

use testkit::machine::ran_since;

use crate::support::{
    LEASE, beside_others, builder_at, client, eventually, name, nothing_is_left, on_every_server,
    scaled, server,
};
use crate::worker::Worker;

const PERMITS: u32 = 6;

/// What was held by one process: from, until, and how many.
type Holding = (u64, u64, i64);

/// Reads what a worker says until it is done or dead.
fn read_all(mut worker: Worker) -> Vec<Holding> {
    let mut holdings = Vec::new();
    while let Some(answer) = worker.answer_if_alive()
        && answer != "done"
    {
        let mut words = answer.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        let (start, end) = (next(), next());
        holdings.push((start, end, next() as i64));
    }
    holdings
}

/// The largest number of permits that were held at the same time.
fn most_at_once(holdings: &[Holding]) -> i64 {
    let starts = holdings.iter().map(|(start, _, weight)| (*start, *weight));
    let ends = holdings.iter().map(|(_, end, weight)| (*end, -weight));
    let mut changes: Vec<_> = starts.chain(ends).collect();
    changes.sort_unstable();
    let mut held = 0;
    let levels = changes.iter().map(|(_, change)| {
        held += change;
        held
    });
    levels.max().unwrap_or(0)
}

#[test]
fn permits_are_conserved_by_eight_processes_that_crash() {
    beside_others(async {
        let (server, name) = (server(), name());
        let count = scaled(50_000) / 8;
        let mut readers = Vec::new();
        let mut victims = Vec::new();
        for process in 0..12 {
            let mut worker = Worker::start(server.port(), LEASE);
            worker.tell(&format!("permits {name} {PERMITS} {count} {process}"));
            // Four of twelve are killed while they hold and wait.
            if process % 3 == 0 {
                victims.push(worker.killer());
            }
            readers.push(std::thread::spawn(move || read_all(worker)));
        }
        for victim in victims {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            victim.kill();
        }
        let mut holdings = Vec::new();
        for reader in readers {
            holdings.extend(reader.join().unwrap());
        }
        println!("{} holdings", holdings.len());
        assert!(holdings.len() as u64 >= count * 8);
        let most = most_at_once(&holdings);
        assert!(most <= i64::from(PERMITS), "{most} permits at once");
        assert!(most > 1, "hardly any contention");
        let semaphore = client(&server).await.semaphore(&name, PERMITS);
        let all = semaphore
            .acquire_many(PERMITS)
            .wait(LEASE * 4)
            .await
            .unwrap();
        assert_eq!(semaphore.permits().await.unwrap().held, PERMITS);
        let _ = all.release().await.unwrap();
        assert!(nothing_is_left(&server), "{:?}", server.ask(&["KEYS", "*"]));
    });
}

#[test]
fn the_counting_of_permits_at_once_can_fail() {
    assert_eq!(most_at_once(&[(1, 5, 2), (5, 9, 3), (6, 7, 1)]), 4);
    assert_eq!(most_at_once(&[(1, 5, 4), (4, 6, 3)]), 7);
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    beside_others(async {
        let (server, name) = (server(), name());
        let stream: Vec<_> = {
            let client = client(&server).await;
            let small = move |client: Client, name: String| async move {
                loop {
                    let held = client.semaphore(&name, 4).acquire().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let _ = held.release().await.unwrap();
                }
            };
            (0..8)
                .map(|_| tokio::spawn(small(client.clone(), name.clone())))
                .collect()
        };
        let large = client(&server).await.semaphore(&name, 4);
        for _ in 0..20 {
            let start = Instant::now();
            let held = large
                .acquire_many(4)
                .wait(Duration::from_secs(5))
                .await
                .unwrap();
            assert!(
                ran_since(start) < Duration::from_secs(1),
                "{:?}",
                start.elapsed()
            );
            let _ = held.release().await.unwrap();
        }
        for task in stream {
            task.abort();
        }
    });
}

#[test]
fn permits_can_be_raised_and_lowered_while_in_use() {
    on_every_server(|server| async move {
        let name = name();
        let semaphore = client(&server).await.semaphore(&name, 2);
        let other = client(&server).await.semaphore(&name, 2);
        let held = semaphore.acquire_many(2).await.unwrap();
        let waiting = tokio::spawn(other.acquire().into_future());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        semaphore.set_permits(3).await.unwrap();
        let third = tokio::time::timeout(Duration::from_millis(250), waiting).await;
        let third = third.expect("let in by push").unwrap().unwrap();
        semaphore.set_permits(1).await.unwrap();
        let permits = semaphore.permits().await.unwrap();
        assert_eq!((permits.total, permits.held, permits.waiting), (1, 3, 0));
        let _ = held.release().await.unwrap();
        assert!(other.try_acquire().await.unwrap().is_none(), "one is held");
        let _ = third.release().await.unwrap();
        let last = other.try_acquire().await.unwrap().expect("free");
        assert!(other.try_acquire().await.unwrap().is_none());
        let _ = last.release().await.unwrap();
        // It is remembered, but not for ever.
        let left = server.ask(&["PTTL", &crate::support::key(&name)]).int();
        assert!(left > 29 * 86_400_000, "{left}");
    });
}

#[test]
fn more_than_there_is_cannot_be_asked_for() {
    beside_others(async {
        let (server, name) = (server(), name());
        let semaphore = client(&server).await.semaphore(&name, 2);
        for permits in [0, 3] {
            let error = semaphore.acquire_many(permits).await.unwrap_err();
            let Error::Invalid {
                what: "permits", ..
            } = error
            else {
                panic!("{error:?}")
            };
        }
        let _held = semaphore.acquire().await.unwrap();
        let waiting = tokio::spawn(semaphore.acquire_many(2).into_future());
        tokio::time::sleep(Duration::from_millis(100)).await;
        semaphore.set_permits(1).await.unwrap();
        // The one who now waits in vain is told, and stands in nobody's way.
        let told = tokio::time::timeout(Duration::from_secs(2), waiting).await;
        let error = told.expect("told").unwrap().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    });
}

#[test]
fn a_crashed_holder_s_permits_come_back_and_a_live_one_s_stay() {
    beside_others(async {
        let (server, name) = (server(), name());
        // The worker wants up to three at a time, and always finds them.
        let semaphore = client(&server).await.semaphore(&name, 4);
        let held = semaphore.acquire().await.unwrap();
        let mut worker = Worker::start(server.port(), LEASE);
        worker.tell(&format!("permits {name} 4 1000000 1"));
        worker.answer();
        worker.kill();
        let start = Instant::now();
        let rest = semaphore.acquire_many(3).wait(LEASE * 3).await.unwrap();
        assert!(ran_since(start) < LEASE + Duration::from_secs(1));
        tokio::time::sleep(LEASE * 2).await;
        held.check().unwrap();
        rest.check().unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
    });
}

#[test]
fn a_name_is_of_one_kind_at_a_time() {
    on_every_server(|server| async move {
        let client = builder_at(server.port()).connect().await.unwrap();
        let name = name();
        let held = client.semaphore(&name, 2).acquire().await.unwrap();
        let wrong = [
            client.mutex(&name).lock().await,
            client.fair_mutex(&name).lock().await,
            client.rw_lock(&name).read().await,
            client.rw_lock(&name).write().await.map(Into::into),
        ];
        for error in wrong {
            assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        }
        let error = client.latch(&name).state().await;
        assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        let _ = held.release().await.unwrap();
        let _held = client.mutex(&name).lock().await.unwrap();
        let error = client.semaphore(&name, 2).acquire().await;
        assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        eventually(Duration::from_secs(1), "no line is left", || {
            server.ask(&["KEYS", "leasehold:line:*"]).list().is_empty()
        })
        .await;
    });
}

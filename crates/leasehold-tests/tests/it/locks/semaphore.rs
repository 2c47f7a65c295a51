//! The semaphore: permits are conserved, whoever crashes, and the large are not passed by the small.

use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use testkit::Server;

use crate::support::worker::Worker;
use crate::support::{
    AMPLE, builder_at, client, eventually, key, name, nothing_is_left, on_every_server, owners,
    run, scaled, server, until_renewed,
};

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

/// Has `processes` take permits `count` times each, beside others that are killed one after the other, each after a
/// pause: while they hold and wait.
async fn conserve(processes: u64, victims: u64, count: u64, pause: Duration) {
    let (server, name) = (server(), name());
    let lease = Duration::from_secs(2);
    let mut readers = Vec::new();
    let mut killers = Vec::new();
    for process in 0..processes + victims {
        let mut worker = Worker::start(server.port(), lease);
        let dies = process >= processes;
        let count = if dies { 1_000_000 } else { count };
        worker.tell(&format!("permits {name} {PERMITS} {count} {process}"));
        if dies {
            killers.push(worker.killer());
        }
        readers.push(std::thread::spawn(move || read_all(worker)));
    }
    for killer in killers {
        tokio::time::sleep(pause).await;
        killer.kill();
    }
    let mut holdings = Vec::new();
    for reader in readers {
        holdings.extend(reader.join().unwrap());
    }
    println!("{} holdings", holdings.len());
    assert!(holdings.len() as u64 > processes * count / 2);
    let most = most_at_once(&holdings);
    assert!(most <= i64::from(PERMITS), "{most} permits at once");
    assert!(most > 1, "hardly any contention");
    let semaphore = client(&server).await.semaphore(&name, PERMITS);
    let all = semaphore
        .acquire_many(PERMITS)
        .timeout(AMPLE)
        .await
        .unwrap();
    assert_eq!(semaphore.permits().await.unwrap().held, PERMITS);
    let _ = all.release().await.unwrap();
    eventually("nothing is left", || nothing_is_left(&server)).await;
}

#[test]
fn permits_are_conserved_when_processes_crash() {
    run(conserve(3, 1, scaled(400), Duration::from_millis(500)));
}

#[test]
#[ignore = "deep: twelve processes for long"]
fn permits_are_conserved_by_eight_processes_that_crash() {
    let pause = Duration::from_millis(1500);
    run(conserve(8, 4, scaled(50_000) / 8, pause));
}

#[test]
fn the_counting_of_permits_at_once_can_fail() {
    assert_eq!(most_at_once(&[(1, 5, 2), (5, 9, 3), (6, 7, 1)]), 4);
    assert_eq!(most_at_once(&[(1, 5, 4), (4, 6, 3)]), 7);
}

/// Takes all permits `times` times while small requests never stop. Returns the longest wait.
async fn take_all_among_small(times: u64) -> Duration {
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
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        let held = large.acquire_many(4).timeout(AMPLE).await.unwrap();
        longest = longest.max(start.elapsed());
        let _ = held.release().await.unwrap();
    }
    for task in stream {
        task.abort();
    }
    longest
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    run(take_all_among_small(scaled(10)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn large_request_waits_no_longer_than_a_second() {
    let longest = run(take_all_among_small(20));
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

/// Raises and lowers the permits of a semaphore. Returns how long the waiter took for whom they were raised.
async fn raise_and_lower(server: &Server) -> Duration {
    let name = name();
    let semaphore = client(server).await.semaphore(&name, 2);
    let other = client(server).await.semaphore(&name, 2);
    let held = semaphore.acquire_many(2).await.unwrap();
    let waiting = tokio::spawn(other.acquire().into_future());
    eventually("waits", || owners(server, "queue", &name).len() == 1).await;
    assert!(!waiting.is_finished());
    let raised = Instant::now();
    semaphore.set_permits(3).await.unwrap();
    let third = tokio::time::timeout(AMPLE, waiting).await;
    let third = third.expect("let in").unwrap().unwrap();
    let took = raised.elapsed();
    semaphore.set_permits(1).await.unwrap();
    let permits = semaphore.permits().await.unwrap();
    assert_eq!((permits.total, permits.held, permits.waiters), (1, 3, 0));
    let _ = held.release().await.unwrap();
    assert!(other.try_acquire().await.unwrap().is_none(), "one is held");
    let _ = third.release().await.unwrap();
    let last = other.try_acquire().await.unwrap().expect("free");
    assert!(other.try_acquire().await.unwrap().is_none());
    let _ = last.release().await.unwrap();
    // It is remembered, but not for ever.
    let left = server.ask(&["PTTL", &key(&name)]).int();
    assert!(left > 29 * 86_400_000, "{left}");
    took
}

#[test]
fn permits_can_be_raised_and_lowered_while_in_use() {
    on_every_server(|server| async move { raise_and_lower(&server).await });
}

#[test]
#[ignore = "deep: measures a latency"]
fn raised_permits_reach_a_waiter_at_once() {
    on_every_server(|server| async move {
        let took = raise_and_lower(&server).await;
        assert!(took < Duration::from_millis(250), "not by push: {took:?}");
    });
}

#[test]
fn more_than_there_is_cannot_be_asked_for() {
    run(async {
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
        eventually("waits", || owners(&server, "queue", &name).len() == 1).await;
        semaphore.set_permits(1).await.unwrap();
        // The one who now waits in vain is told, and stands in nobody's way.
        let told = tokio::time::timeout(AMPLE, waiting).await;
        let error = told.expect("told").unwrap().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    });
}

/// Takes the permits of a process with this lease that was killed, beside a holder that lives. Returns how long that
/// took.
async fn take_from_the_crashed(lease: Duration) -> Duration {
    let (server, name) = (server(), name());
    // The worker wants up to three at a time, and always finds them.
    let semaphore = client(&server).await.semaphore(&name, 4);
    let held = semaphore.acquire().await.unwrap();
    let mut worker = Worker::start(server.port(), lease);
    worker.tell(&format!("permits {name} 4 1000000 1"));
    worker.answer();
    worker.kill();
    let start = Instant::now();
    let rest = semaphore.acquire_many(3).timeout(AMPLE).await.unwrap();
    let took = start.elapsed();
    until_renewed(&[held.lease(), rest.lease()]).await;
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    took
}

#[test]
fn a_crashed_holder_s_permits_come_back_and_a_live_one_s_stay() {
    run(take_from_the_crashed(Duration::from_secs(1)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn crashed_holder_keeps_permits_for_its_lease() {
    let lease = Duration::from_secs(2);
    let took = run(take_from_the_crashed(lease));
    assert!(took < lease + Duration::from_secs(1), "{took:?}");
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
        eventually("no line is left", || {
            server.ask(&["KEYS", "leasehold:queue:*"]).list().is_empty()
        })
        .await;
    });
}

//! Semaphores: crashes conserve permits, and small requests do not starve large
//! ones.

use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use testkit::{Server, ServerExt, Worker};

use crate::support::worker;
use crate::support::{
    AMPLE, client, connect_at, eventually, is_busy, key, name, on_every_server, only_counters_left,
    owners, run, scaled, server, wait_for_renewal,
};

const PERMITS: u32 = 6;

/// When a process held permits, from and until, and how many.
type HoldInterval = (u64, u64, i64);

/// Reads the replies of a worker until it is done or dead.
fn read_all(mut worker: Worker) -> Vec<HoldInterval> {
    let mut holds = Vec::new();
    while let Some(answer) = worker.reply_if_alive()
        && answer != "done"
    {
        let mut words = answer.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        let start = next();
        let end = next();
        holds.push((start, end, next() as i64));
    }
    holds
}

/// Returns the largest number of permits held at the same time.
fn max_concurrent(holds: &[HoldInterval]) -> i64 {
    let starts = holds.iter().map(|(start, _, weight)| (*start, *weight));
    let ends = holds.iter().map(|(_, end, weight)| (*end, -weight));
    let mut changes: Vec<_> = starts.chain(ends).collect();
    changes.sort_unstable();
    let mut held = 0;
    let levels = changes.iter().map(|(_, change)| {
        held += change;
        held
    });
    levels.max().unwrap_or(0)
}

/// Lets `processes` workers acquire permits `count` times each. Kills `victims`
/// more, one after each `pause`, while they hold permits and wait.
async fn conserve(processes: u64, victims: u64, count: u64, pause: Duration) {
    let server = server();
    let name = name();
    let lease = Duration::from_secs(2);
    let mut readers = Vec::new();
    let mut killers = Vec::new();
    for process in 0..processes + victims {
        let mut worker = worker::start(server.port(), lease);
        let dies = process >= processes;
        let count = if dies { 1_000_000 } else { count };
        worker.tell(&format!("permits {name} {PERMITS} {count} {process}"));
        if dies {
            killers.push(worker.remote());
        }
        readers.push(std::thread::spawn(move || read_all(worker)));
    }
    for killer in killers {
        tokio::time::sleep(pause).await;
        killer.kill();
    }
    let mut holds = Vec::new();
    for reader in readers {
        holds.extend(reader.join().unwrap());
    }
    println!("{} holds", holds.len());
    assert!(holds.len() as u64 > processes * count / 2);
    let most = max_concurrent(&holds);
    assert!(most <= i64::from(PERMITS), "{most} permits at once");
    assert!(most > 1, "hardly any contention");
    let semaphore = client(&server).await.semaphore(&name, PERMITS);
    let all = semaphore
        .acquire_many(PERMITS)
        .timeout(AMPLE)
        .await
        .unwrap();
    assert_eq!(semaphore.permits().await.unwrap().held, PERMITS);
    all.release().await.unwrap();
    eventually("only counters are left", || only_counters_left(&server)).await;
}

#[test]
fn crashing_processes_conserve_permits() {
    run(conserve(3, 1, scaled(400), Duration::from_millis(500)));
}

#[test]
#[ignore = "deep: twelve processes for long"]
fn eight_crashing_processes_conserve_permits() {
    let pause = Duration::from_millis(1500);
    run(conserve(8, 4, scaled(50_000) / 8, pause));
}

#[test]
fn permit_count_detects_excess() {
    assert_eq!(max_concurrent(&[(1, 5, 2), (5, 9, 3), (6, 7, 1)]), 4);
    assert_eq!(max_concurrent(&[(1, 5, 4), (4, 6, 3)]), 7);
}

/// Acquires all permits `times` times while small requests never stop. Returns
/// the longest wait.
async fn acquire_all_among_small(times: u64) -> Duration {
    let server = server();
    let name = name();
    let stream: Vec<_> = {
        let client = client(&server).await;
        let small = move |client: Client, name: String| async move {
            loop {
                let held = client.semaphore(&name, 4).acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
                held.release().await.unwrap();
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
        held.release().await.unwrap();
    }
    for task in stream {
        task.abort();
    }
    longest
}

#[test]
fn small_requests_do_not_starve_large_one() {
    run(acquire_all_among_small(scaled(10)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn large_request_waits_at_most_a_second() {
    let longest = run(acquire_all_among_small(20));
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

/// Raises and lowers the permits of a semaphore. Returns how long the waiter
/// waited after the raise.
async fn raise_and_lower(server: &Server) -> Duration {
    let name = name();
    let semaphore = client(server).await.semaphore(&name, 2);
    let other = client(server).await.semaphore(&name, 2);
    let held = semaphore.acquire_many(2).await.unwrap();
    let waiting = tokio::spawn(other.acquire().into_future());
    eventually("the waiter is queued", || {
        owners(server, "queue", &name).len() == 1
    })
    .await;
    assert!(!waiting.is_finished());
    let raised = Instant::now();
    semaphore.set_permits(3).await.unwrap();
    let third = tokio::time::timeout(AMPLE, waiting).await;
    let third = third
        .expect("the waiter acquires the permits")
        .unwrap()
        .unwrap();
    let took = raised.elapsed();
    semaphore.set_permits(1).await.unwrap();
    let permits = semaphore.permits().await.unwrap();
    assert_eq!((permits.total, permits.held, permits.waiters), (1, 3, 0));
    held.release().await.unwrap();
    let is_held = is_busy(other.try_acquire()).await;
    assert!(is_held, "a permit is held above the capacity");
    third.release().await.unwrap();
    let last = other.try_acquire().await.expect("free");
    assert!(is_busy(other.try_acquire()).await);
    last.release().await.unwrap();
    // The capacity persists, but not without end.
    let ttl = server.ask(&["PTTL", &key(&name)]).int();
    assert!(ttl > 29 * 86_400_000, "{ttl}");
    took
}

#[test]
fn set_permits_works_while_in_use() {
    on_every_server(|server| async move { raise_and_lower(&server).await });
}

#[test]
#[ignore = "deep: measures a latency"]
fn raised_permits_grant_waiter_promptly() {
    on_every_server(|server| async move {
        let took = raise_and_lower(&server).await;
        assert!(
            took < Duration::from_millis(250),
            "granted by polling after {took:?}"
        );
    });
}

#[test]
fn request_above_capacity_is_rejected() {
    run(async {
        let server = server();
        let name = name();
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
        eventually("the waiter is queued", || {
            owners(&server, "queue", &name).len() == 1
        })
        .await;
        semaphore.set_permits(1).await.unwrap();
        // A waiter whose request can no longer succeed gets an error and leaves
        // the queue.
        let outcome = tokio::time::timeout(AMPLE, waiting).await;
        let error = outcome.expect("the wait ends").unwrap().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    });
}

/// Acquires the permits of a killed process with this lease, beside a live
/// holder. Returns how long that took.
async fn acquire_after_crash(lease: Duration) -> Duration {
    let server = server();
    let name = name();
    // The worker requests up to three permits at a time, and three are free.
    let semaphore = client(&server).await.semaphore(&name, 4);
    let held = semaphore.acquire().await.unwrap();
    let mut worker = worker::start(server.port(), lease);
    worker.tell(&format!("permits {name} 4 1000000 1"));
    worker.answer();
    worker.kill();
    let start = Instant::now();
    let rest = semaphore.acquire_many(3).timeout(AMPLE).await.unwrap();
    let took = start.elapsed();
    wait_for_renewal(&[&held.lease(), &rest.lease()]).await;
    assert!(is_busy(semaphore.try_acquire()).await);
    took
}

#[test]
fn crashed_holder_frees_permits_and_live_one_keeps() {
    run(acquire_after_crash(Duration::from_secs(1)));
}

#[test]
#[ignore = "deep: measures a latency"]
fn crashed_holder_keeps_permits_for_its_lease() {
    let lease = Duration::from_secs(2);
    let took = run(acquire_after_crash(lease));
    assert!(took < lease + Duration::from_secs(1), "{took:?}");
}

#[test]
fn name_belongs_to_one_kind_at_a_time() {
    on_every_server(|server| async move {
        let client = connect_at(server.port()).await.unwrap();
        let name = name();
        let held = client.semaphore(&name, 2).acquire().await.unwrap();
        let wrong = [
            client.mutex(&name).lock().await.map(Into::into),
            client.fair_mutex(&name).lock().await.map(Into::into),
            client.rw_lock(&name).read().await,
            client.rw_lock(&name).write().await.map(Into::into),
        ];
        for error in wrong {
            assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        }
        let error = client.latch(&name).state().await;
        assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        held.release().await.unwrap();
        let _held = client.mutex(&name).lock().await.unwrap();
        let error = client.semaphore(&name, 2).acquire().await;
        assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        eventually("no queue is left", || {
            server.ask(&["KEYS", "leasehold:queue:*"]).list().is_empty()
        })
        .await;
    });
}

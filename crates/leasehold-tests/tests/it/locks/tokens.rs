//! Tokens are unique and increase, even when the server loses its data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use testkit::{ServerExt, Worker};

use crate::support::worker;
use crate::support::{name, run, scaled, server};

/// When a lock was held, from and until, and its token.
pub(crate) type Hold = (u64, u64, u64);

#[test]
fn tokens_increase_through_data_loss_and_crashes() {
    const WORKERS: u64 = 8;
    const LOSSES: u64 = 9;
    run(async {
        let mut server = server();
        let names: Vec<_> = (0..4).map(|_| name()).collect();
        let count = scaled(4_000) / WORKERS;
        let lease = Duration::from_secs(2);
        let mut workers: Vec<_> = (0..WORKERS)
            .map(|_| worker::start(server.port(), lease))
            .collect();
        for (number, worker) in workers.iter_mut().enumerate() {
            worker.tell(&format!("cycle {} {count}", names[number % names.len()]));
        }
        let seen = Arc::new(AtomicU64::new(0));
        let mut reading = Vec::new();
        for worker in workers {
            let seen = seen.clone();
            reading.push(std::thread::spawn(move || holds(worker, &seen)));
        }
        // Counted in holds, so that a fast machine loses data as often as a
        // slow one.
        for loss in 1..=LOSSES {
            while seen.load(Ordering::Relaxed) < loss * count * WORKERS / (LOSSES + 1) {
                std::thread::sleep(Duration::from_millis(5));
            }
            match loss % 3 {
                0 => server.tell(&["FLUSHALL"]),
                1 => server.restart().unwrap(),
                _ => server.tell(&["CLIENT", "KILL", "TYPE", "normal"]),
            }
        }
        let all: Vec<Vec<Hold>> = reading
            .into_iter()
            .map(|reading| reading.join().unwrap())
            .collect();
        let total: usize = all.iter().map(Vec::len).sum();
        assert_eq!(total as u64, count * WORKERS);
        check_uniqueness(&all);
        for lock in 0..names.len() {
            let of_lock = all.iter().skip(lock).step_by(names.len()).flatten();
            check_order(of_lock.copied().collect());
        }
    });
}

fn holds(mut worker: Worker, seen: &AtomicU64) -> Vec<Hold> {
    let mut holds = Vec::new();
    loop {
        let answer = worker.answer();
        let numbers: Vec<u64> = answer
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers.as_slice() {
            [start, end, token] => {
                holds.push((*start, *end, *token));
                seen.fetch_add(1, Ordering::Relaxed);
            }
            _ => return holds,
        }
    }
}

fn check_uniqueness(all: &[Vec<Hold>]) {
    let mut tokens: Vec<u64> = all.iter().flatten().map(|hold| hold.2).collect();
    tokens.sort_unstable();
    for pair in tokens.windows(2) {
        assert_ne!(pair[0], pair[1], "a token was issued twice");
    }
}

/// Checks that a hold that began after another ended has the larger token.
fn check_order(mut holds: Vec<Hold>) {
    let mut by_end = holds.clone();
    by_end.sort_unstable_by_key(|hold| hold.1);
    holds.sort_unstable();
    let mut ended = by_end.iter().peekable();
    let mut largest = 0;
    for (start, _, token) in holds {
        while let Some(earlier) = ended.next_if(|earlier| earlier.1 < start) {
            largest = largest.max(earlier.2);
        }
        assert!(token > largest, "token {token} after {largest}");
    }
}

#[test]
fn token_checks_detect_violations() {
    check_order(vec![(1, 2, 10), (3, 4, 11)]);
    assert!(std::panic::catch_unwind(|| check_order(vec![(1, 2, 11), (3, 4, 10)])).is_err());
    assert!(
        std::panic::catch_unwind(|| check_uniqueness(&[vec![(1, 2, 5)], vec![(1, 2, 5)]])).is_err()
    );
}

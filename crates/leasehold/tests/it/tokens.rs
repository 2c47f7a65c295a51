//! Tokens are unique and rise in the order of holding, whatever happens to the server's data.

use std::time::Duration;

use crate::support::{beside_others, name, scaled, server};
use crate::worker::Worker;

/// From when until when it was held, and its token.
pub(crate) type Holding = (u64, u64, u64);

#[test]
fn tokens_rise_over_loss_of_data_and_crashes() {
    const WORKERS: u64 = 8;
    beside_others(async {
        let mut server = server();
        let names: Vec<_> = (0..4).map(|_| name()).collect();
        let count = scaled(100_000) / WORKERS;
        let lease = Duration::from_secs(2);
        let mut workers: Vec<_> = (0..WORKERS)
            .map(|_| Worker::start(server.port(), lease))
            .collect();
        for (number, worker) in workers.iter_mut().enumerate() {
            worker.tell(&format!("cycle {} {count}", names[number % names.len()]));
        }
        let mut reading = Vec::new();
        for worker in workers {
            reading.push(std::thread::spawn(move || holdings(worker)));
        }
        let mut losses = 0;
        while reading.iter().any(|reading| !reading.is_finished()) {
            std::thread::sleep(Duration::from_millis(700));
            losses += 1;
            match losses % 3 {
                0 => server.tell(&["FLUSHALL"]),
                1 => server.restart(),
                _ => server.tell(&["CLIENT", "KILL", "TYPE", "normal"]),
            }
        }
        let all: Vec<Vec<Holding>> = reading
            .into_iter()
            .map(|reading| reading.join().unwrap())
            .collect();
        let total: usize = all.iter().map(Vec::len).sum();
        println!("{total} holdings, {losses} losses of data or connections");
        assert!(losses >= 6, "hardly anything was lost");
        check_uniqueness(&all);
        for lock in 0..names.len() {
            let of_lock = all.iter().skip(lock).step_by(names.len()).flatten();
            check_order(of_lock.copied().collect());
        }
    });
}

fn holdings(mut worker: Worker) -> Vec<Holding> {
    let mut holdings = Vec::new();
    loop {
        let answer = worker.answer();
        let numbers: Vec<u64> = answer
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers.as_slice() {
            [start, end, token] => holdings.push((*start, *end, *token)),
            _ => return holdings,
        }
    }
}

pub(crate) fn check_uniqueness(all: &[Vec<Holding>]) {
    let mut tokens: Vec<u64> = all.iter().flatten().map(|holding| holding.2).collect();
    tokens.sort_unstable();
    for pair in tokens.windows(2) {
        assert_ne!(pair[0], pair[1], "a token was given twice");
    }
}

/// Of two holdings of one lock, the one that began after the other had ended has the larger token.
pub(crate) fn check_order(mut holdings: Vec<Holding>) {
    let mut by_end = holdings.clone();
    by_end.sort_unstable_by_key(|holding| holding.1);
    holdings.sort_unstable();
    let mut ended = by_end.iter().peekable();
    let mut largest = 0;
    for (start, _, token) in holdings {
        while let Some(earlier) = ended.next_if(|earlier| earlier.1 < start) {
            largest = largest.max(earlier.2);
        }
        assert!(token > largest, "token {token} after {largest}");
    }
}

#[test]
fn the_checks_find_what_they_look_for() {
    check_order(vec![(1, 2, 10), (3, 4, 11)]);
    assert!(std::panic::catch_unwind(|| check_order(vec![(1, 2, 11), (3, 4, 10)])).is_err());
    assert!(
        std::panic::catch_unwind(|| check_uniqueness(&[vec![(1, 2, 5)], vec![(1, 2, 5)]])).is_err()
    );
}

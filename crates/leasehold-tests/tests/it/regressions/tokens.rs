//! Tokens that tasks of one process hand on to each other rise, also when the server loses its data meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Guard};
use testkit::Server;

use crate::support::{AMPLE, client, name, run, server};

const LOCKS: usize = 30;
const TASKS: usize = 300;

/// Each round of hand-ons took many more tokens than it used. The counter ran ahead of the server's clock, and after a
/// loss of data it started again at the clock, below tokens that were given before.
#[test]
fn tokens_rise_through_loss_of_data_under_pressure() {
    lose_data_under_pressure(2, Duration::from_secs(1));
}

#[test]
#[ignore = "deep: loses data a hundred times"]
fn tokens_rise_through_a_hundred_losses_of_data() {
    lose_data_under_pressure(100, Duration::from_millis(500));
}

/// What the tasks of one process have seen of one lock.
#[derive(Default)]
struct Seen {
    largest: u64,
    holdings: u64,
    /// A token that was not above the one before it.
    fallen: Option<(u64, u64)>,
}

type Lock = (String, Arc<Mutex<Seen>>);

fn lose_data_under_pressure(rounds: u32, pressure: Duration) {
    run(async {
        let server = server();
        let (crowd, other) = (client(&server).await, client(&server).await);
        let locks: Vec<Lock> = (0..LOCKS).map(|_| (name(), Arc::default())).collect();
        let mut tasks = Vec::new();
        for (number, lock) in locks.iter().enumerate() {
            for _ in 0..TASKS {
                tasks.push(tokio::spawn(hold(crowd.clone(), number, lock.clone())));
            }
        }
        for _ in 0..rounds {
            tokio::time::sleep(pressure).await;
            lose_data(&server, &other, &locks).await;
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for (name, seen) in &locks {
            let seen = seen.lock().unwrap();
            println!("{name}: {} holdings", seen.holdings);
            assert_eq!(seen.fallen, None, "{name}");
            assert!(seen.holdings > 0, "{name}");
        }
    });
}

/// Loses all data of the server. Who holds a lock next has a larger token than who held it before.
async fn lose_data(server: &Server, other: &Client, locks: &[Lock]) {
    let largest = |(_, seen): &Lock| seen.lock().unwrap().largest;
    let before: Vec<_> = locks.iter().map(largest).collect();
    server.tell(&["FLUSHALL"]);
    for number in [0, 1] {
        let guard = acquire(other, number, &locks[number].0).await;
        let (token, before) = (guard.token().as_u64(), before[number]);
        assert!(token > before, "{token} after {before}");
    }
}

async fn acquire(client: &Client, number: usize, name: &str) -> Guard {
    let lock = match number % 2 {
        0 => client.mutex(name).lock(),
        _ => client.fair_mutex(name).lock(),
    };
    lock.timeout(AMPLE).await.unwrap()
}

/// Holds the lock again and again.
async fn hold(client: Client, number: usize, (name, seen): Lock) {
    loop {
        let guard = acquire(&client, number, &name).await;
        {
            let mut seen = seen.lock().unwrap();
            let token = guard.token().as_u64();
            // A guard that is valid now is the only one of this process.
            if guard.check().is_ok() {
                let before = std::mem::replace(&mut seen.largest, token);
                if token <= before {
                    seen.fallen.get_or_insert((before, token));
                }
                seen.holdings += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(guard);
    }
}

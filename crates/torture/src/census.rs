//! How many connections the workers have to each server, counted again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::{Connection, Reply};

const TICK: Duration = Duration::from_millis(100);

/// Counts until it is ended.
pub(crate) struct Census {
    over: Arc<AtomicBool>,
    seen: JoinHandle<Vec<u64>>,
}

impl Census {
    pub(crate) fn start(ports: Vec<u16>) -> Self {
        let over = Arc::<AtomicBool>::default();
        let is_over = over.clone();
        let seen = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                seen.extend(ports.iter().filter_map(|port| count(*port)));
                std::thread::sleep(TICK);
            }
            seen
        });
        Self { over, seen }
    }

    /// Every count of one server.
    pub(crate) fn end(self) -> Vec<u64> {
        self.over.store(true, Ordering::Relaxed);
        self.seen.join().unwrap_or_default()
    }
}

/// The connections of workers to the server on a port, if it answers.
fn count(port: u16) -> Option<u64> {
    let answer = Connection::open(port).and_then(|mut it| it.ask(&["CLIENT", "LIST"]));
    let Ok(Reply::Text(list)) = answer else {
        return None;
    };
    let of_workers = list.lines().filter(|line| line.contains(" user=worker "));
    Some(of_workers.count() as u64)
}

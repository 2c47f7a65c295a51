//! Counts the workers' connections to each server, periodically.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::{Connection, Reply};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that counts connections until it is stopped.
pub(crate) struct ConnectionCounter {
    stop: Arc<AtomicBool>,
    counts: JoinHandle<Vec<u64>>,
}

impl ConnectionCounter {
    pub(crate) fn start(ports: Vec<u16>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let counts = std::thread::spawn(move || {
            let mut counts = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                counts.extend(ports.iter().filter_map(|port| count(*port)));
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            counts
        });
        Self { stop, counts }
    }

    /// Stops counting, and returns every count of a single server.
    pub(crate) fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.counts.join().unwrap_or_default()
    }
}

/// Counts the workers' connections to the server on `port`. Returns `None` if
/// the server does not reply.
fn count(port: u16) -> Option<u64> {
    let reply = Connection::open(port).and_then(|mut it| it.ask(&["CLIENT", "LIST"]));
    let Ok(Reply::Text(list)) = reply else {
        return None;
    };
    let of_workers = list.lines().filter(|line| line.contains(" user=worker "));
    Some(of_workers.count() as u64)
}

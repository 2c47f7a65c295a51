//! The metrics of clients of real servers, as Prometheus scrapes them.
//!
//! Every test has its own recorder, so tests do not disturb each other.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod acquires;
mod cost;
mod holds;
mod labels;
mod network;
mod scrape;
mod stress;

use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Guard};
use leasehold_metrics::Metrics;
use testkit::{Flavor, Server};

use crate::scrape::Registry;

/// The lease of a holder that must keep its lock.
const LEASE: Duration = Duration::from_secs(10);

/// A lease or timeout that a test waits out.
const SHORT: Duration = Duration::from_millis(300);

/// The limit of an event that must happen. Only a defect reaches it.
const AMPLE: Duration = Duration::from_secs(60);

fn server() -> Server {
    Flavor::one().start()
}

fn connect(port: u16) -> Connect {
    Client::connect(&format!("redis://127.0.0.1:{port}/"))
        .lease(LEASE)
        .request_timeout(LEASE / 2)
        .connect_timeout(LEASE)
}

/// Returns a client with metrics, and their registry.
async fn observed(port: u16) -> (Client, Registry) {
    let (metrics, registry) = Registry::new(Metrics::builder());
    let client = connect(port).observe(metrics.observer()).await.unwrap();
    (client, registry)
}

async fn release(guard: Guard) {
    guard.release().await.unwrap();
}

fn run<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

/// Waits until `condition` holds. Panics if it does not within [`AMPLE`].
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < AMPLE, "not within {AMPLE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

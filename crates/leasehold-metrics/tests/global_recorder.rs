//! The global recorder: it also receives the events of the keeper's thread,
//! which a recorder of one thread misses.
//!
//! One test only, because a process has one global recorder.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::time::Duration;

use leasehold::{Client, Loss};
use leasehold_metrics::{HOLD_DURATION, LOST, Metrics};
use metrics_exporter_prometheus::PrometheusBuilder;
use testkit::{Flavor, Server};

/// Survives a two-second stall of the machine.
const LEASE: Duration = Duration::from_secs(10);

/// The limit of an event that must happen. Only a defect reaches it.
const AMPLE: Duration = Duration::from_secs(60);

/// Loses a lock in the keeper's thread: the shutdown takes it from its holder.
/// A lease that expires may be reported by the holder's thread instead.
async fn lose(server: &Server, metrics: &Metrics) {
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let client = Client::connect(&url)
        .observe(metrics.observer())
        .lease(LEASE)
        .request_timeout(LEASE / 2)
        .connect_timeout(LEASE)
        .await
        .unwrap();
    let guard = client.mutex("job").lock().await.unwrap();
    client.shutdown(AMPLE).await.unwrap();
    assert_eq!(guard.lost().await, Some(Loss::ShutDown));
}

/// Returns the number of lost locks in the text of a scrape.
fn lost(text: &str) -> u64 {
    let samples = text.lines().filter(|line| line.starts_with(LOST));
    let values = samples.map(|line| line.rsplit(' ').next().unwrap());
    values.map(|value| value.parse::<u64>().unwrap()).sum()
}

#[test]
fn only_the_global_recorder_sees_the_keeper() {
    let server = Flavor::one().start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();

    let local = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&local, || {
        runtime.block_on(lose(&server, &Metrics::new()));
    });
    // The caller's thread registered the counters of the lock, and the keeper's
    // thread the histogram of lost holds.
    let text = local.handle().render();
    assert_eq!(lost(&text), 1, "{text}");
    assert!(!text.contains(HOLD_DURATION), "{text}");

    let global = PrometheusBuilder::new().install_recorder().unwrap();
    runtime.block_on(lose(&server, &Metrics::new()));
    let text = global.render();
    assert_eq!(lost(&text), 1, "{text}");
    assert!(text.contains(HOLD_DURATION), "{text}");
}

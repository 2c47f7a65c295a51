//! A service that exports the metrics of its locks to Prometheus.
//!
//! Tasks contend for a mutex, a fair mutex and a semaphore. Some of them give
//! up, and some hold for longer than they may. One task keeps its lock.
//! `/metrics` serves the result:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --release -- 127.0.0.1:9090
//! curl http://127.0.0.1:9090/metrics
//! ```
//!
//! The orders have 20 names, but one label: `lock="order:*"`.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use leasehold::Client;
use leasehold_metrics::{BUCKETS, Metrics};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::time::sleep;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Handles belong to the recorder that is installed when they are
    // registered, so it comes before the client.
    let prometheus = install_recorder()?;
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(&url)
        .observe(Metrics::new().observer())
        .await?;
    for worker in 0..8 {
        tokio::spawn(contend(client.clone(), worker));
    }
    tokio::spawn(own_shard(client));

    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:9090");
    let render = move || async move { prometheus.render() };
    let service = Router::new().route("/metrics", get(render));
    axum::serve(TcpListener::bind(address).await?, service).await?;
    Ok(())
}

fn install_recorder() -> Result<PrometheusHandle, BoxError> {
    let mut builder = PrometheusBuilder::new();
    for &(name, buckets) in BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
    }
    let handle = builder.install_recorder()?;
    // Moves recorded values into their buckets, also while nothing scrapes.
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Takes locks until the process ends.
async fn contend(client: Client, worker: u64) {
    for round in worker.. {
        let outcome = match round % 4 {
            0 => order(&client, round % 20).await,
            1 => report(&client).await,
            2 => upload(&client).await,
            _ => overrun(&client).await,
        };
        if let Err(error) = outcome {
            eprintln!("worker {worker}: {error}");
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Keeps one lock for as long as it can, as the owner of a shard does. Its
/// renewals fill the histogram of the lease margin.
async fn own_shard(client: Client) {
    loop {
        let lock = client.mutex("shard-owner").lock();
        match lock.lease(Duration::from_secs(3)).await {
            Ok(guard) => eprintln!("lost the shard: {:?}", guard.lost().await),
            Err(error) => eprintln!("no shard: {error}"),
        }
    }
}

async fn order(client: &Client, id: u64) -> Result<(), leasehold::Error> {
    let mutex = client.mutex(&format!("order:{id}"));
    mutex.run(|_| sleep(Duration::from_millis(2))).await
}

/// Gives up soon, as a request with a deadline does.
async fn report(client: &Client) -> Result<(), leasehold::Error> {
    let lock = client.fair_mutex("nightly-report").lock();
    match lock.timeout(Duration::from_millis(50)).await {
        Ok(_guard) => sleep(Duration::from_millis(30)).await,
        Err(leasehold::Error::Timeout { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn upload(client: &Client) -> Result<(), leasehold::Error> {
    let _permit = client.semaphore("uploads", 3).acquire().await?;
    sleep(Duration::from_millis(25)).await;
    Ok(())
}

/// Holds a lock for longer than `at_most` allows, and loses it.
async fn overrun(client: &Client) -> Result<(), leasehold::Error> {
    let lock = client.mutex("overrun").try_lock();
    // Not much shorter: the last renewals would have a margin of a few
    // milliseconds, and the alert for late renewals would fire.
    match lock.at_most(Duration::from_millis(500)).await {
        Ok(_guard) => sleep(Duration::from_millis(600)).await,
        Err(leasehold::Error::Busy { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

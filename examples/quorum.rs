//! A lock that survives the loss of one of three servers.
//!
//! Start three servers, bootstrap them once, and run the example:
//!
//! ```sh
//! nodes="redis://127.0.0.1:7001 redis://127.0.0.1:7002 redis://127.0.0.1:7003"
//! cargo run -p examples --bin quorum -- bootstrap $nodes
//! cargo run -p examples --bin quorum -- $nodes
//! ```
//!
//! The example holds a lock. Press Enter to confirm that a majority still
//! stores it, stop a server, and press Enter again. Ctrl-D releases the lock.

use std::error::Error;
use std::time::Duration;

use leasehold::{Connect, Quorum};
use tokio::io::{AsyncBufReadExt, BufReader};

const LEASE: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    match nodes.split_first() {
        Some((first, nodes)) if first == "bootstrap" => bootstrap(nodes).await,
        _ => hold(&nodes).await,
    }
}

/// The default timeouts suit servers in one region. These also suit a busy
/// machine.
fn settings(nodes: &[String]) -> Connect<Quorum> {
    Quorum::connect(nodes)
        .connect_timeout(Duration::from_secs(10))
        .request_timeout(Duration::from_secs(5))
}

/// Allows the servers to vote. Do not call it while locks are held.
async fn bootstrap(nodes: &[String]) -> Result<(), BoxError> {
    settings(nodes).bootstrap().await?;
    println!("{} servers vote", nodes.len());
    Ok(())
}

/// Holds a lock until the input ends.
async fn hold(nodes: &[String]) -> Result<(), BoxError> {
    let quorum = settings(nodes).await?;
    let settlement = quorum.mutex("settlement");
    let guard = settlement.lock().lease(LEASE).await?;
    println!("acquired with token {}", guard.token());

    let mut input = BufReader::new(tokio::io::stdin()).lines();
    while input.next_line().await?.is_some() {
        // The client renews the lease in the background as well.
        guard.extend(LEASE).await?;
        println!("confirmed by a majority");
    }

    // Fails if the lease was lost before.
    guard.release().await?;
    println!("released");
    let guard = settlement.lock().await?;
    println!("acquired again with token {}", guard.token());
    quorum.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

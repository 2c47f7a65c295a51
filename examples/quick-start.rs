//! Writes a price list under a lock and a fence; the first example of the
//! README.
//!
//! ```sh
//! cargo run -p examples --bin quick-start
//! ```

use std::error::Error;
use std::time::Duration;

use leasehold::Client;
use leasehold_fence::Fence;
use leasehold_fence::redis::FencedWrite;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = "redis://127.0.0.1/";
    let client = Client::connect(url).await?;
    let server = redis::Client::open(url)?;
    let mut shop = server.get_multiplexed_async_connection().await?;

    // Waits for at most 5 s. The lease is renewed while we hold the guard.
    let mutex = client.mutex("prices");
    let guard = mutex.lock().timeout(Duration::from_secs(5)).await?;
    let prices = "coupon 5 EUR"; // Stands for work that takes minutes.

    // The shop rejects it if a later holder has written. Word 1 is a key.
    let fence = Fence::of(&guard);
    let write = FencedWrite::new(&fence, "fence:prices").command(["SET", "prices", prices], [1]);
    let mut script = redis::Cmd::new();
    let written = script.arg(write.eval()).exec_async(&mut shop).await;
    written.map_err(|error| write.error(error))?;
    println!("wrote the prices with token {}", guard.token());

    guard.release().await?; // Fails if the lease was lost; the write stays.
    Ok(())
}

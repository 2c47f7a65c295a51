//! A lock that Java services acquire with Redisson, as
//! `redisson.getLock("invoice:42")`.
//!
//! The Java side is `interop/redisson/src/main/java/leasehold/Invoice.java`.
//! Run both, in two terminals, and press Enter to release the lock:
//!
//! ```sh
//! interop/redisson/build
//! cargo run -p examples --bin redisson
//! java=interop/redisson/target/4
//! java -cp "$java/classes:$java/lib/*" leasehold.Invoice
//! ```

use std::error::Error;
use std::time::Duration;

use leasehold::Client;
use tokio::io::{AsyncBufReadExt, BufReader};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let invoice = client.redisson().lock("invoice:42");

    if let Some(holder) = invoice.holder().await? {
        println!("waiting for {holder}");
    }
    let guard = invoice.lock().await?;
    println!("acquired");
    BufReader::new(tokio::io::stdin())
        .lines()
        .next_line()
        .await?;
    // Fails if the lease was lost before.
    guard.release().await?;
    println!("released");

    client.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

//! Shares a lock with Java services that call
//! `redisson.getLock("invoice:42")`.

use leasehold::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    let invoice = client.redisson().lock("invoice:42");
    if let Some(holder) = invoice.holder().await? {
        println!("waiting for {holder}");
    }
    let guard = invoice.lock().await?;
    println!("no Java service holds the lock now");
    let _ = guard.release().await?;
    Ok(())
}

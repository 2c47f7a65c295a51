//! Acquires a lock that survives the loss of one of three servers.
//!
//! The URLs of the servers are the arguments. Pass `--bootstrap` first, once,
//! before the servers are used.

use leasehold::{Error, Quorum};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.first().is_some_and(|word| word == "--bootstrap") {
        return Quorum::builder(urls.split_off(1)).bootstrap().await;
    }
    let quorum = Quorum::connect(urls).await?;
    let guard = quorum.mutex("coupon:42").lock().await?;
    println!("acquired with token {}", guard.token());
    let _ = guard.release().await?;
    Ok(())
}

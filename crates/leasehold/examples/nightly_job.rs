//! Runs a job once, although several hosts start it at the same time by clocks
//! that differ.

use std::time::Duration;

use leasehold::{Client, Error};

/// Longer than the clocks of the hosts differ.
const AT_LEAST: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    let job = client.mutex("nightly-import");
    match job.try_lock().at_least(AT_LEAST).await? {
        Some(guard) => {
            println!("importing");
            let _ = guard.release().await?;
        }
        None => println!("another host runs the job, or has just run it"),
    }
    Ok(())
}

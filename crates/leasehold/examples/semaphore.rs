//! Limits the number of concurrent downloads of all processes to three.

use leasehold::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    let downloads = client.semaphore("downloads", 3);
    let tasks: Vec<_> = (1..=10)
        .map(|number| {
            let downloads = downloads.clone();
            tokio::spawn(async move {
                let permit = downloads.acquire().await?;
                println!("download {number}");
                permit.release().await
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await.expect("no task panics")?;
    }
    Ok(())
}

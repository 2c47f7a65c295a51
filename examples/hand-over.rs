//! A request handler takes a lock, and a worker process finishes the job under
//! it. No other client can acquire the lock in between.
//!
//! ```sh
//! cargo run -p examples --bin hand-over
//! ```

use std::error::Error;
use std::process::Stdio;
use std::time::Duration;

use leasehold::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// How long the handed-over lock is held for a worker that has not started.
const WITHIN: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    match std::env::args().nth(1).as_deref() {
        Some("worker") => finish_job(&client).await?,
        _ => handle_request(&client).await?,
    }
    client.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Checks the request under the lock, and leaves the rest to a worker.
async fn handle_request(client: &Client) -> Result<(), BoxError> {
    let guard = client.mutex("export:7").lock().await?;
    println!("accepted `{}` with token {}", guard.name(), guard.token());
    let ticket = guard.hand_over(WITHIN).await?;

    let mut worker = Command::new(std::env::current_exe()?)
        .arg("worker")
        .stdin(Stdio::piped())
        .spawn()?;
    // Not as an argument: every user of the machine can list those.
    let mut input = worker.stdin.take().ok_or("the worker has no input")?;
    input.write_all(ticket.to_string().as_bytes()).await?;
    drop(input);
    match worker.wait().await? {
        status if status.success() => Ok(()),
        status => Err(format!("the worker failed: {status}").into()),
    }
}

/// Adopts the lock, and releases it when the job is done.
async fn finish_job(client: &Client) -> Result<(), BoxError> {
    let mut ticket = String::new();
    tokio::io::stdin().read_to_string(&mut ticket).await?;
    let guard = client.adopt(&ticket.parse()?).await?;
    println!("finished `{}` with token {}", guard.name(), guard.token());
    guard.release().await?;
    Ok(())
}

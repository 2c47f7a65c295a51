//! A request handler takes a lock, and a worker process finishes the job under
//! it. No other client can acquire the lock in between.

use std::io::{Write, read_to_string, stdin};
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::Client;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    match std::env::args().nth(1).as_deref() {
        Some("worker") => finish_job(&client).await?,
        _ => handle_request(&client).await?,
    }
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Checks the request under the lock, and leaves the rest to a worker.
async fn handle_request(client: &Client) -> Result<()> {
    let guard = client.mutex("export:7").lock().await?;
    println!("accepted with token {}", guard.token());
    // The worker has 30 s to start.
    let ticket = guard.hand_over(Duration::from_secs(30)).await?;
    let program = std::env::current_exe()?;
    let mut worker = Command::new(program)
        .arg("worker")
        .stdin(Stdio::piped())
        .spawn()?;
    // Not as an argument: every user of the machine can list those.
    let mut input = worker.stdin.take().expect("piped");
    input.write_all(ticket.to_string().as_bytes())?;
    drop(input);
    worker.wait()?;
    Ok(())
}

async fn finish_job(client: &Client) -> Result<()> {
    let ticket = read_to_string(stdin())?.parse()?;
    let guard = client.adopt(&ticket).await?;
    println!("finished `{}` with token {}", guard.name(), guard.token());
    let _ = guard.release().await?;
    Ok(())
}

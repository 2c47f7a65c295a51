//! Runs a job once per minute, however many hosts start it.
//!
//! Start it on several hosts, or several times: one of them runs the job, the
//! others print which host has run it.
//!
//! ```sh
//! cargo run --example once
//! ```

use std::time::Duration;

use leasehold::{Client, Error, OnceOutcome, Tick};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    let tick = Tick::now(Duration::from_secs(60));
    let report = client.once("noon-report", tick);
    match report.run(|lease| async move { lease.token() }).await? {
        OnceOutcome::Ran(token) => println!("ran with token {token}"),
        OnceOutcome::AlreadyRan(run) => println!(
            "process {:?} on {:?} has run it: {:?}",
            run.pid, run.host, run.report
        ),
        _ => println!("the job is busy"),
    }
    Ok(())
}

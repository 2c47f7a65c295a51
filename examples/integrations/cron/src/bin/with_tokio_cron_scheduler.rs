//! A job of tokio-cron-scheduler that runs on one of the hosts that schedule
//! it.
//!
//! The scheduler starts the job when the clock of this host reaches the tick,
//! so the current tick of this clock is the one to run. Run it in several
//! terminals:
//!
//! ```sh
//! cargo run --bin with_tokio_cron_scheduler
//! ```

use std::error::Error;
use std::time::Duration;

use leasehold::{Client, OnceOutcome, Tick};
use tokio_cron_scheduler::{Job, JobScheduler};

/// The time between two ticks of the schedule.
const PERIOD: Duration = Duration::from_secs(5);

async fn report(client: Client) -> Result<(), leasehold::Error> {
    let tick = Tick::now(PERIOD);
    let number = tick.number();
    let job = client.once("report", tick);
    match job.run(|lease| async move { lease.token() }).await? {
        OnceOutcome::Ran(token) => println!("tick {number}: reported with token {token}"),
        OnceOutcome::AlreadyRan(run) => {
            println!("tick {number}: process {:?} has reported", run.process.pid)
        }
        _ => println!("tick {number}: busy"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;
    let scheduler = JobScheduler::new().await?;
    let job = Job::new_async("0/5 * * * * *", move |_id, _scheduler| {
        let client = client.clone();
        Box::pin(async move {
            if let Err(error) = report(client).await {
                eprintln!("the report failed: {error}");
            }
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    std::future::pending().await
}

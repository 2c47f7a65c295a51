//! A job of apalis-cron that runs on one of the hosts that schedule it.
//!
//! The scheduler passes the time for which it started the job. All hosts get
//! the same time, so they compute the same tick. Run it in several terminals:
//!
//! ```sh
//! cargo run --bin with_apalis
//! ```

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use apalis::prelude::{BoxDynError, Data, WorkerBuilder};
use apalis_cron::CronScheduler;
use cron_expression::Schedule;
use leasehold::{Client, OnceOutcome, Tick};

/// The time between two ticks of the schedule.
const PERIOD: Duration = Duration::from_secs(5);

async fn report(tick: apalis_cron::Tick, client: Data<Client>) -> Result<(), BoxDynError> {
    let scheduled = SystemTime::UNIX_EPOCH + Duration::from_secs(tick.get_timestamp());
    let tick = Tick::at(scheduled, PERIOD);
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
async fn main() -> Result<(), BoxDynError> {
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url).await?;
    let schedule = Schedule::from_str("0/5 * * * * *")?;
    WorkerBuilder::new("report")
        .backend(CronScheduler::new(schedule))
        .data(client)
        .build(report)
        .run()
        .await?;
    Ok(())
}

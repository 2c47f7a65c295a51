//! A draw that takes place once a day, although ten instances start it at noon.
//!
//! ```sh
//! cargo run -p examples --bin noon-lottery
//! ```
//!
//! The process starts ten more, as schedulers on ten hosts would. All of them
//! try to draw for the same day. One draws; the server records the day, so a
//! second run on the same day draws nothing.
//!
//! A lock alone does not suffice: an instance that starts late would find it
//! free and draw again. `try_lock().at_least(duration)` helps only if the
//! clocks differ by less than that duration.

use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, Once, OnceOutcome, Tick};
use tokio::process::Command;

const INSTANCES: u32 = 10;
const TICKETS: u64 = 1000;

/// The time between two draws.
const PERIOD: Duration = Duration::from_secs(86_400);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => start_instances(&client).await?,
        [name, time] => draw(name, lottery(&client, time.parse()?)).await?,
        _ => return Err("usage: noon-lottery [NAME TIME]".into()),
    }
    client.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Returns the draw of the day that contains `time`, in seconds since 1970.
///
/// The scheduler passes the time for which it starts the draw, so that every
/// instance draws for the same day. A host that has only its own clock uses
/// `Tick::now(PERIOD)`.
fn lottery(client: &Client, time: u64) -> Once {
    let time = UNIX_EPOCH + Duration::from_secs(time);
    client.once("lottery", Tick::at(time, PERIOD))
}

// ANCHOR: draw
/// Draws, unless an instance has drawn on this day or is drawing.
async fn draw(name: &str, lottery: Once) -> Result<(), BoxError> {
    match lottery.note(name).start().await? {
        OnceOutcome::Ran(run) => {
            let ticket = RandomState::new().build_hasher().finish() % TICKETS;
            let token = run.lease().token();
            println!("{name} drew ticket {ticket} with token {token}");
            // The other instances can read the report.
            run.finish(&format!("ticket {ticket}")).await?;
        }
        OnceOutcome::AlreadyRan(run) => eprintln!("{name}: {:?} has drawn", run.process.note),
        _ => eprintln!("{name}: another instance is drawing"),
    }
    Ok(())
}
// ANCHOR_END: draw

/// Starts ten instances at once, and prints what they have done.
async fn start_instances(client: &Client) -> Result<(), BoxError> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let program = std::env::current_exe()?;
    let start = |number: u32| {
        let mut instance = Command::new(&program);
        instance.args([format!("instance {number}"), time.to_string()]);
        instance.stdout(Stdio::piped()).stderr(Stdio::null());
        instance.kill_on_drop(true).spawn()
    };
    let instances: Vec<_> = (1..=INSTANCES).map(start).collect::<Result<_, _>>()?;
    let mut draws = 0;
    for instance in instances {
        let output = instance.wait_with_output().await?;
        if !output.status.success() {
            return Err(format!("an instance failed: {}", output.status).into());
        }
        draws += usize::from(!output.stdout.is_empty());
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    println!("{INSTANCES} instances, {draws} drew");

    match lottery(client, time).last().await? {
        Some(run) => match (run.process.note, run.report) {
            (Some(name), Some(report)) => println!("recorded: {name} drew {report}"),
            // No instance repeats the draw. An operator has to decide.
            (name, _) => println!("the draw of {name:?} has not ended, or it crashed"),
        },
        None => println!("no draw is recorded"),
    }
    Ok(())
}

//! A batch of unknown length that must not run twice.
//!
//! ```sh
//! printf '%s\n' 'invoice-1 30' 'invoice-2 20' | cargo run -p examples --bin dawn-batch
//! ```
//!
//! The batch posts rows from standard input to a ledger until the input ends.
//! Four things protect the ledger:
//!
//! - A second process does not wait, and prints which process runs the batch.
//! - The lease is renewed for as long as the batch runs. If it is lost, `run`
//!   drops the batch at its next await point.
//! - `at_most` ends the lease of a batch that hangs. The first argument sets it
//!   in seconds; it is an hour by default.
//! - Each write carries the lease's token. A process that was paused for
//!   longer than its lease cannot write after its successor has.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Client, Lease};
use leasehold_fence::Fence;
use leasehold_fence::redis::FencedWrite;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc::{Receiver, channel};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let limit = std::env::args().nth(1).unwrap_or("3600".to_owned());
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let ledger = open_ledger(&url).await?;

    let batch = client.mutex("dawn-batch").try_lock();
    let batch = batch
        .at_most(Duration::from_secs(limit.parse()?))
        .note("posts invoices");
    let outcome = batch.run(|lease| post_rows(lease, ledger, rows())).await;
    client.shutdown(Duration::from_secs(5)).await?;

    match outcome {
        Ok(Ok(count)) => println!("posted {count} rows"),
        Err(leasehold::Error::Busy {
            holder: Some(holder),
            ..
        }) => println!("the batch is already running: {holder}"),
        // A write failed, or was rejected since another holder has written.
        Ok(Err(error)) => {
            println!("stopped: {error}");
            return Ok(ExitCode::FAILURE);
        }
        // The lease was lost, and the batch was dropped.
        Err(error) => {
            println!("stopped: {error}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects to the ledger, which is on the same server here.
async fn open_ledger(url: &str) -> Result<MultiplexedConnection, BoxError> {
    let server = redis::Client::open(url)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(5)));
    let connection = server.get_multiplexed_async_connection_with_config(&config);
    Ok(connection.await?)
}

/// Posts rows until there are no more, and returns their number.
async fn post_rows(
    lease: Lease,
    mut ledger: MultiplexedConnection,
    mut rows: Receiver<String>,
) -> Result<u64, BoxError> {
    println!("started with token {}", lease.token());
    let fence = Fence::of(&lease);
    let mut count = 0;
    while let Some(row) = rows.recv().await {
        let (invoice, amount) = row.split_once(' ').ok_or("a row is `INVOICE AMOUNT`")?;
        post(&mut ledger, &fence, invoice, amount).await?;
        println!("posted {row}");
        count += 1;
    }
    Ok(count)
}

// ANCHOR: post
/// Posts one row, unless a later holder has written. A batch that starts over
/// can repeat it.
async fn post(
    ledger: &mut MultiplexedConnection,
    fence: &Fence,
    invoice: &str,
    amount: &str,
) -> Result<(), BoxError> {
    let write = FencedWrite::new(fence, "fence:{ledger}")
        .command(["HSET", "{ledger}:invoices", invoice, amount], [1]);
    let mut script = redis::Cmd::new();
    let written = script.arg(write.eval()).exec_async(ledger).await;
    written.map_err(|error| write.error(error))?;
    Ok(())
}
// ANCHOR_END: post

/// Returns the lines of the input. The thread that reads them does not delay
/// the exit, as a read of tokio's `stdin` would.
fn rows() -> Receiver<String> {
    let (sender, receiver) = channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

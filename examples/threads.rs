//! Work under a lock on plain threads, which stop when the lock is lost.
//!
//! ```sh
//! cargo run -p examples --bin threads
//! ```
//!
//! There is no async code: `wait` blocks where a task would use `.await`.

use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use leasehold::{Client, Error, Lease};

const PARTS: usize = 4;
const ROWS: usize = 1000;

fn main() -> Result<(), Error> {
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).wait()?;
    let import = client.mutex("import");
    let guard = import.lock().timeout(Duration::from_secs(5)).wait()?;
    guard.on_lost(|loss| eprintln!("stopping: {loss}"));
    println!("importing with token {}", guard.token());

    let rows = std::thread::scope(|scope| {
        let start = |_| {
            let lease = guard.lease();
            scope.spawn(move || import_part(&lease))
        };
        let parts: Vec<_> = (0..PARTS).map(start).collect();
        let join =
            |part: ScopedJoinHandle<_>| part.join().unwrap_or_else(|panic| resume_unwind(panic));
        parts.into_iter().map(join).sum::<usize>()
    });

    println!("imported {rows} rows in {PARTS} threads");
    match guard.release().wait() {
        Ok(()) => println!("held until the end"),
        Err(Error::Lost { loss, .. }) => println!("start over: {loss}"),
        Err(error) => return Err(error),
    }
    client.shutdown(Duration::from_secs(5)).wait()
}

/// Imports one part, and returns the number of rows.
///
/// The library cannot stop a thread, so the thread checks before each row.
fn import_part(lease: &Lease) -> usize {
    let held = (0..ROWS).take_while(|_row| lease.check().is_ok());
    held.count()
}

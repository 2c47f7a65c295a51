//! Work under a lock on plain threads, which stop when the lock is lost.
//!
//! ```sh
//! cargo run -p examples --bin blocking
//! ```

use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use leasehold::blocking::{Client, LostSignal};
use leasehold::{Error, ReleaseOutcome};

const PARTS: usize = 4;
const ROWS: usize = 1000;

fn main() -> Result<(), Error> {
    let client = Client::builder(&examples::url())
        .connect_timeout(examples::CONNECT_TIMEOUT)
        .request_timeout(examples::REQUEST_TIMEOUT)
        .connect()?;
    let import = client.mutex("import");
    let guard = import.lock().timeout(Duration::from_secs(5)).acquire()?;
    guard.on_lost(|loss| eprintln!("stopping: {loss}"));
    println!("importing with token {}", guard.token());

    let rows = std::thread::scope(|scope| {
        let start = |_| {
            let lost = guard.lost_signal();
            scope.spawn(move || import_part(&lost))
        };
        let parts: Vec<_> = (0..PARTS).map(start).collect();
        let join =
            |part: ScopedJoinHandle<_>| part.join().unwrap_or_else(|panic| resume_unwind(panic));
        parts.into_iter().map(join).sum::<usize>()
    });

    println!("imported {rows} rows in {PARTS} threads");
    match guard.release()? {
        ReleaseOutcome::Released => println!("held until the end"),
        outcome => println!("start over: {outcome:?}"),
    }
    client.shutdown(Duration::from_secs(5))?;
    Ok(())
}

/// Imports one part, and returns the number of rows.
///
/// The library cannot stop a thread, so the thread checks before each row.
fn import_part(lost: &LostSignal) -> usize {
    let held = (0..ROWS).take_while(|_row| !lost.is_lost());
    held.count()
}

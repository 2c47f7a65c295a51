//! Does work under a lock on plain threads, which stop when the lock is lost.

use std::time::Duration;

use leasehold::Error;
use leasehold::blocking::Client;

fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/")?;
    let import = client.mutex("import");
    let guard = import.lock().timeout(Duration::from_secs(5)).acquire()?;
    guard.on_lost(|loss| eprintln!("stop: {loss}"));

    std::thread::scope(|scope| {
        for part in 1..=4 {
            let (lost, token) = (guard.lost_signal(), guard.token());
            scope.spawn(move || {
                // The library cannot stop a thread: the thread has to check.
                for row in 1..=3 {
                    if lost.is_lost() {
                        return;
                    }
                    println!("part {part}, row {row} with token {token}");
                }
            });
        }
    });

    println!("{:?}", guard.release()?);
    client.shutdown(Duration::from_secs(5))?;
    Ok(())
}

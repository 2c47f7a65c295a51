//! Keeps one leader among many processes; the others print who leads.
//!
//! Run it in several terminals, and stop the leader with Ctrl-C:
//!
//! ```sh
//! cargo run --example election -- 10.0.0.7:8080
//! ```

use std::time::Duration;

use leasehold::{Client, ElectionEvent, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or("unknown".to_owned());
    let client = Client::builder("redis://127.0.0.1/")
        .lease(Duration::from_secs(5))
        .connect()
        .await?;
    let scheduler = client.election("scheduler").note(address);

    let mut changes = scheduler.changes();
    let follow = async move {
        loop {
            match changes.next().await? {
                ElectionEvent::Elected(term) => println!("leader: {:?}", term.note),
                _ => println!("no leader"),
            }
        }
    };
    let lead = scheduler.lead(|lease| async move {
        println!("leading with epoch {}", lease.token());
        // Schedules until the lease is lost: the work is then dropped.
        std::future::pending::<()>().await;
    });
    tokio::select! {
        outcome = lead => outcome,
        outcome = follow => outcome,
    }
}

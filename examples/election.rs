//! One leader among many processes; the others follow it.
//!
//! Run it in several terminals, each with an address of its own, and stop the
//! leader with Ctrl-C:
//!
//! ```sh
//! cargo run -p examples --bin election -- 10.0.0.7:8080
//! cargo run -p examples --bin election -- 10.0.0.8:8080
//! ```
//!
//! The leader resigns when it is stopped, and another process leads at once. A
//! leader that crashes is replaced when its lease expires.

use std::time::Duration;

use leasehold::{Changes, Client, Error, Lease};

/// The time after which a crashed leader is replaced.
const LEASE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or("unknown".to_owned());
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let election = client.election("scheduler").lease(LEASE).note(&*address);
    tokio::select! {
        // Campaigns again after each loss; ends only with an error.
        outcome = election.lead(schedule) => outcome?,
        outcome = follow(election.changes(), &address) => outcome?,
        _ = tokio::signal::ctrl_c() => println!("stopping"),
    }
    // Resigns, if this process leads.
    client.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Does the work of the leader. It is dropped when the lease is lost.
async fn schedule(lease: Lease) {
    // The epoch is the fencing token: send it with every write.
    println!("leading in epoch {}", lease.token());
    std::future::pending::<()>().await;
}

/// Prints the leader whenever it changes, as a request router needs it.
async fn follow(mut changes: Changes, own_address: &str) -> Result<(), Error> {
    loop {
        // Without a leader, requests have to wait for the next one.
        let Some(term) = changes.next().await? else {
            continue;
        };
        let leader = term.process.note.filter(|leader| leader != own_address);
        if let Some(leader) = leader {
            println!("following {leader}");
        }
    }
}

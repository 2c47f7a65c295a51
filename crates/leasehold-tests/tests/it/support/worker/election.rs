//! Commands of worker processes that take part in an election.

use std::time::Duration;

use leasehold::{Client, Election, Lease};
use testkit::SeededRng;
use testkit::worker::say;

use crate::support::clock;

/// The time between two samples of a lease.
const SAMPLE: Duration = Duration::from_millis(5);

/// Leads without end: most terms are short, and every `long`-th lasts for up
/// to a second. Prints each step with the epoch and the boot-time clock:
/// `start` and `ok` with the deadline, `announced`, `resign`, and `resigned`
/// when `lead` has returned.
pub(super) async fn lead(client: &Client, name: &str, long: u64, seed: u64) {
    let election = client.election(name);
    let rng = std::sync::Mutex::new(SeededRng::new(seed));
    let below = |limit| rng.lock().expect("no panic").below(limit);
    loop {
        let term = |lease: Lease| {
            let samples = match below(long) {
                0 => 20 + below(180),
                _ => 0,
            };
            serve(&election, lease, samples)
        };
        let ended = election.lead(term).await;
        say(format_args!(
            "resigned {} {}",
            ended.expect("a term"),
            clock()
        ));
        // Let the next candidate lead.
        tokio::time::sleep(Duration::from_micros(below(2000))).await;
    }
}

/// Leads for one term, and returns its epoch.
async fn serve(election: &Election, lease: Lease, samples: u64) -> u64 {
    let epoch = lease.token().as_u64();
    sample("start", &lease);
    for number in 0..samples {
        tokio::time::sleep(SAMPLE).await;
        sample("ok", &lease);
        if number == 10 && is_announced(election, epoch).await {
            say(format_args!("announced {epoch} {}", clock()));
        }
    }
    say(format_args!("resign {epoch} {}", clock()));
    epoch
}

/// Prints that this process leads now. The clock is read before the check, so
/// the lease was valid then.
fn sample(step: &str, lease: &Lease) {
    let now = clock();
    let remaining = lease.remaining();
    if lease.check().is_ok() {
        let until = now + u64::try_from(remaining.as_nanos()).expect("a duration in range");
        say(format_args!("{step} {} {now} {until}", lease.token()));
    }
}

async fn is_announced(election: &Election, epoch: u64) -> bool {
    let leader = election.leader().await.ok().flatten();
    let announced = leader.and_then(|term| term.epoch);
    announced.is_some_and(|announced| announced.as_u64() == epoch)
}

/// Prints the epoch of each term, and `0` for a vacancy, without end.
pub(super) async fn follow(client: &Client, name: &str) {
    let mut changes = client.election(name).changes();
    loop {
        match changes.next().await {
            Ok(Some(term)) => {
                let epoch = term.epoch.expect("announced").as_u64();
                say(format_args!("seen {epoch} {}", clock()));
            }
            Ok(None) => say(format_args!("seen 0 {}", clock())),
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

//! Renewing many leases of one node with one pipeline, and what else keeps the server's record of a lease true.

use std::sync::Arc;
use std::time::Duration;

use super::agenda::shared;
use super::give_back::{self, connection_after};
use super::held::{Ending, Held, State};
use crate::backend::{Backend, Purpose, RequestError};
use crate::error::Loss;
use crate::protocol::{Call, RenewReply};
use crate::rng;
use crate::time::BootInstant;

/// When a lease is renewed again that was last renewed at `sent`: after a third of it, so that two renewals may fail.
pub(super) fn next_beat(sent: BootInstant, lease: Duration) -> BootInstant {
    shared(sent + lease / 3, lease)
}

/// When a lease is first renewed: somewhere in the second half of a period. Leases that were taken together are so spread,
/// and stay so; their renewals do not leave as a burst.
pub(super) fn first_beat(start: BootInstant, lease: Duration) -> BootInstant {
    let early = (lease / 6).mul_f64(rng::next_f64());
    next_beat(start.saturating_sub(early), lease)
}

/// One lease that is due, and what to ask for.
pub(super) struct Due {
    pub(super) held: Arc<Held>,
    pub(super) lease: Duration,
    /// Whether `at_most` bounds `lease`.
    pub(super) capped: bool,
    /// How often it has failed since it last succeeded.
    pub(super) failures: u32,
}

impl Due {
    /// What to ask for now; `None` when the lease has ended or cannot last longer.
    pub(super) fn now(held: Arc<Held>, failures: u32) -> Option<Self> {
        if let State::Ended(_) = held.state() {
            return None;
        }
        let (lease, capped) = held.bounded(held.lease)?;
        Some(Self {
            held,
            lease,
            capped,
            failures,
        })
    }
}

/// What became of one renewal.
pub(super) struct Outcome {
    pub(super) due: Due,
    /// When it was sent; the deadline counts from here.
    pub(super) sent: BootInstant,
    pub(super) renewed: Result<RenewReply, RequestError>,
}

/// Sends one renewal for each of `batch`, all of one node, with equally many failures behind them, and to be
/// acknowledged by the same replicas.
pub(super) async fn renew(
    batch: Vec<Due>,
    backend: Arc<dyn Backend>,
    timeout: Duration,
) -> Vec<Outcome> {
    // A slow answer must leave time for another try.
    let timeout = batch
        .iter()
        .map(|due| due.held.lease / 4)
        .fold(timeout, Duration::min);
    let (first, failures) = (&batch[0].held, batch[0].failures);
    let connection = async {
        match first.replica_ack {
            Some(wanted) => {
                backend
                    .acknowledged(Purpose::Keeper, first.kind.slot(), wanted, timeout)
                    .await
            }
            None => connection_after(&*backend, first.kind.slot(), failures).await,
        }
    };
    let connection = match tokio::time::timeout(timeout, connection).await {
        Ok(Ok(connection)) => connection,
        _ => return all_failed(batch),
    };
    let calls = batch
        .iter()
        .map(|due| due.held.kind.renew(&due.held.value, due.lease))
        .collect();
    let sent = BootInstant::now();
    match Call::send_all(calls, &*connection, timeout).await {
        Ok(answers) => batch
            .into_iter()
            .zip(answers)
            .map(|(due, renewed)| Outcome { due, sent, renewed })
            .collect(),
        Err(_) => all_failed(batch),
    }
}

/// Puts a lease that is certain where it is missing, for as long as it is certain.
///
/// The holder releases on another connection, which may overtake this: a node that gets the release first would have the
/// lock put back until its lease ends. Where the lease has ended meanwhile it is released again.
pub(super) async fn repair(held: Arc<Held>, backend: Arc<dyn Backend>, timeout: Duration) {
    let Ok(connection) = backend.connection(Purpose::Keeper, held.kind.slot()).await else {
        return;
    };
    let State::Valid { deadline } = held.state() else {
        return;
    };
    let left = deadline.since(BootInstant::now());
    let Some(kind) = held.kind.repair() else {
        return;
    };
    let call = kind.repair(&held.value, left, held.token);
    // Of all: the node that misses it is not one of the majority that replies first.
    if let Err(failure) = call.await_all_nodes().send(&*connection, timeout).await {
        tracing::debug!(lock = held.kind.name(), %failure, "could not be filled in");
    }
    match held.state() {
        // The keeper releases what has expired, when its margin is over.
        State::Valid { .. } | State::Ended(Ending::Lost(Loss::Expired | Loss::AtMost)) => {}
        State::Ended(_) => {
            // The holder's own release, which is tried twice, reports that it freed the lock: it comes first.
            tokio::time::sleep(timeout * 2).await;
            give_back::release(held, backend, timeout).await;
        }
    }
}

/// Shows how often a lock has been entered, until that is what is shown. Where it fails it stays wrong until the next
/// change: nothing depends on it.
pub(super) async fn recount(held: Arc<Held>, backend: Arc<dyn Backend>, timeout: Duration) {
    while let State::Valid { .. } = held.state() {
        let entries = held.entries();
        let is_shown = show_entries(&held, entries, &*backend, timeout).await;
        if is_shown && held.entries() != entries {
            continue;
        }
        held.end_recount();
        // What changed before that line is still to be shown, unless another job does.
        if !is_shown || held.entries() == entries || !held.begin_recount() {
            return;
        }
    }
}

async fn show_entries(held: &Held, entries: u32, backend: &dyn Backend, timeout: Duration) -> bool {
    let call = held.kind.hold_count();
    let call = call.map(|kind| kind.set_hold_count(&held.value, entries));
    let connection = backend.connection(Purpose::Keeper, held.kind.slot()).await;
    match (call, connection) {
        (Some(call), Ok(connection)) => call.send(&*connection, timeout).await.is_ok(),
        _ => false,
    }
}

fn all_failed(batch: Vec<Due>) -> Vec<Outcome> {
    let sent = BootInstant::now();
    let failed = |due| Outcome {
        due,
        sent,
        renewed: Err(RequestError::Unknown("the batch was not answered".into())),
    };
    batch.into_iter().map(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::super::agenda::BEATS;
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn leases_that_were_taken_together_are_renewed_apart_and_in_groups() {
        let start = BootInstant::from_nanos(3_600_000_000_000);
        let mut first: Vec<_> = (0..10_000).map(|_| first_beat(start, LEASE)).collect();
        first.sort();
        for moment in &first {
            let after = moment.since(start);
            assert!(after >= LEASE / 6 - LEASE / 3 / BEATS, "{after:?}");
            assert!(after <= LEASE / 3, "{after:?}");
        }
        let (early, late) = (first[100], first[9900]);
        assert!(late.since(early) > LEASE / 8, "they are spread");
        first.dedup();
        assert!(first.len() <= 1 + BEATS as usize / 2, "{}", first.len());
    }

    #[test]
    fn the_next_renewal_is_a_third_of_the_lease_later_and_no_more() {
        for lease in [Duration::from_millis(20), LEASE, LEASE * 1_000_000] {
            let sent = BootInstant::from_nanos(3_600_123_456_789);
            let after = next_beat(sent, lease).since(sent);
            assert!(after <= lease / 3, "{lease:?} {after:?}");
            assert!(
                after >= lease / 3 - lease / 3 / BEATS * 2,
                "{lease:?} {after:?}"
            );
        }
    }
}

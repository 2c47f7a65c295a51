//! Reports to observers and to the log: who holds a lease, and how the hold
//! ended.
//!
//! Observers see a hold as soon as we report the acquisition; the lease owns it
//! until it ends. The report of the end takes it out, so a hold ends once
//! (invariant 1 of [`observe`](crate::observe)), although a release and a loss
//! can race.

use std::time::Duration;

use super::state::{EndReason, Hold, LeaseState, Validity};
use crate::error::Loss;
use crate::observe::{Event, Observers};
use crate::time::BootInstant;

/// Reports that the holder released the lock.
pub(super) fn report_release(state: &LeaseState, observers: &Observers) {
    if let Some(hold) = state.take_hold()
        && !observers.is_empty()
    {
        let event = Event::Released {
            name: state.kind.name(),
            kind: state.kind.label(),
            held: hold.age(),
        };
        observers.notify(&event);
    }
}

/// Reports that `hold` passed the lock to another task.
pub(super) fn report_handoff(state: &LeaseState, hold: Option<Hold>, observers: &Observers) {
    if let Some(hold) = hold
        && !observers.is_empty()
    {
        let event = Event::HandedOff {
            name: state.kind.name(),
            kind: state.kind.label(),
            held: hold.age(),
        };
        observers.notify(&event);
    }
}

/// Reports that the holder lost the lock.
pub(super) fn report_loss(state: &LeaseState, loss: Loss, observers: &Observers) {
    let Some(hold) = state.take_hold() else {
        return;
    };
    let (name, held) = (state.kind.name(), hold.age());
    if loss != Loss::ShutDown {
        tracing::warn!(
            lock = name,
            token = %hold.token,
            caller = %hold.caller,
            ?held,
            cause = %loss,
            "lease lost"
        );
    }
    let event = Event::Lost {
        name,
        kind: state.kind.label(),
        held,
        loss,
        caller: hold.caller,
    };
    observers.notify(&event);
}

/// Reports a loss that the holder noticed before the keeper, or that preceded
/// the acquisition's report.
pub(super) fn report_if_lost(state: &LeaseState, observers: &Observers) {
    if let Validity::Ended(EndReason::Lost(loss)) = state.validity() {
        report_loss(state, loss, observers);
    }
}

/// Reports a renewal that was confirmed, before it moves the deadline.
///
/// `lease` is what it requested. Near the end of `at_most` that shrinks with
/// the margin: against the full lease, every hold that reaches its limit would
/// look as if its renewals came late.
pub(super) fn report_renewal(state: &LeaseState, lease: Duration, observers: &Observers) {
    if let Some(margin) = observed_margin(state, observers) {
        let event = Event::Renewed {
            name: state.kind.name(),
            kind: state.kind.label(),
            margin,
            lease,
        };
        observers.notify(&event);
    }
}

/// Reports a renewal that failed.
pub(super) fn report_failed_renewal(state: &LeaseState, failures: u32, observers: &Observers) {
    if let Some(remaining) = observed_margin(state, observers) {
        let event = Event::RenewalFailed {
            name: state.kind.name(),
            kind: state.kind.label(),
            failures,
            remaining,
        };
        observers.notify(&event);
    }
}

/// Reports that the keeper stops renewing, because the holder reports no
/// progress.
pub(super) fn report_stuck(state: &LeaseState, observers: &Observers) {
    let Some(hold) = state.hold() else {
        return;
    };
    let remaining = state.deadline().since(BootInstant::now());
    let name = state.kind.name();
    tracing::warn!(
        lock = name,
        token = %hold.token,
        caller = %hold.caller,
        held = ?hold.age(),
        ?remaining,
        "the holder is stuck: it reports no progress, and its lease is not renewed"
    );
    let event = Event::Stuck {
        name,
        kind: state.kind.label(),
        remaining,
        caller: hold.caller,
    };
    observers.notify(&event);
}

/// Returns the time until the deadline; `None` without observers, or once the
/// lease has ended.
fn observed_margin(state: &LeaseState, observers: &Observers) -> Option<Duration> {
    match state.validity() {
        Validity::Valid { deadline } if !observers.is_empty() => {
            Some(deadline.since(BootInstant::now()))
        }
        _ => None,
    }
}

/// A hold that has not started is checked again after this time at the
/// earliest.
const RECHECK: Duration = Duration::from_millis(250);

/// Warns that the holder has held the lock for longer than `limit`. Returns
/// when to check again; `None` after the warning.
pub(super) fn check_slow_hold(state: &LeaseState, limit: Duration) -> Option<BootInstant> {
    match state.hold() {
        Some(hold) if hold.age() < limit => Some(hold.since + limit),
        Some(hold) => {
            tracing::warn!(
                lock = state.kind.name(),
                token = %hold.token,
                caller = %hold.caller,
                held = ?hold.age(),
                ?limit,
                "slow hold"
            );
            None
        }
        // A task that received the lock has not claimed it yet.
        None => Some(BootInstant::now() + limit.max(RECHECK)),
    }
}

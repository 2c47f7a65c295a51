//! Checks that the history of each lock is linearizable: acquisitions and
//! releases alternate in the order of their tokens, each at a point between its
//! request and its reply, and a *busy* reply overlaps a hold.
//!
//! Linearizability is hard to check in general. Here the tokens determine the
//! order, so only the points are unknown. One pass places each step as early as
//! possible, another as late as possible. A *busy* reply is valid if it falls
//! between the earliest acquisition and the latest release of some hold.
//!
//! A *busy* reply that overlaps an attempt of unknown outcome is not checked:
//! that attempt may have held the lock. Nor is one of a quorum, where two
//! concurrent attempts may both fail.

use super::spans::{Span, merged};
use super::verdict::{Verdict, by_lock, held};
use crate::attempt::{Attempt, Outcome};
use crate::history::{Failure, Timestamp};
use crate::plan::{Fault, Plan, Topology};

pub(crate) fn check(plan: &Plan, attempts: &[Attempt]) -> Verdict {
    let mut verdict = Verdict::new("histories are linearizable").needing_exclusion();
    // How long a server may still act on a request of unknown outcome.
    let slack = (plan.lease_ms + plan.max_wait_ms) * 1_000_000;
    // Replicas do not acknowledge releases: a failover can undo one until the
    // lease expires.
    let loses_writes = |fault: &Fault| matches!(fault, Fault::Failover | Fault::PauseMaster);
    let keeps_releases = !plan.faults.iter().any(loses_writes);
    for (lock, attempts) in by_lock(attempts, Some) {
        let kind = plan.kind(lock);
        if !kind.is_fenced() || kind.capacity() != 1 {
            continue;
        }
        let mut holds: Vec<_> = attempts
            .iter()
            .filter_map(|attempt| held(attempt))
            .collect();
        holds.sort_by_key(|(_, hold)| hold.token);
        let steps: Vec<Span> = holds
            .iter()
            .flat_map(|(attempt, hold)| {
                // A release after a loss does not count: a renewal in flight
                // may keep the lock on the server.
                let released = hold.released.filter(|_| keeps_releases && !hold.lost);
                let released = released.unwrap_or(hold.until + slack);
                [
                    (attempt.requested, hold.acquired),
                    (hold.until.min(released), released),
                ]
            })
            .collect();
        verdict.checked += steps.len() as u64;
        let (early, late) = (earliest(&steps), latest(&steps));
        for (index, step) in steps.iter().enumerate() {
            if early[index] > step.1 {
                let token = holds[index / 2].1.token;
                verdict.violation(|| format!("lock {lock}: no order explains token {token}"));
            }
        }
        if plan.topology == Topology::Quorum {
            continue;
        }
        let held = (0..holds.len()).map(|index| (early[index * 2], late[index * 2 + 1]));
        let known = merged(held.filter(|(from, until)| from <= until).collect());
        let possible = merged(unknown(&attempts, slack));
        for attempt in attempts {
            let Outcome::Failed {
                at,
                reason: Failure::Busy,
            } = attempt.outcome
            else {
                continue;
            };
            verdict.checked += 1;
            let request = (attempt.requested, at);
            if !overlaps(&known, request) && !overlaps(&possible, request) {
                verdict
                    .violation(|| format!("lock {lock}: busy at {} but free", attempt.requested));
            }
        }
    }
    verdict
}

/// Places each step as early as possible after its predecessors.
fn earliest(steps: &[Span]) -> Vec<Timestamp> {
    let mut last = 0;
    let after = steps.iter().map(|step| {
        last = step.0.max(last);
        last
    });
    after.collect()
}

/// Places each step as late as possible before its successors.
fn latest(steps: &[Span]) -> Vec<Timestamp> {
    let mut next = Timestamp::MAX;
    let before = steps.iter().rev().map(|step| {
        next = step.1.min(next);
        next
    });
    let mut before: Vec<_> = before.collect();
    before.reverse();
    before
}

/// Returns when attempts of unknown outcome may have held the lock.
fn unknown(attempts: &[&Attempt], slack: u64) -> Vec<Span> {
    let all = attempts.iter();
    all.filter_map(|attempt| match attempt.outcome {
        Outcome::Failed {
            reason: Failure::Busy,
            ..
        } => None,
        // An earlier try of the same waiter may have taken effect and been
        // cancelled.
        Outcome::Held(hold) => Some((attempt.requested, hold.acquired)),
        Outcome::Failed { at, .. } => Some((attempt.requested, at + slack)),
        Outcome::Unknown => Some((attempt.requested, attempt.requested + slack * 4)),
    })
    .collect()
}

fn overlaps(spans: &[Span], request: Span) -> bool {
    let after = spans.partition_point(|span| span.1 < request.0);
    spans.get(after).is_some_and(|span| span.0 <= request.1)
}

#[cfg(test)]
mod tests {
    use super::super::verdict::examples::held;
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    fn violations(attempts: &[Attempt]) -> u64 {
        check(&plan_of(Kind::Mutex), attempts).violations
    }

    fn failed(requested: u64, at: u64, reason: Failure) -> Attempt {
        let outcome = Outcome::Failed { at, reason };
        Attempt {
            outcome,
            waits: false,
            ..held(9, requested, 0, 0, 0)
        }
    }

    #[test]
    fn linearizable_history_passes() {
        // The second request starts before the first release and completes
        // after it.
        let history = [held(0, 0, 10, 30, 1), held(1, 5, 40, 50, 2)];
        assert_eq!(violations(&history), 0);
    }

    #[test]
    fn history_without_an_order_is_found() {
        // The second request completes before the first release starts.
        let early = [held(0, 0, 10, 30, 1), held(1, 5, 20, 50, 2)];
        assert_eq!(violations(&early), 1);
        // The smaller token was requested after the larger one was released.
        let reversed = [held(0, 60, 70, 80, 1), held(1, 5, 20, 50, 2)];
        assert_ne!(violations(&reversed), 0);
    }

    #[test]
    fn busy_reply_requires_a_possible_holder() {
        let holder = held(0, 0, 10, 30, 1);
        let busy = |requested, at| failed(requested, at, Failure::Busy);
        assert_eq!(violations(&[holder, busy(15, 20)]), 0);
        assert_eq!(violations(&[holder, busy(31, 40)]), 0, "released at 31");
        assert_eq!(violations(&[holder, busy(32, 40)]), 1);
        let mut lost = holder;
        if let Outcome::Held(hold) = &mut lost.outcome {
            hold.lost = true;
        }
        assert_eq!(violations(&[lost, busy(32, 40)]), 0, "late renewal");
        let unknown = failed(32, 35, Failure::Error);
        assert_eq!(violations(&[holder, unknown, busy(36, 40)]), 0);
    }
}

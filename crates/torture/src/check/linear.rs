//! The whole history of a lock can be put in one order, each step at a moment between its question and its answer: taken, given back,
//! taken, and so on, by rising tokens; and whoever was told "busy" asked while it was taken.
//!
//! Finding such an order is hard in general. Here the tokens say what it must be, so only the moments are to be found: each step as early as
//! it can be is one walk through the history, each as late as it can be is another. A "busy" is right when it falls between the earliest
//! moment some holder can have taken the lock and the latest it can have given it back. One whose question overlaps with an attempt of
//! unknown outcome says nothing: that one may have had the lock. Nor does one of a quorum, where two who try at the same time may both fail.

use super::{Verdict, by_lock, merged};
use crate::attempt::{Attempt, End};
use crate::history::{Failure, Moment};
use crate::plan::{Fault, Plan, Topology};

/// When a step may have happened.
type Span = (Moment, Moment);

pub(crate) fn check(plan: &Plan, attempts: &[Attempt]) -> Verdict {
    let mut verdict =
        Verdict::new("each lock has one history (linearizable)").resting_on_exclusion();
    // How long a server may still act on a request of unknown outcome.
    let slack = (plan.lease_ms + plan.stuck_ms) * 1_000_000;
    // Nobody acknowledges a release: a failover can undo it, until the lease ends.
    let loses = |fault: &Fault| matches!(fault, Fault::FailOver | Fault::SleepMaster);
    let keeps_releases = !plan.faults.iter().any(loses);
    for (lock, attempts) in by_lock(attempts, Some) {
        let kind = plan.kind(lock);
        if !kind.is_fenced() || kind.capacity() != 1 {
            continue;
        }
        let held = attempts.iter().filter_map(|attempt| super::held(attempt));
        let mut holdings: Vec<_> = held.collect();
        holdings.sort_by_key(|(_, holding)| holding.token);
        let steps: Vec<Span> = holdings
            .iter()
            .flat_map(|(attempt, holding)| {
                // One that was lost is not given back: a renewal on its way may keep it on the server.
                let gave = holding.gave.filter(|_| keeps_releases && !holding.lost);
                let gave = gave.unwrap_or(holding.until + slack);
                [
                    (attempt.wanted, holding.got),
                    (holding.until.min(gave), gave),
                ]
            })
            .collect();
        verdict.looked_at += steps.len() as u64;
        let (early, late) = (earliest(&steps), latest(&steps));
        for (index, step) in steps.iter().enumerate() {
            if early[index] > step.1 {
                let token = holdings[index / 2].1.token;
                verdict.wrong(|| format!("lock {lock}: no order explains token {token}"));
            }
        }
        if plan.topology == Topology::Quorum {
            continue;
        }
        let held = (0..holdings.len()).map(|index| (early[index * 2], late[index * 2 + 1]));
        let known = merged(held.filter(|(from, until)| from <= until).collect());
        let maybe = merged(unknown(&attempts, slack));
        for attempt in attempts {
            let End::Failed {
                at,
                why: Failure::Busy,
            } = attempt.end
            else {
                continue;
            };
            verdict.looked_at += 1;
            let asked = (attempt.wanted, at);
            if !overlaps(&known, asked) && !overlaps(&maybe, asked) {
                verdict.wrong(|| {
                    format!(
                        "lock {lock}: \"busy\" at {} when nobody had it",
                        attempt.wanted
                    )
                });
            }
        }
    }
    verdict
}

/// Each step as early as it can be after those before it.
fn earliest(steps: &[Span]) -> Vec<Moment> {
    let mut last = 0;
    let after = steps.iter().map(|step| {
        last = step.0.max(last);
        last
    });
    after.collect()
}

/// Each step as late as it can be before those after it.
fn latest(steps: &[Span]) -> Vec<Moment> {
    let mut next = Moment::MAX;
    let before = steps.iter().rev().map(|step| {
        next = step.1.min(next);
        next
    });
    let mut before: Vec<_> = before.collect();
    before.reverse();
    before
}

/// When attempts of unknown outcome may have held the lock.
fn unknown(attempts: &[&Attempt], slack: u64) -> Vec<Span> {
    let all = attempts.iter();
    all.filter_map(|attempt| match attempt.end {
        End::Failed {
            why: Failure::Busy, ..
        } => None,
        // One who waited may have had it before, unknowing, and given it back.
        End::Held(holding) => Some((attempt.wanted, holding.got)),
        End::Failed { at, .. } => Some((attempt.wanted, at + slack)),
        End::Unanswered => Some((attempt.wanted, attempt.wanted + slack * 4)),
    })
    .collect()
}

fn overlaps(spans: &[Span], asked: Span) -> bool {
    let after = spans.partition_point(|span| span.1 < asked.0);
    spans.get(after).is_some_and(|span| span.0 <= asked.1)
}

#[cfg(test)]
mod tests {
    use super::super::examples::held;
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    fn wrong(attempts: &[Attempt]) -> u64 {
        check(&plan_of(Kind::Mutex), attempts).wrong
    }

    fn failed(wanted: u64, at: u64, why: Failure) -> Attempt {
        let end = End::Failed { at, why };
        Attempt {
            end,
            patient: false,
            ..held(9, wanted, 0, 0, 0)
        }
    }

    #[test]
    fn a_history_with_one_order_passes() {
        // The second asked before the first gave it back, and was answered after.
        let history = [held(0, 0, 10, 30, 1), held(1, 5, 40, 50, 2)];
        assert_eq!(wrong(&history), 0);
    }

    #[test]
    fn one_without_any_order_is_found() {
        // The second was answered before the first began to give it back.
        assert_eq!(wrong(&[held(0, 0, 10, 30, 1), held(1, 5, 20, 50, 2)]), 1);
        // In the order of their tokens the first would have been asked for after the second was given back.
        assert_ne!(wrong(&[held(0, 60, 70, 80, 1), held(1, 5, 20, 50, 2)]), 0);
    }

    #[test]
    fn busy_needs_somebody_who_may_have_had_it() {
        let holder = held(0, 0, 10, 30, 1);
        let busy = |wanted, at| failed(wanted, at, Failure::Busy);
        assert_eq!(wrong(&[holder, busy(15, 20)]), 0);
        assert_eq!(wrong(&[holder, busy(31, 40)]), 0, "given back at 31");
        assert_eq!(wrong(&[holder, busy(32, 40)]), 1);
        let mut lost = holder;
        if let End::Held(holding) = &mut lost.end {
            holding.lost = true;
        }
        assert_eq!(wrong(&[lost, busy(32, 40)]), 0, "a renewal was late");
        let perhaps = failed(32, 35, Failure::Trouble);
        assert_eq!(wrong(&[holder, perhaps, busy(36, 40)]), 0);
    }
}

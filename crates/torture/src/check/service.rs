//! Checks that every process acquires some lock within the plan's limit, not
//! counting outages.
//!
//! A client that stays with an unusable server or sentinel is blocked although
//! the others are fine. Its requests fail, so no single one of them waits for
//! long.

use std::collections::BTreeMap;

use super::outages::outages;
use super::spans::overlap;
use super::verdict::Verdict;
use crate::attempt::{Attempt, Outcome};
use crate::fault_log::InjectedFault;
use crate::history::Timestamp;
use crate::plan::Plan;

/// The activity of one process.
#[derive(Default)]
struct Activity {
    acquired: Vec<Timestamp>,
    /// The first request.
    first: Option<Timestamp>,
    /// The last event.
    last: Timestamp,
}

pub(crate) fn check(plan: &Plan, attempts: &[Attempt], faults: &[InjectedFault]) -> Verdict {
    let mut verdict = Verdict::new("every process makes progress");
    if plan.max_idle_ms == 0 {
        return verdict;
    }
    let (outages, limit) = (outages(plan, faults), plan.max_idle_ms * 1_000_000);
    for (process, activity) in activities(attempts) {
        let mut times = activity.acquired;
        times.extend(activity.first);
        times.push(activity.last);
        times.sort_unstable();
        for gap in times.windows(2) {
            verdict.checked += 1;
            let (from, until) = (gap[0], gap[1]);
            let idle = (until - from) - overlap(&outages, from, until);
            if idle > limit {
                let millis = idle / 1_000_000;
                verdict.violation(|| {
                    format!("process {process} acquired nothing for {millis} ms, from {from}")
                });
            }
        }
    }
    verdict
}

fn activities(attempts: &[Attempt]) -> BTreeMap<usize, Activity> {
    let mut activities = BTreeMap::<_, Activity>::new();
    for attempt in attempts {
        let activity = activities.entry(attempt.process).or_default();
        let first = activity.first.get_or_insert(attempt.requested);
        *first = attempt.requested.min(*first);
        let last = match attempt.outcome {
            Outcome::Held(hold) => hold.acquired,
            Outcome::Failed { at, .. } => at,
            Outcome::Unknown => attempt.requested,
        };
        activity.last = activity.last.max(last);
        activity
            .acquired
            .extend(attempt.hold().map(|it| it.acquired));
    }
    activities
}

#[cfg(test)]
mod tests {
    use super::super::verdict::examples::held;
    use super::*;
    use crate::history::Failure;
    use crate::plan::{Fault, Kind, tests::plan_of};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn idle_process_is_found() {
        let plan = Plan {
            max_idle_ms: 3000,
            ..plan_of(Kind::Mutex)
        };
        let at = |second: u64| held(0, second * SECOND, second * SECOND, second * SECOND, 1);
        let violations = |attempts: &[Attempt], faults: &[InjectedFault]| {
            check(&plan, attempts, faults).violations
        };
        assert_eq!(violations(&[at(1), at(3), at(6)], &[]), 0);
        assert_eq!(violations(&[at(1), at(3), at(7)], &[]), 1);
        let fault = |fault| InjectedFault {
            fault,
            from: 4 * SECOND,
            until: 6 * SECOND,
        };
        let failover = fault(Fault::Failover);
        assert_eq!(violations(&[at(1), at(3), at(7)], &[failover]), 0);
        let reset = fault(Fault::ResetSentinel);
        assert_eq!(violations(&[at(1), at(3), at(7)], &[reset]), 1);
        let outcome = Outcome::Failed {
            at: 9 * SECOND,
            reason: Failure::Error,
        };
        let failed = Attempt { outcome, ..at(2) };
        assert_eq!(violations(&[at(1), at(2), failed], &[]), 1, "at its end");
    }
}

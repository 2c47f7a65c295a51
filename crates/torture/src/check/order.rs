//! Checks that waiters of a fair lock are served in FIFO order.
//!
//! The order of arrival is certain only if time passed between two requests and
//! no fault was active, so the check applies to calms. A process has one queue
//! entry for all its tasks and may serve several of them in one turn, so the
//! check applies to plans with one task per process.

use std::collections::BTreeMap;

use super::verdict::Verdict;
use crate::attempt::{Attempt, Outcome};
use crate::fault_log::Calm;
use crate::history::Timestamp;
use crate::plan::Plan;

/// The minimum distance of two arrivals whose order is certain. A busy machine
/// may delay a process between recording and sending its request.
const MIN_DISTANCE: u64 = 50_000_000;

/// How long a calm takes to settle.
const SETTLING: u64 = 500_000_000;

/// A waiter, from its request to its end.
#[derive(Clone, Copy)]
struct Waiter {
    process: usize,
    from: Timestamp,
    until: Timestamp,
    served: bool,
}

pub(crate) fn check(plan: &Plan, attempts: &[Attempt], calms: &[Calm]) -> Verdict {
    let mut verdict = Verdict::new("fair locks are FIFO");
    if plan.tasks > 1 {
        return verdict;
    }
    let mut queues: BTreeMap<u32, Vec<Waiter>> = BTreeMap::new();
    for attempt in attempts {
        let (until, served) = match attempt.outcome {
            Outcome::Held(hold) => (hold.acquired, true),
            Outcome::Failed { at, .. } => (at, false),
            Outcome::Unknown => continue,
        };
        if plan.kind(attempt.lock).is_fair() && attempt.waits {
            queues.entry(attempt.lock).or_default().push(Waiter {
                process: attempt.process,
                from: attempt.requested,
                until,
                served,
            });
        }
    }
    for (lock, queue) in &mut queues {
        queue.sort_by_key(|waiter| waiter.from);
        for calm in calms {
            let first = queue.partition_point(|waiter| waiter.from < calm.0 + SETTLING);
            let last = queue.partition_point(|waiter| waiter.from < calm.1);
            check_calm(*lock, &queue[first..last.max(first)], calm.1, &mut verdict);
        }
    }
    verdict
}

/// Checks that no waiter was served before an earlier one.
fn check_calm(lock: u32, queue: &[Waiter], end: Timestamp, verdict: &mut Verdict) {
    let served = queue
        .iter()
        .filter(|waiter| waiter.served && waiter.until < end);
    for later in served {
        let earlier = queue
            .iter()
            .take_while(|waiter| waiter.from + MIN_DISTANCE < later.from)
            .filter(|waiter| waiter.until > later.from);
        for earlier in earlier {
            verdict.checked += 1;
            if later.until < earlier.until && earlier.served {
                let distance = (later.from - earlier.from) / 1_000_000;
                verdict.violation(|| {
                    format!(
                        "lock {lock}: process {} overtook process {}, which arrived {distance} ms \
                         earlier",
                        later.process, earlier.process
                    )
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::examples::held;
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    const MS: u64 = 1_000_000;

    #[test]
    fn overtaking_is_found_in_a_calm() {
        let waiter = |process, requested: u64, acquired: u64| {
            let (from, until) = (acquired * MS, (acquired + 1) * MS);
            held(process, requested * MS, from, until, acquired)
        };
        let calm = [(0, 2000 * MS)];
        let violations = |attempts: &[Attempt], calms: &[Calm]| {
            check(&plan_of(Kind::Fair), attempts, calms).violations
        };
        let fair = [waiter(0, 600, 700), waiter(1, 670, 702)];
        assert_eq!(violations(&fair, &calm), 0);
        let unfair = [waiter(0, 600, 702), waiter(1, 670, 700)];
        assert_eq!(violations(&unfair, &calm), 1);
        assert_eq!(violations(&unfair, &[]), 0, "outside a calm");
        let close = [waiter(0, 600, 702), waiter(1, 640, 700)];
        assert_eq!(violations(&close, &calm), 0, "order of arrival unknown");
    }
}

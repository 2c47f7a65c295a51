//! Checks that a waiter acquires a free lock within the plan's limit, not
//! counting outages.

use std::collections::HashMap;

use super::outages::outages;
use super::spans::{gaps, merged, overlap};
use super::verdict::{Verdict, by_lock, held};
use crate::attempt::{Attempt, Outcome};
use crate::fault_log::InjectedFault;
use crate::plan::Plan;

pub(crate) fn check(plan: &Plan, attempts: &[Attempt], faults: &[InjectedFault]) -> Verdict {
    let mut verdict = Verdict::new("no waiter is stuck on a free lock");
    let outages = outages(plan, faults);
    let holds = by_lock(attempts, held);
    let held: HashMap<_, _> = holds
        .iter()
        .map(|(lock, holds)| {
            let spans = holds.iter().map(|(_, hold)| {
                let released = hold.released.unwrap_or(hold.until);
                (hold.acquired, released.max(hold.acquired))
            });
            (*lock, merged(spans.collect()))
        })
        .collect();
    let limit = plan.max_wait_ms * 1_000_000;
    for attempt in attempts.iter().filter(|attempt| attempt.waits) {
        let until = match attempt.outcome {
            Outcome::Held(hold) => hold.acquired,
            Outcome::Failed { at, .. } => at,
            Outcome::Unknown => continue,
        };
        verdict.checked += 1;
        if until - attempt.requested <= limit {
            continue;
        }
        let none = Vec::new();
        let spans = held.get(&attempt.lock).unwrap_or(&none);
        for (from, until) in gaps(spans, attempt.requested, until) {
            let waited = (until - from) - overlap(&outages, from, until);
            if waited > limit {
                verdict.violation(|| {
                    let (lock, process) = (attempt.lock, attempt.process);
                    let waited = waited / 1_000_000;
                    format!(
                        "lock {lock}: process {process} waited {waited} ms for a free lock, \
                         from {from}"
                    )
                });
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::verdict::examples::held;
    use super::*;
    use crate::plan::{Fault, Kind, tests::plan_of};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn stuck_waiter_is_found_outside_outages() {
        let plan = plan_of(Kind::Mutex);
        let violations = |requested: u64, acquired: u64, faults: &[InjectedFault]| {
            let first = held(0, SECOND, SECOND, 2 * SECOND, 1);
            let (from, until) = (acquired * SECOND, (acquired + 1) * SECOND);
            let next = held(1, requested * SECOND, from, until, 2);
            check(&plan, &[first, next], faults).violations
        };
        // The limit is two seconds, and the lock is free from second 2.
        assert_eq!(violations(1, 3, &[]), 0);
        assert_eq!(violations(1, 5, &[]), 1);
        assert_eq!(violations(3, 9, &[]), 1);
        let fault = |fault| InjectedFault {
            fault,
            from: 2 * SECOND,
            until: 4 * SECOND,
        };
        assert_eq!(violations(1, 5, &[fault(Fault::PauseServer)]), 0);
        assert_eq!(violations(1, 5, &[fault(Fault::CpuSteal)]), 0);
        assert_eq!(violations(1, 5, &[fault(Fault::Disconnect)]), 1);
    }
}

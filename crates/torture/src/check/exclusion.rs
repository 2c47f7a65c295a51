//! Checks that a lock's capacity is never exceeded: one holder of a mutex, a
//! semaphore's permits, one writer or any number of readers.

use super::verdict::{Verdict, by_lock, held};
use crate::attempt::Attempt;
use crate::plan::Plan;

/// Sums up, over time, the weight that holders of each lock rely on.
pub(crate) fn check(plan: &Plan, attempts: &[Attempt]) -> Verdict {
    let mut verdict = Verdict::new("capacity is never exceeded").needing_exclusion();
    for (lock, holds) in by_lock(attempts, held) {
        let capacity = i64::from(plan.kind(lock).capacity());
        let mut changes = Vec::with_capacity(holds.len() * 2);
        for (index, (attempt, hold)) in holds.iter().enumerate() {
            verdict.checked += 1;
            // A lease that expired before the worker saw it was never relied
            // on.
            if hold.acquired < hold.until {
                let weight = i64::from(attempt.weight);
                changes.push((hold.until, -weight, index));
                changes.push((hold.acquired, weight, index));
            }
        }
        // At equal times a hold ends before the next one starts.
        changes.sort_unstable();
        let mut held = 0;
        for (time, change, index) in changes {
            held += change;
            if change > 0 && held > capacity {
                let process = holds[index].0.process;
                verdict.violation(|| {
                    format!(
                        "lock {lock}: {held} held at {time} after process {process} acquired, \
                         above the capacity of {capacity}"
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
    use crate::plan::{Kind, tests::plan_of};

    fn violations(kind: Kind, attempts: &[Attempt]) -> u64 {
        check(&plan_of(kind), attempts).violations
    }

    #[test]
    fn overlapping_holds_are_found() {
        let apart = [held(0, 0, 10, 20, 1), held(1, 0, 20, 30, 2)];
        assert_eq!(violations(Kind::Mutex, &apart), 0);
        let together = [held(0, 0, 10, 21, 1), held(1, 0, 20, 30, 2)];
        assert_eq!(violations(Kind::Mutex, &together), 1);
        let inside = [
            held(0, 0, 10, 100, 1),
            held(1, 0, 20, 30, 2),
            held(2, 0, 40, 50, 3),
        ];
        assert_eq!(violations(Kind::Mutex, &inside), 2);
        assert_eq!(violations(Kind::Semaphore, &inside), 0);
    }

    #[test]
    fn weights_of_permits_and_writers_count() {
        let of_weight = |weight, attempt: Attempt| Attempt { weight, ..attempt };
        let many = [
            of_weight(2, held(0, 0, 10, 30, 1)),
            of_weight(2, held(1, 0, 20, 40, 2)),
        ];
        assert_eq!(violations(Kind::Semaphore, &many), 1);
        let writer = of_weight(Kind::ReadWrite.capacity(), held(0, 0, 10, 30, 1));
        assert_eq!(
            violations(Kind::ReadWrite, &[writer, held(1, 0, 20, 40, 2)]),
            1,
            "a reader and a writer"
        );
        let readers = [held(0, 0, 10, 30, 1), held(1, 0, 20, 40, 1)];
        assert_eq!(violations(Kind::ReadWrite, &readers), 0);
    }
}

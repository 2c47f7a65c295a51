//! Never is more held than there is: of a mutex one, of a semaphore its permits, of a read-write lock one writer or any readers.

use super::{Verdict, by_lock};
use crate::attempt::Attempt;
use crate::plan::Plan;

/// Counts, at every moment, what was relied upon of each lock.
pub(crate) fn check(plan: &Plan, attempts: &[Attempt]) -> Verdict {
    let mut verdict = Verdict::new("never is more held than there is").resting_on_exclusion();
    for (lock, holdings) in by_lock(attempts, super::held) {
        let capacity = i64::from(plan.kind(lock).capacity());
        let mut changes = Vec::with_capacity(holdings.len() * 2);
        for (index, (attempt, holding)) in holdings.iter().enumerate() {
            verdict.looked_at += 1;
            // One that was over before its program could look at it was never relied upon.
            if holding.got < holding.until {
                let weight = i64::from(attempt.weight);
                changes.push((holding.until, -weight, index));
                changes.push((holding.got, weight, index));
            }
        }
        // At the same moment one ends before the next begins.
        changes.sort_unstable();
        let mut held = 0;
        for (moment, change, index) in changes {
            held += change;
            if change > 0 && held > capacity {
                let process = holdings[index].0.process;
                verdict.wrong(|| {
                    format!("lock {lock}: process {process} came in at {moment}, and {held} of {capacity} were held")
                });
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::examples::held;
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    fn wrong(kind: Kind, attempts: &[Attempt]) -> u64 {
        check(&plan_of(kind), attempts).wrong
    }

    #[test]
    fn two_at_the_same_time_are_found() {
        let apart = [held(0, 0, 10, 20, 1), held(1, 0, 20, 30, 2)];
        assert_eq!(wrong(Kind::Mutex, &apart), 0);
        let together = [held(0, 0, 10, 21, 1), held(1, 0, 20, 30, 2)];
        assert_eq!(wrong(Kind::Mutex, &together), 1);
        let inside = [
            held(0, 0, 10, 100, 1),
            held(1, 0, 20, 30, 2),
            held(2, 0, 40, 50, 3),
        ];
        assert_eq!(wrong(Kind::Mutex, &inside), 2);
        assert_eq!(wrong(Kind::Semaphore, &inside), 0);
    }

    #[test]
    fn permits_and_writers_are_weighed() {
        let of_weight = |weight, attempt: Attempt| Attempt { weight, ..attempt };
        let many = [
            of_weight(2, held(0, 0, 10, 30, 1)),
            of_weight(2, held(1, 0, 20, 40, 2)),
        ];
        assert_eq!(wrong(Kind::Semaphore, &many), 1);
        let writer = of_weight(Kind::ReadWrite.capacity(), held(0, 0, 10, 30, 1));
        assert_eq!(
            wrong(Kind::ReadWrite, &[writer, held(1, 0, 20, 40, 2)]),
            1,
            "a reader beside a writer"
        );
        let readers = [held(0, 0, 10, 30, 1), held(1, 0, 20, 40, 1)];
        assert_eq!(wrong(Kind::ReadWrite, &readers), 0);
    }
}

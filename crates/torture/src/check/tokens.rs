//! Checks that the tokens of a lock increase in the order of its holds, and
//! that no two holds have the same token.

use super::verdict::{Verdict, by_lock, held};
use crate::attempt::Attempt;
use crate::plan::Plan;

pub(crate) fn check(plan: &Plan, attempts: &[Attempt]) -> Verdict {
    let mut verdict = Verdict::new("tokens are unique and increase");
    for (lock, mut holds) in by_lock(attempts, held) {
        if !plan.kind(lock).is_fenced() {
            continue;
        }
        holds.sort_by_key(|(_, hold)| hold.token);
        // The first acquisition with a higher token, and when that was. Every
        // lower token must have been requested before it.
        let mut earliest = (u64::MAX, 0);
        for same in holds
            .chunk_by(|one, next| one.1.token == next.1.token)
            .rev()
        {
            let token = same[0].1.token;
            verdict.checked += same.len() as u64;
            if same.len() > 1 {
                verdict.violation(|| format!("lock {lock}: duplicate token {token}"));
            }
            let (used, higher) = earliest;
            let late = same.iter().find(|(attempt, _)| attempt.requested > used);
            if let Some((attempt, hold)) = late {
                verdict.violation(|| {
                    format!(
                        "lock {lock}: token {token} was requested at {} ns by process {}, \
                         and acquired at {}, after {higher} was used at {used}",
                        attempt.requested, attempt.process, hold.acquired
                    )
                });
            }
            let acquired = same.iter().map(|(_, hold)| (hold.acquired, token));
            earliest = acquired.fold(earliest, Ord::min);
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::verdict::examples::held;
    use super::*;
    use crate::plan::Kind;
    use crate::plan::tests::plan_of;

    fn violations(attempts: &[Attempt]) -> u64 {
        check(&plan_of(Kind::Mutex), attempts).violations
    }

    #[test]
    fn decreasing_and_duplicate_tokens_are_found() {
        assert_eq!(violations(&[held(0, 0, 1, 2, 1), held(0, 2, 3, 4, 2)]), 0);
        assert_eq!(violations(&[held(0, 0, 1, 2, 2), held(0, 2, 3, 4, 1)]), 1);
        assert_eq!(violations(&[held(0, 0, 1, 2, 2), held(0, 2, 3, 4, 2)]), 1);
    }

    #[test]
    fn decrease_is_found_despite_requests_in_flight() {
        let (first, slow) = (held(0, 0, 1, 2, 9), held(1, 0, 50, 51, 8));
        assert_eq!(violations(&[first, slow, held(2, 10, 11, 12, 7)]), 1);
    }

    #[test]
    fn readers_have_distinct_tokens() {
        let plan = plan_of(Kind::ReadWrite);
        let (one, other) = (held(0, 0, 1, 9, 3), held(1, 2, 3, 9, 4));
        let writer = held(2, 2, 10, 12, 5);
        assert_eq!(check(&plan, &[one, other, writer]).violations, 0);
        let late = held(3, 11, 13, 14, 4);
        assert_eq!(check(&plan, &[late, one, writer]).violations, 1);
        let same = held(1, 2, 3, 9, 3);
        assert_eq!(check(&plan, &[one, same]).violations, 1);
    }
}

//! Tokens of one lock rise in the order in which it was held, and no two holders have the same.

use super::{Verdict, by_lock};
use crate::attempt::Attempt;
use crate::plan::Plan;

pub(crate) fn check(plan: &Plan, attempts: &[Attempt]) -> Verdict {
    let mut verdict = Verdict::new("tokens rise and are given once");
    for (lock, mut holdings) in by_lock(attempts, super::held) {
        if !plan.kind(lock).is_fenced() {
            continue;
        }
        holdings.sort_by_key(|(_, holding)| holding.token);
        // When the first with a higher token was had: all lower ones must have been wanted before.
        let mut earliest_had = u64::MAX;
        for same in holdings
            .chunk_by(|one, next| one.1.token == next.1.token)
            .rev()
        {
            let token = same[0].1.token;
            verdict.looked_at += same.len() as u64;
            if same.len() > 1 {
                verdict.wrong(|| format!("lock {lock}: token {token} twice"));
            }
            if same
                .iter()
                .any(|(attempt, _)| attempt.wanted > earliest_had)
            {
                verdict.wrong(|| {
                    format!(
                        "lock {lock}: token {token} was asked for when a higher one had been given"
                    )
                });
            }
            let had = same.iter().map(|(_, holding)| holding.got);
            earliest_had = had.fold(earliest_had, u64::min);
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::examples::held;
    use super::*;
    use crate::plan::Kind;
    use crate::plan::tests::plan_of;

    fn wrong(attempts: &[Attempt]) -> u64 {
        check(&plan_of(Kind::Mutex), attempts).wrong
    }

    #[test]
    fn tokens_that_fall_or_repeat_are_found() {
        assert_eq!(wrong(&[held(0, 0, 1, 2, 1), held(0, 2, 3, 4, 2)]), 0);
        assert_eq!(wrong(&[held(0, 0, 1, 2, 2), held(0, 2, 3, 4, 1)]), 1);
        assert_eq!(wrong(&[held(0, 0, 1, 2, 2), held(0, 2, 3, 4, 2)]), 1);
    }

    #[test]
    fn one_that_fell_is_found_behind_others_in_flight() {
        let (first, slow) = (held(0, 0, 1, 2, 9), held(1, 0, 50, 51, 8));
        assert_eq!(wrong(&[first, slow, held(2, 10, 11, 12, 7)]), 1);
    }

    #[test]
    fn readers_have_tokens_of_their_own() {
        let plan = plan_of(Kind::ReadWrite);
        let (one, other) = (held(0, 0, 1, 9, 3), held(1, 2, 3, 9, 4));
        let writer = held(2, 2, 10, 12, 5);
        assert_eq!(check(&plan, &[one, other, writer]).wrong, 0);
        let late = held(3, 11, 13, 14, 4);
        assert_eq!(check(&plan, &[late, one, writer]).wrong, 1);
        let same = held(1, 2, 3, 9, 3);
        assert_eq!(check(&plan, &[one, same]).wrong, 1);
    }
}

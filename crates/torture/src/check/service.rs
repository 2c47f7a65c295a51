//! Every process that asks is served: within the plan's bound it acquires some lock, outages aside.
//!
//! A client that stays with a server or a sentinel that is of no use is blocked although the others are well. Its
//! requests fail, so no single one of them waits for long.

use std::collections::BTreeMap;

use super::Verdict;
use super::waiting::{outages, overlap};
use crate::attempt::{Attempt, End};
use crate::history::Moment;
use crate::nemesis::Deed;
use crate::plan::Plan;

/// What one process did: when it acquired something, and when it did anything at all.
#[derive(Default)]
struct Life {
    acquired: Vec<Moment>,
    first: Option<Moment>,
    last: Moment,
}

pub(crate) fn check(plan: &Plan, attempts: &[Attempt], deeds: &[Deed]) -> Verdict {
    let mut verdict = Verdict::new("every process is served");
    if plan.served_ms == 0 {
        return verdict;
    }
    let (outages, bound) = (outages(plan, deeds), plan.served_ms * 1_000_000);
    for (process, life) in lives(attempts) {
        let mut moments = life.acquired;
        moments.extend(life.first);
        moments.push(life.last);
        moments.sort_unstable();
        for gap in moments.windows(2) {
            verdict.looked_at += 1;
            let (from, until) = (gap[0], gap[1]);
            let unserved = (until - from) - overlap(&outages, from, until);
            if unserved > bound {
                let millis = unserved / 1_000_000;
                verdict.wrong(|| {
                    format!("process {process} acquired nothing for {millis} ms from {from} on")
                });
            }
        }
    }
    verdict
}

fn lives(attempts: &[Attempt]) -> BTreeMap<usize, Life> {
    let mut lives = BTreeMap::<_, Life>::new();
    for attempt in attempts {
        let life = lives.entry(attempt.process).or_default();
        let first = life.first.get_or_insert(attempt.wanted);
        *first = attempt.wanted.min(*first);
        let last = match attempt.end {
            End::Held(holding) => holding.got,
            End::Failed { at, .. } => at,
            End::Unanswered => attempt.wanted,
        };
        life.last = life.last.max(last);
        life.acquired.extend(attempt.holding().map(|it| it.got));
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::super::examples::held;
    use super::*;
    use crate::history::Failure;
    use crate::plan::{Fault, Kind, tests::plan_of};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn process_that_is_not_served_is_found() {
        let plan = Plan {
            served_ms: 3000,
            ..plan_of(Kind::Mutex)
        };
        let at = |second: u64| held(0, second * SECOND, second * SECOND, second * SECOND, 1);
        let wrong = |attempts: &[Attempt], deeds: &[Deed]| check(&plan, attempts, deeds).wrong;
        assert_eq!(wrong(&[at(1), at(3), at(6)], &[]), 0);
        assert_eq!(wrong(&[at(1), at(3), at(7)], &[]), 1);
        let fault = |fault| Deed {
            fault,
            from: 4 * SECOND,
            until: 6 * SECOND,
        };
        assert_eq!(wrong(&[at(1), at(3), at(7)], &[fault(Fault::FailOver)]), 0);
        let forgot = fault(Fault::ForgetSentinel);
        assert_eq!(wrong(&[at(1), at(3), at(7)], &[forgot]), 1);
        let end = End::Failed {
            at: 9 * SECOND,
            why: Failure::Trouble,
        };
        let failed = Attempt { end, ..at(2) };
        assert_eq!(wrong(&[at(1), at(2), failed], &[]), 1, "until its end");
    }
}

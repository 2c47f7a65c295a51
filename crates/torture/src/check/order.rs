//! Those who wait for a fair lock are served in the order in which they came.
//!
//! Who came first is certain only when there was time between the two and nothing was broken, so it is judged in calms. A process stands in
//! line once for all its tasks and may serve some of them when its turn comes, so it is judged where each process has one.

use std::collections::BTreeMap;

use super::Verdict;
use crate::attempt::{Attempt, End};
use crate::history::Moment;
use crate::nemesis::Calm;
use crate::plan::Plan;

/// So much earlier is earlier: a process on a busy machine may be held up between its note and its request.
const APART: u64 = 50_000_000;

/// What it takes until a calm is one.
const SETTLED: u64 = 500_000_000;

/// Somebody in line: since when, and from when on no more.
#[derive(Clone, Copy)]
struct InLine {
    process: usize,
    from: Moment,
    until: Moment,
    served: bool,
}

pub(crate) fn check(plan: &Plan, attempts: &[Attempt], calms: &[Calm]) -> Verdict {
    let mut verdict = Verdict::new("those who came first are served first");
    if plan.tasks > 1 {
        return verdict;
    }
    let mut lines: BTreeMap<u32, Vec<InLine>> = BTreeMap::new();
    for attempt in attempts {
        let (until, served) = match attempt.end {
            End::Held(holding) => (holding.got, true),
            End::Failed { at, .. } => (at, false),
            End::Unanswered => continue,
        };
        if plan.kind(attempt.lock).is_fair() && attempt.patient {
            lines.entry(attempt.lock).or_default().push(InLine {
                process: attempt.process,
                from: attempt.wanted,
                until,
                served,
            });
        }
    }
    for (lock, line) in &mut lines {
        line.sort_by_key(|one| one.from);
        for calm in calms {
            let first = line.partition_point(|one| one.from < calm.0 + SETTLED);
            let last = line.partition_point(|one| one.from < calm.1);
            in_calm(*lock, &line[first..last.max(first)], calm.1, &mut verdict);
        }
    }
    verdict
}

/// Looks whether anybody was served before one who had come earlier.
fn in_calm(lock: u32, line: &[InLine], end: Moment, verdict: &mut Verdict) {
    for later in line.iter().filter(|one| one.served && one.until < end) {
        let earlier = line
            .iter()
            .take_while(|one| one.from + APART < later.from)
            .filter(|one| one.until > later.from);
        for earlier in earlier {
            verdict.looked_at += 1;
            if later.until < earlier.until && earlier.served {
                let late = (later.from - earlier.from) / 1_000_000;
                verdict.wrong(|| {
                    format!(
                        "lock {lock}: process {} was served before process {}, who had come {late} ms earlier",
                        later.process, earlier.process
                    )
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::held;
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    const MS: u64 = 1_000_000;

    #[test]
    fn one_who_overtakes_is_found_in_a_calm() {
        let someone = |process, wanted: u64, got: u64| {
            held(process, wanted * MS, got * MS, (got + 1) * MS, got)
        };
        let calm = [(0, 2000 * MS)];
        let wrong = |attempts: &[Attempt], calms: &[Calm]| {
            check(&plan_of(Kind::Fair), attempts, calms).wrong
        };
        let fair = [someone(0, 600, 700), someone(1, 670, 702)];
        assert_eq!(wrong(&fair, &calm), 0);
        let unfair = [someone(0, 600, 702), someone(1, 670, 700)];
        assert_eq!(wrong(&unfair, &calm), 1);
        assert_eq!(wrong(&unfair, &[]), 0, "in a storm nobody knows");
        let close = [someone(0, 600, 702), someone(1, 640, 700)];
        assert_eq!(wrong(&close, &calm), 0, "nobody knows who came first");
    }
}

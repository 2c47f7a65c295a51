//! Nobody waits in vain: a lock that nobody holds is had by one who waits for it within the plan's bound, outages aside.
//!
//! Not counted is the time in which a server, the network, the machine or the one who waits could do nothing.

use std::time::Duration;

use super::{Verdict, by_lock, merged};
use crate::attempt::{Attempt, End};
use crate::history::Moment;
use crate::nemesis::Deed;
use crate::plan::{Fault, Plan, Topology};
use crate::worker::max_lease;

/// What it takes after an outage until all are connected again.
const RECOVERY: u64 = 500_000_000;

pub(crate) fn check(plan: &Plan, attempts: &[Attempt], deeds: &[Deed]) -> Verdict {
    let mut verdict = Verdict::new("nobody waits for what nobody holds");
    let outages = outages(plan, deeds);
    let held = by_lock(attempts, super::held);
    let held: std::collections::HashMap<_, _> = held
        .iter()
        .map(|(lock, holdings)| {
            let spans = holdings.iter().map(|(_, holding)| {
                (
                    holding.got,
                    holding.gave.unwrap_or(holding.until).max(holding.got),
                )
            });
            (*lock, merged(spans.collect()))
        })
        .collect();
    let bound = plan.stuck_ms * 1_000_000;
    for attempt in attempts.iter().filter(|attempt| attempt.patient) {
        let until = match attempt.end {
            End::Held(holding) => holding.got,
            End::Failed { at, .. } => at,
            End::Unanswered => continue,
        };
        verdict.looked_at += 1;
        if until - attempt.wanted <= bound {
            continue;
        }
        let none = Vec::new();
        let spans = held.get(&attempt.lock).unwrap_or(&none);
        for (from, until) in gaps(spans, attempt.wanted, until) {
            let waited = (until - from) - overlap(&outages, from, until);
            if waited > bound {
                verdict.wrong(|| {
                    let (lock, process) = (attempt.lock, attempt.process);
                    let waited = waited / 1_000_000;
                    format!("lock {lock}: process {process} waited for {waited} ms from {from} on, when nobody held it")
                });
            }
        }
    }
    verdict
}

/// When requests could not be answered. A quorum bears that of two servers, and one that was started again does not vote for a while.
pub(super) fn outages(plan: &Plan, deeds: &[Deed]) -> Vec<(Moment, Moment)> {
    let quarantine = max_lease(plan) + Duration::from_secs(2);
    let span = |deed: &Deed| match (plan.topology, deed.fault) {
        (Topology::Quorum, Fault::RestartServer) => {
            (deed.from, deed.until + quarantine.as_nanos() as u64)
        }
        _ => (deed.from, deed.until + RECOVERY),
    };
    let outages = deeds.iter().filter(|deed| is_outage(deed.fault));
    if plan.topology != Topology::Quorum {
        return merged(outages.map(span).collect());
    }
    let (of_all, of_servers): (Vec<&Deed>, Vec<&Deed>) =
        outages.partition(|deed| matches!(deed.fault, Fault::PauseWorker | Fault::MachineTaken));
    let mut spans = at_least_three(of_servers.into_iter().map(span));
    spans.extend(of_all.into_iter().map(span));
    merged(spans)
}

/// When three of the spans, or more, overlap.
fn at_least_three(spans: impl Iterator<Item = (Moment, Moment)>) -> Vec<(Moment, Moment)> {
    let ends = spans.flat_map(|(from, until)| [(from, 1), (until, -1)]);
    let mut ends: Vec<(Moment, i32)> = ends.collect();
    ends.sort_unstable();
    let (mut depth, mut found) = (0, Vec::new());
    for pair in ends.windows(2) {
        depth += pair[0].1;
        if depth >= 3 {
            found.push((pair[0].0, pair[1].0));
        }
    }
    found
}

/// Whether it keeps requests from being answered.
fn is_outage(fault: Fault) -> bool {
    !matches!(
        fault,
        Fault::KillWorker
            | Fault::Sever
            | Fault::FlushScripts
            | Fault::KillClients
            | Fault::KillSubscribers
            | Fault::FlushData
            | Fault::ForgetSentinel
            | Fault::SleepSentinel
    )
}

/// What lies between the spans, from one moment to another.
fn gaps(spans: &[(Moment, Moment)], from: Moment, until: Moment) -> Vec<(Moment, Moment)> {
    let first = spans.partition_point(|span| span.1 <= from);
    let inside = spans[first..].iter().take_while(|span| span.0 < until);
    let mut gaps = Vec::new();
    let mut free = from;
    for span in inside {
        if span.0 > free {
            gaps.push((free, span.0));
        }
        free = free.max(span.1);
    }
    if free < until {
        gaps.push((free, until));
    }
    gaps
}

/// How much of the time the spans cover.
pub(super) fn overlap(spans: &[(Moment, Moment)], from: Moment, until: Moment) -> u64 {
    let first = spans.partition_point(|span| span.1 <= from);
    let inside = spans[first..].iter().take_while(|span| span.0 < until);
    inside
        .map(|span| span.1.min(until) - span.0.max(from))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::examples::held;
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn one_who_waits_for_a_free_lock_is_found_unless_there_is_an_outage() {
        let plan = plan_of(Kind::Mutex);
        let wrong = |wanted: u64, got: u64, deeds: &[Deed]| {
            let first = held(0, SECOND, SECOND, 2 * SECOND, 1);
            let next = held(1, wanted * SECOND, got * SECOND, (got + 1) * SECOND, 2);
            check(&plan, &[first, next], deeds).wrong
        };
        // Two seconds are allowed; it is free from the second second on.
        assert_eq!(wrong(1, 3, &[]), 0);
        assert_eq!(wrong(1, 5, &[]), 1);
        assert_eq!(wrong(3, 9, &[]), 1);
        let fault = |fault| Deed {
            fault,
            from: 2 * SECOND,
            until: 4 * SECOND,
        };
        assert_eq!(wrong(1, 5, &[fault(Fault::PauseServer)]), 0);
        assert_eq!(wrong(1, 5, &[fault(Fault::MachineTaken)]), 0);
        assert_eq!(wrong(1, 5, &[fault(Fault::Sever)]), 1);
    }

    #[test]
    fn a_quorum_bears_two_that_fail() {
        let spans = [(1, 9), (2, 8), (4, 6), (5, 7)];
        assert_eq!(at_least_three(spans[..2].iter().copied()), []);
        assert_eq!(merged(at_least_three(spans.into_iter())), [(4, 7)]);
    }

    #[test]
    fn gaps_are_what_is_left() {
        assert_eq!(gaps(&[(2, 4), (6, 8)], 1, 9), [(1, 2), (4, 6), (8, 9)]);
        assert_eq!(gaps(&[(0, 4), (6, 8)], 1, 7), [(4, 6)]);
        assert_eq!(overlap(&[(2, 4), (6, 8)], 3, 7), 2);
    }
}

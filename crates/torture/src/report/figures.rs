//! The figures of a run as JSON, which `scripts/results.py` records.

use std::collections::BTreeMap;

use serde_json::json;

use super::summary::Run;
use crate::check::{Verdict, hand_over, store};

/// Returns the figures of a run.
pub(crate) fn figures(run: &Run<'_>) -> String {
    let verdict = match (run.kept_promises(), run.void()) {
        (false, _) => "failed",
        (true, Some(_)) => "void",
        (true, None) => "passed",
    };
    let figures = json!({
        "kind": "torture",
        "name": run.file,
        "seed": run.plan.seed,
        "seconds": run.seconds().round() as u64,
        "verdict": verdict,
        "counts": counts(run),
    });
    format!("{figures}\n")
}

/// Returns what may be added up over several runs.
fn counts(run: &Run<'_>) -> BTreeMap<&'static str, u64> {
    let faults = run.fault_counts();
    let failovers = faults
        .iter()
        .filter(|(label, _)| label.starts_with("failover"));
    let failovers: usize = failovers.map(|(_, count)| count).sum();
    let (expected, broken): (Vec<_>, Vec<_>) = run
        .verdicts
        .iter()
        .partition(|verdict| run.is_expected(verdict));
    let violations = |verdicts: Vec<&Verdict>| verdicts.iter().map(|one| one.violations).sum();
    let mut counts: BTreeMap<_, u64> = BTreeMap::from([
        ("acquisitions", run.acquisitions() as u64),
        ("disturbed requests", run.faulty_requests),
        ("expected violations", violations(expected)),
        ("failovers", failovers as u64),
        ("faults", run.faults.len() as u64),
        ("losses", run.lost() as u64),
        ("unfenced writes lost", run.lost_writes),
        ("violations", violations(broken)),
    ]);
    for (name, checker) in [("writes", store::NAME), ("adoptions", hand_over::NAME)] {
        let verdict = run.verdicts.iter().find(|one| one.name == checker);
        counts.extend(verdict.map(|one| (name, one.checked)));
    }
    counts.extend(faults.iter().map(|(label, count)| (*label, *count as u64)));
    counts
}

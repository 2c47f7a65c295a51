//! The HTML page of a run: workload, verdicts, charts and faults.

use std::fmt::Write;

use super::charts;
use super::summary::Run;
use crate::check::Verdict;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;\
    margin:2rem auto;padding:0 1rem;color:#222}\
    table{border-collapse:collapse;margin:1rem 0}\
    td,th{text-align:left;padding:.25rem 1.5rem .25rem 0;\
    border-bottom:1px solid #ddd;vertical-align:top}\
    td.number{text-align:right}\
    .failed{color:#b00020;font-weight:600}.passed{color:#1b7a3d;font-weight:600}\
    svg{display:block;margin:1rem 0}code{background:#f3f3f3;padding:.1rem .3rem}";

/// Renders the page of a run.
pub(crate) fn page(run: &Run<'_>) -> String {
    let plan = run.plan;
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title>\
         <style>{STYLE}</style><h1>{name}</h1>\
         <p>{count} acquisitions of {locks} locks in {seconds:.0} s ({rate:.0} per second), by \
         {processes} processes with {tasks} tasks each and leases of {lease} ms. {faults} faults; \
         {faulty} requests cut, dropped, duplicated or delayed. {lost} leases were lost and \
         reported so. Without fencing, {lost_writes} writes were lost.</p>{conclusion}",
        name = plan.name,
        count = run.acquisitions(),
        seconds = run.seconds(),
        rate = run.rate(),
        locks = plan.locks,
        processes = plan.processes,
        tasks = plan.tasks,
        lease = plan.lease_ms,
        faults = run.faults.len(),
        faulty = run.faulty_requests,
        lost = run.lost(),
        lost_writes = run.lost_writes,
        conclusion = conclusion(run),
    );
    page += &verdict_table(run);
    page += &charts::throughput(run);
    page += &charts::holds(run);
    page += &fault_table(run);
    let _ = write!(
        page,
        "<p>To repeat the run, except for the timing of the machine: \
         <code>TORTURE_SEED={} scripts/torture {} {}</code></p></html>",
        plan.seed, plan.seconds, run.file
    );
    page
}

fn conclusion(run: &Run<'_>) -> String {
    match (run.kept_promises(), run.void()) {
        (true, None) => "<p class=passed>Every promise was kept.</p>".to_owned(),
        (true, Some(reason)) => format!("<p class=failed>This run is void: {reason}.</p>"),
        (false, _) => "<p class=failed>A promise was broken.</p>".to_owned(),
    }
}

fn verdict_table(run: &Run<'_>) -> String {
    let mut table = "<h2>Checks</h2><table>\
        <tr><th>check<th>checked<th>violations<th>rate below, with 95 % confidence"
        .to_owned();
    for verdict in run.relevant() {
        let found = match (verdict.is_clean(), run.is_expected(verdict)) {
            (true, _) => "0".to_owned(),
            (false, true) => format!("{}, expected under these faults", verdict.violations),
            (false, false) => format!(
                "<span class=failed>{}</span><br>{}",
                verdict.violations,
                verdict.examples.join("<br>")
            ),
        };
        let bound = bound(verdict);
        let (name, checked) = (verdict.name, verdict.checked);
        let _ = write!(
            table,
            "<tr><td>{name}<td class=number>{checked}<td>{found}<td>{bound}"
        );
    }
    table + "</table>"
}

fn fault_table(run: &Run<'_>) -> String {
    let mut table = "<h2>Faults</h2><table>".to_owned();
    for (label, count) in run.fault_counts() {
        let _ = write!(table, "<tr><td>{label}<td class=number>{count}");
    }
    table + "</table>"
}

/// Returns an upper bound on the rate of violations when none was found, by the
/// rule of three.
fn bound(verdict: &Verdict) -> String {
    match (verdict.violations, verdict.checked) {
        (0, 100..) => format!("one in {:.0}", verdict.checked as f64 / 3.0),
        _ => "–".to_owned(),
    }
}

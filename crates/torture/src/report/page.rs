//! The page: what was run, what was checked and found, and what that says about how often it can happen.

use std::fmt::Write;

use super::{Run, picture};
use crate::check::Verdict;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}\
    table{border-collapse:collapse;margin:1rem 0}td,th{text-align:left;padding:.25rem 1.5rem .25rem 0;border-bottom:1px solid #ddd;vertical-align:top}\
    td.number{text-align:right}.wrong{color:#b00020;font-weight:600}.well{color:#1b7a3d;font-weight:600}svg{display:block;margin:1rem 0}\
    code{background:#f3f3f3;padding:.1rem .3rem}";

impl Run<'_> {
    /// The whole page.
    pub(crate) fn page(&self) -> String {
        let plan = self.plan;
        let mut page = format!(
            "<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{STYLE}</style><h1>{name}</h1>\
             <p>{count} acquisitions in {seconds:.0} s ({rate:.0} a second) of {locks} locks by {processes} processes with {tasks} tasks each; \
             leases of {lease} ms. {deeds} faults, and {harmed} requests cut, swallowed, repeated or late. {lost} holdings were lost, and told so. \
             Without fencing {forgotten} sales were forgotten.</p>{sentence}",
            name = plan.name,
            count = self.acquisitions(),
            seconds = self.seconds(),
            rate = self.rate(),
            locks = plan.locks,
            processes = plan.processes,
            tasks = plan.tasks,
            lease = plan.lease_ms,
            deeds = self.deeds.len(),
            harmed = self.harmed,
            lost = self.lost(),
            forgotten = self.forgotten,
            sentence = self.sentence(),
        );
        page += &self.checks();
        page += &picture::throughput(self);
        page += &picture::holds(self);
        page += &self.fault_table();
        let _ = write!(
            page,
            "<p>The same again, but for the machine's own timing: <code>TORTURE_SEED={} scripts/torture {} {}</code></p></html>",
            plan.seed, plan.seconds, self.file
        );
        page
    }

    fn sentence(&self) -> String {
        match (self.is_kept(), self.void()) {
            (true, None) => "<p class=well>Everything that is promised was kept.</p>".to_owned(),
            (true, Some(why)) => format!("<p class=wrong>This run proves nothing: {why}.</p>"),
            (false, _) => "<p class=wrong>A promise was broken.</p>".to_owned(),
        }
    }

    fn checks(&self) -> String {
        let mut table = "<h2>What was checked</h2><table><tr><th>check<th>looked at<th>wrong<th>so, with 95 % certainty, below".to_owned();
        for verdict in self.judged() {
            let found = match (verdict.is_clean(), self.is_excused(verdict)) {
                (true, _) => "0".to_owned(),
                (false, true) => format!("{}, as these faults allow", verdict.wrong),
                (false, false) => format!(
                    "<span class=wrong>{}</span><br>{}",
                    verdict.wrong,
                    verdict.examples.join("<br>")
                ),
            };
            let bound = bound(verdict);
            let (name, looked_at) = (verdict.name, verdict.looked_at);
            let _ = write!(
                table,
                "<tr><td>{name}<td class=number>{looked_at}<td>{found}<td>{bound}"
            );
        }
        table + "</table>"
    }

    fn fault_table(&self) -> String {
        let mut table = "<h2>Faults</h2><table>".to_owned();
        for (word, count) in self.faults() {
            let _ = write!(table, "<tr><td>{word}<td class=number>{count}");
        }
        table + "</table>"
    }
}

/// How often it can happen at most when it was never seen in so many: the rule of three.
fn bound(verdict: &Verdict) -> String {
    match (verdict.wrong, verdict.looked_at) {
        (0, 100..) => format!("one in {:.0}", verdict.looked_at as f64 / 3.0),
        _ => "–".to_owned(),
    }
}

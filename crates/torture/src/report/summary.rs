//! The results of a run, and their summary.

use std::fmt::Write;

use crate::attempt::Attempt;
use crate::check::Verdict;
use crate::fault_log::InjectedFault;
use crate::history::Timestamp;
use crate::plan::Plan;

pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    /// The name of the plan's file.
    pub(crate) file: &'a str,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) attempts: &'a [Attempt],
    pub(crate) faults: &'a [InjectedFault],
    pub(crate) faulty_requests: u64,
    /// How many writes the unfenced store lost.
    pub(crate) lost_writes: u64,
    pub(crate) verdicts: &'a [Verdict],
}

impl Run<'_> {
    /// Returns whether every promise was kept, and a control run detected a
    /// violation. A run on a machine that was too slow is void, not failed.
    pub(crate) fn passed(&self) -> bool {
        self.kept_promises() && !self.missed_control()
    }

    pub(super) fn kept_promises(&self) -> bool {
        let kept = |verdict: &Verdict| verdict.is_clean() || self.is_expected(verdict);
        self.verdicts.iter().all(kept)
    }

    /// Returns whether violations are expected because a fault breaks
    /// exclusion.
    pub(super) fn is_expected(&self, verdict: &Verdict) -> bool {
        !self.plan.promises_exclusion() && verdict.needs_exclusion
    }

    /// Returns the verdicts that checked something.
    pub(super) fn relevant(&self) -> impl Iterator<Item = &Verdict> {
        let verdicts = self.verdicts.iter();
        verdicts.filter(|verdict| verdict.checked > 0 || !verdict.is_clean())
    }

    /// Returns whether this is a control run that detected no violation.
    fn missed_control(&self) -> bool {
        let mut expected = self.verdicts.iter().filter(|one| self.is_expected(one));
        self.plan.control && expected.all(Verdict::is_clean)
    }

    /// Returns why the run is void, if it is.
    pub(super) fn void(&self) -> Option<String> {
        let min_rate = self.plan.min_rate;
        if self.missed_control() {
            return Some("the control run detected no violation".to_owned());
        }
        // A violation that a control run detected counts at any rate.
        let too_slow = !self.plan.control && self.rate() < f64::from(min_rate);
        too_slow.then(|| {
            format!(
                "{:.0} acquisitions/s is below the minimum of {min_rate}",
                self.rate()
            )
        })
    }

    pub(super) fn acquisitions(&self) -> usize {
        self.attempts.iter().filter_map(Attempt::hold).count()
    }

    pub(super) fn seconds(&self) -> f64 {
        (self.until - self.from) as f64 / 1e9
    }

    /// Returns the acquisitions per second while faults were injected.
    pub(super) fn rate(&self) -> f64 {
        let holds = self.attempts.iter().filter_map(Attempt::hold);
        let during = holds.filter(|hold| hold.acquired < self.until).count();
        during as f64 / self.seconds()
    }

    /// Returns the number of leases lost.
    pub(super) fn lost(&self) -> usize {
        let holds = self.attempts.iter().filter_map(Attempt::hold);
        holds.filter(|hold| hold.lost).count()
    }

    /// Returns how often each fault was injected, the most frequent first.
    pub(super) fn fault_counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for injected in self.faults {
            *counts.entry(injected.fault.label()).or_insert(0) += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(label, count)| (std::cmp::Reverse(*count), *label));
        counts
    }

    /// Returns all faults in order, timed by the clock of the histories.
    pub(crate) fn fault_list(&self) -> String {
        let faults = self.faults.iter();
        let lines = faults.map(|injected| {
            let label = injected.fault.label();
            format!("{} {} {label}\n", injected.from, injected.until)
        });
        lines.collect()
    }

    /// Returns the summary for the terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}: {} acquisitions, {:.0} per second; {} faults, {} faulty requests; {} leases \
             lost; {} writes lost without fencing; seed {}\n",
            self.plan.name,
            self.acquisitions(),
            self.rate(),
            self.faults.len(),
            self.faulty_requests,
            self.lost(),
            self.lost_writes,
            self.plan.seed,
        );
        for verdict in self.relevant() {
            let outcome = match (verdict.is_clean(), self.is_expected(verdict)) {
                (true, _) => "ok      ",
                (false, true) => "expected",
                (false, false) => "FAILED  ",
            };
            let Verdict {
                name,
                checked,
                violations,
                ..
            } = verdict;
            let _ = writeln!(text, "{outcome} {name}: {violations} of {checked}");
            if !verdict.is_clean() && !self.is_expected(verdict) {
                for example in &verdict.examples {
                    let _ = writeln!(text, "           {example}");
                }
            }
        }
        if let Some(reason) = self.void() {
            let _ = writeln!(text, "VOID     {reason}");
        }
        text
    }
}

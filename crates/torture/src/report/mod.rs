//! What a run came to: a few lines for a terminal, and a page with pictures.

mod page;
mod picture;

use std::fmt::Write;

use crate::attempt::Attempt;
use crate::check::Verdict;
use crate::history::Moment;
use crate::nemesis::Deed;
use crate::plan::Plan;

pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    /// What the plan's file is called.
    pub(crate) file: &'a str,
    pub(crate) from: Moment,
    pub(crate) until: Moment,
    pub(crate) attempts: &'a [Attempt],
    pub(crate) deeds: &'a [Deed],
    pub(crate) harmed: u64,
    /// How many sales the store without fencing forgot.
    pub(crate) forgotten: u64,
    pub(crate) verdicts: &'a [Verdict],
}

impl Run<'_> {
    /// Whether all that is promised was kept, and a control shows what it must. What a machine was too slow for is void, not wrong.
    pub(crate) fn is_well(&self) -> bool {
        self.is_kept() && !self.is_blind()
    }

    /// Whether all that is promised was kept.
    fn is_kept(&self) -> bool {
        let kept = |verdict: &Verdict| verdict.is_clean() || self.is_excused(verdict);
        self.verdicts.iter().all(kept)
    }

    /// Where a fault breaks what exclusion rests on, what follows from it is told and not held against anybody.
    fn is_excused(&self, verdict: &Verdict) -> bool {
        !self.plan.promises_exclusion() && verdict.rests_on_exclusion
    }

    /// Those who had something to look at.
    fn judged(&self) -> impl Iterator<Item = &Verdict> {
        let verdicts = self.verdicts.iter();
        verdicts.filter(|verdict| verdict.looked_at > 0 || !verdict.is_clean())
    }

    /// Whether it is a control that shows nothing.
    fn is_blind(&self) -> bool {
        let mut excused = self.verdicts.iter().filter(|one| self.is_excused(one));
        self.plan.control && excused.all(Verdict::is_clean)
    }

    /// Why the run proves nothing, if so.
    fn void(&self) -> Option<String> {
        let least = self.plan.least;
        if self.is_blind() {
            return Some("a control that shows nothing".to_owned());
        }
        // What a control has shown it has shown, however slow.
        let too_slow = !self.plan.control && self.rate() < f64::from(least);
        too_slow.then(|| format!("fewer than {least} acquisitions a second"))
    }

    fn acquisitions(&self) -> usize {
        let held = self
            .attempts
            .iter()
            .filter(|attempt| attempt.holding().is_some());
        held.count()
    }

    fn seconds(&self) -> f64 {
        (self.until - self.from) as f64 / 1e9
    }

    /// Acquisitions a second while things were broken.
    fn rate(&self) -> f64 {
        let holdings = self.attempts.iter().filter_map(Attempt::holding);
        let meanwhile = holdings.filter(|holding| holding.got < self.until).count();
        meanwhile as f64 / self.seconds()
    }

    fn lost(&self) -> usize {
        let holdings = self.attempts.iter().filter_map(Attempt::holding);
        holdings.filter(|holding| holding.lost).count()
    }

    /// How often each fault was made, the most frequent first.
    fn faults(&self) -> Vec<(&'static str, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for deed in self.deeds {
            *counts.entry(deed.fault.word()).or_insert(0) += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
        counts
    }

    /// All faults in order, by the clock of the histories.
    pub(crate) fn diary(&self) -> String {
        let deeds = self.deeds.iter();
        let lines =
            deeds.map(|deed| format!("{} {} {}\n", deed.from, deed.until, deed.fault.word()));
        lines.collect()
    }

    /// What a terminal is told.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}: {} acquisitions, {:.0} a second; {} faults, {} requests harmed; {} holdings lost; {} sales forgotten without fencing; seed {}\n",
            self.plan.name,
            self.acquisitions(),
            self.rate(),
            self.deeds.len(),
            self.harmed,
            self.lost(),
            self.forgotten,
            self.plan.seed,
        );
        for verdict in self.judged() {
            let sign = match (verdict.is_clean(), self.is_excused(verdict)) {
                (true, _) => "ok      ",
                (false, true) => "expected",
                (false, false) => "WRONG   ",
            };
            let Verdict {
                name,
                looked_at,
                wrong,
                ..
            } = verdict;
            let _ = writeln!(text, "{sign} {name}: {wrong} of {looked_at}");
            if !verdict.is_clean() && !self.is_excused(verdict) {
                for example in &verdict.examples {
                    let _ = writeln!(text, "           {example}");
                }
            }
        }
        if let Some(why) = self.void() {
            let _ = writeln!(text, "VOID     {why}");
        }
        text
    }
}

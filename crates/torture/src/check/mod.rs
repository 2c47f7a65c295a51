//! Those who check histories. Each says what it looked at and what it found; each is shown to find what it looks for.

pub(crate) mod connections;
pub(crate) mod exclusion;
pub(crate) mod leftovers;
pub(crate) mod linear;
pub(crate) mod order;
pub(crate) mod service;
pub(crate) mod store;
pub(crate) mod tokens;
pub(crate) mod waiting;

use std::collections::BTreeMap;

use crate::attempt::{Attempt, Holding};
use crate::history::Moment;

/// How much of what is wrong is told.
const SOME: usize = 10;

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) name: &'static str,
    /// How many things were looked at.
    pub(crate) looked_at: u64,
    /// How many of them are wrong.
    pub(crate) wrong: u64,
    /// Whether it can only be kept where exclusion is promised.
    pub(crate) rests_on_exclusion: bool,
    /// Some of what is wrong.
    pub(crate) examples: Vec<String>,
}

impl Verdict {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            looked_at: 0,
            wrong: 0,
            rests_on_exclusion: false,
            examples: Vec::new(),
        }
    }

    fn resting_on_exclusion(self) -> Self {
        Self {
            rests_on_exclusion: true,
            ..self
        }
    }

    fn wrong(&mut self, example: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.examples.len() < SOME {
            self.examples.push(example());
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.wrong == 0
    }
}

/// What `pick` takes of the attempts at each lock.
fn by_lock<'a, T>(
    attempts: &'a [Attempt],
    pick: impl Fn(&'a Attempt) -> Option<T>,
) -> BTreeMap<u32, Vec<T>> {
    let mut locks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for attempt in attempts {
        if let Some(picked) = pick(attempt) {
            locks.entry(attempt.lock).or_default().push(picked);
        }
    }
    locks
}

/// Those that held something, and what.
fn held(attempt: &Attempt) -> Option<(&Attempt, &Holding)> {
    Some((attempt, attempt.holding()?))
}

/// Spans of time, merged and in order.
fn merged(mut spans: Vec<(Moment, Moment)>) -> Vec<(Moment, Moment)> {
    spans.sort_unstable();
    let mut merged: Vec<(Moment, Moment)> = Vec::new();
    for (from, until) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => merged.push((from, until)),
        }
    }
    merged
}

#[cfg(test)]
mod examples {
    use super::*;
    use crate::attempt::End;

    /// Somebody who wanted all of lock 0, had it from `got` until `until`, and gave it back at once.
    pub(super) fn held(process: usize, wanted: u64, got: u64, until: u64, token: u64) -> Attempt {
        Attempt {
            process,
            lock: 0,
            weight: 1,
            patient: true,
            wanted,
            end: End::Held(Holding {
                got,
                until,
                gave: Some(until + 1),
                token,
                lost: false,
            }),
        }
    }

    #[test]
    fn spans_that_touch_are_one() {
        assert_eq!(
            merged(vec![(5, 9), (1, 3), (3, 4), (6, 7)]),
            [(1, 4), (5, 9)]
        );
    }
}

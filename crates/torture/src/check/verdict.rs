//! The verdict of a checker.

use std::collections::BTreeMap;

use crate::attempt::{Attempt, Hold};

/// How many violations a report shows.
const MAX_EXAMPLES: usize = 10;

/// The result of a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) name: &'static str,
    /// The number of items checked.
    pub(crate) checked: u64,
    /// The number of violations.
    pub(crate) violations: u64,
    /// Whether the property holds only where exclusion is promised.
    pub(crate) needs_exclusion: bool,
    /// Some of the violations.
    pub(crate) examples: Vec<String>,
}

impl Verdict {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            checked: 0,
            violations: 0,
            needs_exclusion: false,
            examples: Vec::new(),
        }
    }

    pub(super) fn needing_exclusion(self) -> Self {
        Self {
            needs_exclusion: true,
            ..self
        }
    }

    pub(super) fn violation(&mut self, example: impl FnOnce() -> String) {
        self.violations += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(example());
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.violations == 0
    }
}

/// Groups by lock what `pick` selects of each attempt.
pub(super) fn by_lock<'a, T>(
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

/// Returns an attempt with its hold, if it succeeded.
pub(super) fn held(attempt: &Attempt) -> Option<(&Attempt, &Hold)> {
    Some((attempt, attempt.hold()?))
}

#[cfg(test)]
pub(super) mod examples {
    use super::*;
    use crate::attempt::Outcome;

    /// Returns an attempt that held lock 0 from `acquired` until `until`, and
    /// released it immediately.
    pub(in crate::check) fn held(
        process: usize,
        requested: u64,
        acquired: u64,
        until: u64,
        token: u64,
    ) -> Attempt {
        Attempt {
            process,
            lock: 0,
            weight: 1,
            waits: true,
            requested,
            outcome: Outcome::Held(Hold {
                acquired,
                until,
                released: Some(until + 1),
                token,
                lost: false,
            }),
        }
    }
}

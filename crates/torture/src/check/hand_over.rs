//! Checks that each ticket of a hand-over gives at most one holder, whose token
//! is larger than that of the holder before.

use std::collections::HashSet;

use super::verdict::Verdict;
use crate::history::{Event, EventKind};

pub(crate) const NAME: &str = "a ticket gives one holder, with a larger token";

pub(crate) fn check(histories: &[Vec<Event>]) -> Verdict {
    let mut verdict = Verdict::new(NAME);
    let mut adopted = HashSet::new();
    for event in histories.iter().flatten() {
        let EventKind::Adopted {
            ticket,
            token,
            given,
        } = event.kind
        else {
            continue;
        };
        verdict.checked += 1;
        let lock = event.lock;
        if !adopted.insert(ticket) {
            verdict.violation(|| format!("lock {lock}: ticket {ticket} was adopted twice"));
        }
        if token <= given {
            verdict.violation(|| format!("lock {lock}: token {token} follows {given}"));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_adoption_and_smaller_token_are_found() {
        let violations = |lines: &[&str]| {
            let events = lines.iter().map(|line| line.parse().unwrap());
            check(&[events.collect()]).violations
        };
        let first = "adopted 1 1 10 7 5 4";
        assert_eq!(violations(&[first, "adopted 1 2 20 8 6 5"]), 0);
        assert_eq!(violations(&[first, "adopted 1 2 20 7 6 4"]), 1);
        assert_eq!(violations(&["adopted 1 1 10 7 4 4"]), 1);
    }
}

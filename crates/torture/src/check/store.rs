//! Checks that the fenced store accepts no stale write, loses no write that it
//! accepted, and applies each write once.

use std::collections::HashSet;

use super::verdict::Verdict;
use crate::fenced_store::{Contents, writer};
use crate::history::{Event, EventKind};

pub(crate) const NAME: &str = "the fenced store accepts no stale write and loses none";

pub(crate) fn check(histories: &[Vec<Event>], store: &[Contents]) -> Verdict {
    let mut verdict = Verdict::new(NAME);
    let mut stored = HashSet::new();
    for (lock, contents) in (0..).zip(store) {
        let (mut token, mut value) = (0, 0);
        for write in &contents.fenced {
            stored.insert((lock, write.writer.clone()));
            if write.token < token {
                verdict.violation(|| {
                    format!(
                        "lock {lock}: token {} was accepted after {token}",
                        write.token
                    )
                });
            }
            if write.value != value + 1 {
                verdict.violation(|| {
                    format!(
                        "lock {lock}: value {} follows {value}, so a write is lost",
                        write.value
                    )
                });
            }
            (token, value) = (write.token, write.value);
        }
    }
    for (process, events) in histories.iter().enumerate() {
        for event in events {
            let EventKind::Wrote { accepted, .. } = event.kind else {
                continue;
            };
            verdict.checked += 1;
            let by = (event.lock, writer(process, event.hold));
            if accepted == Some(true) && !stored.contains(&by) {
                verdict.violation(|| format!("lock {}: the write of {} is lost", by.0, by.1));
            }
        }
    }
    verdict
}

/// Returns the number of writes that the unfenced store lost.
pub(crate) fn lost_without_fencing(store: &[Contents]) -> u64 {
    let unfenced = store.iter().map(|contents| contents.unfenced);
    unfenced
        .map(|(accepted, value)| accepted.saturating_sub(value))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fenced_store::Write;

    fn violations(writes: &[(u64, u64, &str)]) -> u64 {
        let wrote = |hold: u64, token: u64| Event {
            lock: 0,
            hold,
            at: 0,
            kind: EventKind::Wrote {
                token,
                accepted: Some(true),
            },
        };
        let write = |(token, value, writer): &(u64, u64, &str)| Write {
            token: *token,
            value: *value,
            writer: (*writer).to_owned(),
        };
        let contents = Contents {
            fenced: writes.iter().map(write).collect(),
            unfenced: (0, 0),
        };
        check(&[vec![wrote(1, 5), wrote(2, 6)]], &[contents]).violations
    }

    #[test]
    fn stale_and_lost_writes_are_found() {
        assert_eq!(violations(&[(5, 1, "0-1"), (6, 2, "0-2")]), 0);
        assert_eq!(violations(&[(6, 1, "0-2"), (5, 2, "0-1")]), 1, "stale");
        assert_eq!(
            violations(&[(5, 1, "0-1"), (6, 1, "0-2")]),
            1,
            "overwritten"
        );
        assert_eq!(violations(&[(5, 1, "0-1")]), 1, "lost");
    }

    #[test]
    fn lost_writes_of_the_unfenced_store_count() {
        let contents = Contents {
            fenced: Vec::new(),
            unfenced: (7, 5),
        };
        assert_eq!(lost_without_fencing(&[contents]), 2);
    }
}

//! What the answers of several independent nodes come to: a pure count, apart from all I/O.
//!
//! # Invariants
//!
//! 1. Held, kept and freed need more than half of *all* nodes, whether or not they have answered.
//! 2. A node that may not vote, or has not answered, counts for nobody.

use crate::backend::majority;

/// What one node said to one who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ballot {
    /// It is ours there.
    Granted,
    /// It is somebody else's there: what stands in its name, and for how many milliseconds.
    Taken { mark: Vec<u8>, left: i64 },
    /// It has granted this token or a higher one before.
    Stale { highest: u64 },
    /// It may not vote: it was started again, or its clock is wrong.
    Barred,
    /// It has not answered, or not so that it counts.
    Silent,
}

/// What the ballots come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    /// Somebody else has a majority.
    Busy {
        mark: Vec<u8>,
        left: i64,
    },
    /// Nobody has a majority, though there are enough votes for one; try again, above this token.
    Split {
        highest: u64,
    },
    /// Too few nodes vote for anybody to have a majority.
    TooFew {
        voting: usize,
    },
}

/// Who has the lock.
pub(super) fn election(ballots: &[Ballot]) -> Verdict {
    let majority = majority(ballots.len());
    let count = |wanted: fn(&Ballot) -> bool| ballots.iter().filter(|one| wanted(one)).count();
    if count(|ballot| *ballot == Ballot::Granted) >= majority {
        return Verdict::Held;
    }
    let voting = count(|ballot| !matches!(ballot, Ballot::Barred | Ballot::Silent));
    if voting < majority {
        return Verdict::TooFew { voting };
    }
    for ballot in ballots {
        let Ballot::Taken { mark, .. } = ballot else {
            continue;
        };
        let left = ballots.iter().filter_map(|other| match other {
            Ballot::Taken { mark: its, left } if its == mark => Some(*left),
            _ => None,
        });
        let mut left: Vec<_> = left.collect();
        if left.len() >= majority {
            // It is free when a majority of all is: so many must end first.
            left.sort_unstable();
            let left = left[left.len() - majority];
            let mark = mark.clone();
            return Verdict::Busy { mark, left };
        }
    }
    let highest = ballots.iter().filter_map(|ballot| match ballot {
        Ballot::Stale { highest } => Some(*highest),
        _ => None,
    });
    Verdict::Split {
        highest: highest.max().unwrap_or(0),
    }
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalTally {
    /// A majority has it; whether all that vote do.
    Kept { everywhere: bool },
    /// A majority can no longer be had.
    Gone,
    /// Too few have answered to tell.
    Unknown,
}

/// Whether a holder still has a majority. One answer per node: 1 kept, 0 missing, -1 another's, 3 barred.
pub(super) fn hold(answers: &[Option<i64>]) -> RenewalTally {
    let majority = majority(answers.len());
    let count = |wanted: i64| answers.iter().filter(|one| **one == Some(wanted)).count();
    let (kept, missing) = (count(1), count(0));
    if kept >= majority {
        let everywhere = missing == 0;
        RenewalTally::Kept { everywhere }
    } else if missing + count(-1) + count(3) > answers.len() - majority {
        RenewalTally::Gone
    } else {
        RenewalTally::Unknown
    }
}

/// What became of a release: whether a majority freed it; `None` when too few have answered to tell.
pub(super) fn freed(answers: &[Option<i64>]) -> Option<bool> {
    let majority = majority(answers.len());
    let count = |wanted: i64| answers.iter().filter(|one| **one == Some(wanted)).count();
    let (freed, not_ours) = (count(1), count(0));
    (freed + not_ours >= majority).then_some(freed >= majority)
}

#[cfg(test)]
mod tests {
    use super::Ballot::{Barred, Granted, Silent};
    use super::*;

    fn taken(mark: &str, left: i64) -> Ballot {
        let mark = mark.as_bytes().to_vec();
        Ballot::Taken { mark, left }
    }

    fn stale(highest: u64) -> Ballot {
        Ballot::Stale { highest }
    }

    #[test]
    fn a_majority_of_all_nodes_decides() {
        let busy = |mark: &str, left| Verdict::Busy {
            mark: mark.as_bytes().to_vec(),
            left,
        };
        let split = |highest| Verdict::Split { highest };
        for (ballots, verdict) in [
            (vec![Granted; 3], Verdict::Held),
            (vec![Granted, Granted, Silent], Verdict::Held),
            (vec![Granted, Silent, Silent], Verdict::TooFew { voting: 1 }),
            (vec![Granted, Barred, Silent], Verdict::TooFew { voting: 1 }),
            (vec![Granted, taken("a", 5), Silent], split(0)),
            (vec![taken("a", 5), taken("a", 7), Silent], busy("a", 5)),
            (
                vec![taken("a", 5), taken("a", 9), taken("a", 7)],
                busy("a", 7),
            ),
            (vec![taken("a", 5), taken("b", 7), Granted], split(0)),
            (vec![stale(9), stale(4), Granted], split(9)),
            (vec![stale(9), taken("a", 5), taken("a", 6)], busy("a", 5)),
            (vec![Silent; 3], Verdict::TooFew { voting: 0 }),
            (
                vec![Granted, Granted, Silent, Silent],
                Verdict::TooFew { voting: 2 },
            ),
            (
                vec![Granted, Granted, Silent, Silent, taken("a", 1)],
                split(0),
            ),
            (
                vec![Granted, Granted, Silent, Silent, Granted],
                Verdict::Held,
            ),
        ] {
            assert_eq!(election(&ballots), verdict, "{ballots:?}");
        }
    }

    #[test]
    fn a_holding_is_gone_when_no_majority_can_have_it() {
        let kept = |everywhere| RenewalTally::Kept { everywhere };
        for (answers, expected) in [
            (vec![Some(1), Some(1), Some(1)], kept(true)),
            (vec![Some(1), Some(1), None], kept(true)),
            (vec![Some(1), Some(1), Some(0)], kept(false)),
            (vec![Some(1), Some(1), Some(-1)], kept(true)),
            (vec![Some(1), None, None], RenewalTally::Unknown),
            (vec![Some(1), Some(0), None], RenewalTally::Unknown),
            (vec![Some(1), Some(0), Some(3)], RenewalTally::Gone),
            (vec![Some(0), Some(-1), None], RenewalTally::Gone),
        ] {
            assert_eq!(hold(&answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn a_release_counts_when_a_majority_answers() {
        for (answers, expected) in [
            (vec![Some(1), Some(1), None], Some(true)),
            (vec![Some(1), Some(0), None], Some(false)),
            (vec![Some(0), Some(0), Some(0)], Some(false)),
            (vec![Some(1), None, None], None),
        ] {
            assert_eq!(freed(&answers), expected, "{answers:?}");
        }
    }
}

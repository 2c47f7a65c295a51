//! Counts the replies of several independent nodes. Pure functions without I/O.
//!
//! # Invariants
//!
//! 1. A lock is held, renewed or released only by more than half of *all*
//!    nodes, whether or not they have replied.
//! 2. A node that does not vote, or has not replied, counts for no owner.

use crate::backend::majority;

/// The reply of one node to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ballot {
    /// The node granted the lock.
    Granted,
    /// Another owner holds the lock there: the value and remaining lease.
    Busy { value: Vec<u8>, remaining_ms: i64 },
    /// The node has granted this token or a higher one before.
    Stale { highest: u64 },
    /// The node does not vote: it was restarted, or the clock is wrong.
    NotVoting,
    /// The node has not replied, or the reply does not count.
    NoReply,
}

/// The result of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    /// Another owner has a majority.
    Busy {
        value: Vec<u8>,
        remaining_ms: i64,
    },
    /// No owner has a majority, though enough nodes vote. Retry above
    /// `highest`.
    Split {
        highest: u64,
    },
    /// Too few nodes vote for any owner to have a majority.
    TooFew {
        voting: usize,
    },
}

/// Decides which owner holds the lock.
pub(super) fn count_votes(ballots: &[Ballot]) -> Verdict {
    let majority = majority(ballots.len());
    let count = |wanted: fn(&Ballot) -> bool| ballots.iter().filter(|one| wanted(one)).count();
    if count(|ballot| *ballot == Ballot::Granted) >= majority {
        return Verdict::Held;
    }
    // Checked after `Held`: a majority that granted the lock outvotes the
    // other nodes.
    let voting = count(|ballot| !matches!(ballot, Ballot::NotVoting | Ballot::NoReply));
    if voting < majority {
        return Verdict::TooFew { voting };
    }
    for ballot in ballots {
        let Ballot::Busy { value, .. } = ballot else {
            continue;
        };
        let leases = ballots.iter().filter_map(|other| match other {
            Ballot::Busy {
                value: other,
                remaining_ms,
            } if other == value => Some(*remaining_ms),
            _ => None,
        });
        let mut leases: Vec<_> = leases.collect();
        if leases.len() >= majority {
            // The lock is free once fewer than a majority of the leases last.
            leases.sort_unstable();
            return Verdict::Busy {
                value: value.clone(),
                remaining_ms: leases[leases.len() - majority],
            };
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

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalTally {
    /// A majority renewed the lease; `everywhere` if no voting node misses it.
    Renewed { everywhere: bool },
    /// The owner can no longer have a majority.
    NotOwner,
    /// Too few nodes have replied to decide.
    Unknown,
}

/// Decides whether the holder still has a majority. A node replies 1 renewed,
/// 0 missing, -1 another owner's, 3 not voting.
pub(super) fn count_renewals(replies: &[Option<i64>]) -> RenewalTally {
    let majority = majority(replies.len());
    let count = |wanted: i64| replies.iter().filter(|one| **one == Some(wanted)).count();
    let (renewed, missing) = (count(1), count(0));
    if renewed >= majority {
        let everywhere = missing == 0;
        RenewalTally::Renewed { everywhere }
    // The owner is lost only when the nodes that are left cannot form a
    // majority.
    } else if missing + count(-1) + count(3) > replies.len() - majority {
        RenewalTally::NotOwner
    } else {
        RenewalTally::Unknown
    }
}

/// Decides whether a majority released the lock; `None` if too few nodes have
/// replied to decide.
pub(super) fn count_releases(replies: &[Option<i64>]) -> Option<bool> {
    let majority = majority(replies.len());
    let count = |wanted: i64| replies.iter().filter(|one| **one == Some(wanted)).count();
    // A node that did not reply may still have the lock.
    let is_lost = count(0) > replies.len() - majority;
    (count(1) >= majority || is_lost).then_some(!is_lost)
}

#[cfg(test)]
mod tests {
    use super::Ballot::{Granted, NoReply, NotVoting};
    use super::*;

    fn busy(value: &str, remaining_ms: i64) -> Ballot {
        let value = value.as_bytes().to_vec();
        Ballot::Busy {
            value,
            remaining_ms,
        }
    }

    fn stale(highest: u64) -> Ballot {
        Ballot::Stale { highest }
    }

    #[test]
    fn votes_need_a_majority_of_all_nodes() {
        let held_by = |value: &str, remaining_ms| Verdict::Busy {
            value: value.as_bytes().to_vec(),
            remaining_ms,
        };
        let split = |highest| Verdict::Split { highest };
        let too_few = |voting| Verdict::TooFew { voting };
        for (ballots, verdict) in [
            (vec![Granted; 3], Verdict::Held),
            (vec![Granted, Granted, NoReply], Verdict::Held),
            (vec![Granted, NoReply, NoReply], too_few(1)),
            (vec![Granted, NotVoting, NoReply], too_few(1)),
            (vec![Granted, busy("a", 5), NoReply], split(0)),
            (vec![busy("a", 5), busy("a", 7), NoReply], held_by("a", 5)),
            (
                vec![busy("a", 5), busy("a", 9), busy("a", 7)],
                held_by("a", 7),
            ),
            (vec![busy("a", 5), busy("b", 7), Granted], split(0)),
            (vec![stale(9), stale(4), Granted], split(9)),
            (vec![stale(9), busy("a", 5), busy("a", 6)], held_by("a", 5)),
            (vec![NoReply; 3], too_few(0)),
            (vec![Granted, Granted, NoReply, NoReply], too_few(2)),
            (
                vec![Granted, Granted, NoReply, NoReply, busy("a", 1)],
                split(0),
            ),
            (
                vec![Granted, Granted, NoReply, NoReply, Granted],
                Verdict::Held,
            ),
        ] {
            assert_eq!(count_votes(&ballots), verdict, "{ballots:?}");
        }
    }

    #[test]
    fn renewal_fails_without_a_possible_majority() {
        let renewed = |everywhere| RenewalTally::Renewed { everywhere };
        for (replies, expected) in [
            (vec![Some(1), Some(1), Some(1)], renewed(true)),
            (vec![Some(1), Some(1), None], renewed(true)),
            (vec![Some(1), Some(1), Some(0)], renewed(false)),
            (vec![Some(1), Some(1), Some(-1)], renewed(true)),
            (vec![Some(1), None, None], RenewalTally::Unknown),
            (vec![Some(1), Some(0), None], RenewalTally::Unknown),
            (vec![Some(1), Some(0), Some(3)], RenewalTally::NotOwner),
            (vec![Some(0), Some(-1), None], RenewalTally::NotOwner),
        ] {
            assert_eq!(count_renewals(&replies), expected, "{replies:?}");
        }
    }

    #[test]
    fn release_counts_once_a_majority_replied() {
        for (replies, expected) in [
            (vec![Some(1), Some(1), None], Some(true)),
            (vec![Some(1), Some(0), None], None),
            (vec![Some(1), Some(0), Some(1)], Some(true)),
            (vec![Some(1), Some(0), Some(0)], Some(false)),
            (vec![Some(0), Some(0), None], Some(false)),
            (vec![Some(1), None, None], None),
        ] {
            assert_eq!(count_releases(&replies), expected, "{replies:?}");
        }
    }
}

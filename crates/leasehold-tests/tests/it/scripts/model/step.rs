//! Random steps of clients.

use proptest::prelude::*;

/// A step of a client, with the owner as a number.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Acquires a free lock without a script, as a mutex does.
    Acquire {
        owner: usize,
        weight: i64,
        limit: i64,
        lease: i64,
    },
    /// Renews without a script of the queue, as a mutex does.
    Extend {
        owner: usize,
        length: i64,
    },
    /// Releases without a script of the queue, as a mutex does.
    Drop {
        owner: usize,
    },
    Enqueue {
        owner: usize,
        weight: i64,
        limit: i64,
        lease: i64,
        wait: i64,
        /// Whether it presents the ticket of its lost entry.
        again: bool,
    },
    Renew {
        owner: usize,
        length: i64,
    },
    Release {
        owner: usize,
        keep: i64,
    },
    Downgrade {
        owner: usize,
        weight: i64,
    },
    /// Hands the lock over to a ticket of this owner.
    HandOver {
        owner: usize,
        token: i64,
        within: i64,
    },
    /// Adopts the lock by the ticket of this owner, under its own name.
    Adopt {
        owner: usize,
        lease: i64,
    },
    Capacity {
        limit: i64,
    },
    Stats,
    Sleep {
        micros: u64,
    },
}

impl Step {
    /// Returns owner, weight and capacity of a step that acquires the lock.
    pub(super) fn acquires(&self) -> Option<(usize, i64, i64)> {
        match *self {
            Self::Acquire {
                owner,
                weight,
                limit,
                ..
            }
            | Self::Enqueue {
                owner,
                weight,
                limit,
                ..
            } => Some((owner, weight, limit)),
            _ => None,
        }
    }
}

/// The number of owners.
pub(super) const OWNERS: usize = 6;

/// A minute, or a duration so short that it passes between two steps or in a
/// sleep.
fn length() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(60_000_000), 1 => 1..400i64, 1 => 400..3_000i64]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let owner = 0..OWNERS;
    let wait = prop_oneof![1 => Just(0), 4 => length()];
    let keep = prop_oneof![4 => Just(0), 1 => length()];
    // Behind the counter, or ahead of the clock.
    let token = prop_oneof![4 => Just(1), 1 => Just(4_000_000_000_000_000)];
    prop_oneof![
        4 => (owner.clone(), 1..4i64, 2..4i64, length()).prop_map(
            |(owner, weight, limit, lease)| Step::Acquire { owner, weight: weight.min(limit), limit, lease }
        ),
        1 => (owner.clone(), length()).prop_map(|(owner, length)| Step::Extend { owner, length }),
        1 => owner.clone().prop_map(|owner| Step::Drop { owner }),
        8 => (owner.clone(), 1..4i64, 2..4i64, length(), wait, any::<bool>()).prop_map(
            |(owner, weight, limit, lease, wait, again)| Step::Enqueue {
                owner, weight, limit, lease, wait, again
            }
        ),
        3 => (owner.clone(), length()).prop_map(|(owner, length)| Step::Renew { owner, length }),
        5 => (owner.clone(), keep).prop_map(|(owner, keep)| Step::Release { owner, keep }),
        1 => (owner.clone(), 1..4i64).prop_map(|(owner, weight)| Step::Downgrade { owner, weight }),
        2 => (owner.clone(), token, length()).prop_map(
            |(owner, token, within)| Step::HandOver { owner, token, within }
        ),
        2 => (owner, length()).prop_map(|(owner, lease)| Step::Adopt { owner, lease }),
        1 => (1..5i64).prop_map(|limit| Step::Capacity { limit }),
        1 => Just(Step::Stats),
        2 => (0..900u64).prop_map(|micros| Step::Sleep { micros }),
    ]
}

//! The steps that clients take, at random.

use proptest::prelude::*;

/// One step that a client can take, with the owner as a number.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Acquires a free lock without a script, as a mutex does.
    Take {
        owner: usize,
        weight: i64,
        most: i64,
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
    Enter {
        owner: usize,
        weight: i64,
        most: i64,
        lease: i64,
        wait: i64,
        /// Whether it shows the ticket of the place it lost last.
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
    Shrink {
        owner: usize,
        weight: i64,
    },
    Capacity {
        most: i64,
    },
    Look,
    Sleep {
        micros: u64,
    },
}

impl Step {
    /// The owner, weight and capacity of a step that acquires the lock.
    pub(super) fn acquires(&self) -> Option<(usize, i64, i64)> {
        match *self {
            Self::Take {
                owner,
                weight,
                most,
                ..
            }
            | Self::Enter {
                owner,
                weight,
                most,
                ..
            } => Some((owner, weight, most)),
            _ => None,
        }
    }
}

/// How many owners take steps.
pub(super) const OWNERS: usize = 6;

/// A minute, and times so short that they pass between two steps or in a sleep.
fn length() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(60_000_000), 1 => 1..400i64, 1 => 400..3_000i64]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let owner = 0..OWNERS;
    let wait = prop_oneof![1 => Just(0), 4 => length()];
    let keep = prop_oneof![4 => Just(0), 1 => length()];
    prop_oneof![
        4 => (owner.clone(), 1..4i64, 2..4i64, length()).prop_map(
            |(owner, weight, most, lease)| Step::Take { owner, weight: weight.min(most), most, lease }
        ),
        1 => (owner.clone(), length()).prop_map(|(owner, length)| Step::Extend { owner, length }),
        1 => owner.clone().prop_map(|owner| Step::Drop { owner }),
        8 => (owner.clone(), 1..4i64, 2..4i64, length(), wait, any::<bool>()).prop_map(
            |(owner, weight, most, lease, wait, again)| Step::Enter {
                owner, weight, most, lease, wait, again
            }
        ),
        3 => (owner.clone(), length()).prop_map(|(owner, length)| Step::Renew { owner, length }),
        5 => (owner.clone(), keep).prop_map(|(owner, keep)| Step::Release { owner, keep }),
        1 => (owner, 1..4i64).prop_map(|(owner, weight)| Step::Shrink { owner, weight }),
        1 => (1..5i64).prop_map(|most| Step::Capacity { most }),
        1 => Just(Step::Look),
        2 => (0..900u64).prop_map(|micros| Step::Sleep { micros }),
    ]
}

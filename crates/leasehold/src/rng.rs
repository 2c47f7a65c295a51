//! Random numbers; unit tests can use a seed instead.
//!
//! Owners are secrets. We draw them from a few of the system's random bytes
//! that each thread keeps, since a system call for each costs a tenth of an
//! uncontended pair. Decision 2 says what that risks.

use std::cell::{Cell, RefCell};
use std::mem;

use crate::process::HomeProcess;

/// How many numbers a thread keeps: few, since all copies of a machine that is
/// cloned while it runs would draw them.
const KEPT: usize = 16;

/// Random numbers that one thread has not drawn yet.
struct Kept {
    /// The process that filled it; `None` at first. A forked child has a copy,
    /// and must not draw what its parent draws.
    process: Option<HomeProcess>,
    numbers: [[u8; 8]; KEPT],
    left: usize,
}

impl Kept {
    const fn empty() -> Self {
        Self {
            process: None,
            numbers: [[0; 8]; KEPT],
            left: 0,
        }
    }

    fn draw(&mut self, current: HomeProcess) -> u64 {
        if self.left == 0 || self.process != Some(current) {
            getrandom::fill(self.numbers.as_flattened_mut())
                .expect("BUG: the system has no random source");
            self.process = Some(current);
            self.left = KEPT;
        }
        self.left -= 1;
        // Erased, so a memory dump does not show the owners of held locks.
        u64::from_ne_bytes(mem::take(&mut self.numbers[self.left]))
    }
}

thread_local! {
    static RANDOM: RefCell<Kept> = const { RefCell::new(Kept::empty()) };
    /// The last number of [`jitter`]; 0 at first.
    static JITTER: Cell<u64> = const { Cell::new(0) };
}

/// Returns 64 random bits, suitable for secrets.
pub(crate) fn next_u64() -> u64 {
    next_u64_in(HomeProcess::current())
}

/// Returns 64 random bits, suitable for secrets. The caller has just read which
/// process is the current one.
pub(crate) fn next_u64_in(current: HomeProcess) -> u64 {
    #[cfg(test)]
    if let Some(bits) = seeded_bits() {
        return bits;
    }
    RANDOM.with_borrow_mut(|kept| kept.draw(current))
}

/// Rotates `items` so that a random one is first.
pub(crate) fn rotate<T>(items: &mut [T]) {
    let first = next_u64() % items.len().max(1) as u64;
    items.rotate_left(usize::try_from(first).unwrap_or(0));
}

/// Returns a number from 0 to 1 that spreads things in time.
///
/// It can be predicted, and costs no system call: a forked child may repeat
/// what its parent draws.
pub(crate) fn jitter() -> f64 {
    #[cfg(test)]
    if let Some(bits) = seeded_bits() {
        return bits as f64 / u64::MAX as f64;
    }
    // SplitMix64: clients that draw equally often must not stay in step.
    let last = match JITTER.get() {
        0 => next_u64(),
        last => last,
    };
    let next = last.wrapping_add(0x9e37_79b9_7f4a_7c15);
    JITTER.set(next);
    let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mixed = mixed ^ (mixed >> 31);
    mixed as f64 / u64::MAX as f64
}

/// Derives all further numbers of this thread from `seed`.
#[cfg(test)]
pub(crate) fn seed(seed: u64) {
    SEEDED.set(Some(testkit::SeededRng::new(seed)));
}

#[cfg(test)]
thread_local! {
    static SEEDED: RefCell<Option<testkit::SeededRng>> = const { RefCell::new(None) };
}

#[cfg(test)]
fn seeded_bits() -> Option<u64> {
    SEEDED.with_borrow_mut(|seeded| {
        let rng = seeded.as_mut()?;
        let mut byte = || u8::try_from(rng.below(256)).unwrap_or_default();
        Some(u64::from_ne_bytes(std::array::from_fn(|_| byte())))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn forked_child_draws_other_numbers() {
        let parent = HomeProcess::current();
        let child = HomeProcess::other();
        let mut kept = Kept::empty();
        kept.draw(parent);
        // What both have after the fork.
        let left = kept.numbers.map(u64::from_ne_bytes);
        let drawn: HashSet<_> = (0..2 * KEPT).map(|_| kept.draw(child)).collect();
        assert_eq!(drawn.len(), 2 * KEPT);
        assert!(left.iter().all(|number| !drawn.contains(number)));
    }

    #[test]
    fn drawn_numbers_are_erased() {
        let mut kept = Kept::empty();
        let drawn = kept.draw(HomeProcess::current());
        assert!(!kept.numbers.contains(&drawn.to_ne_bytes()));
    }

    #[test]
    fn jitter_is_spread_evenly() {
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            tenths[(jitter() * 10.0).min(9.0) as usize] += 1;
        }
        let even = |count: &i32| (800..=1200).contains(count);
        assert!(tenths.iter().all(even), "{tenths:?}");
    }
}

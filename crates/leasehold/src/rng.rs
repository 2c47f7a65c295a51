//! Random numbers from the system; unit tests can use a seed instead.
//!
//! Nothing is buffered: a forked child, or a clone of the machine, would repeat
//! numbers that are already in memory.

#[cfg(test)]
use std::cell::RefCell;

#[cfg(test)]
thread_local! {
    static SEEDED: RefCell<Option<testkit::SeededRng>> = const { RefCell::new(None) };
}

/// Returns 64 random bits, suitable for secrets.
pub(crate) fn next_u64() -> u64 {
    #[cfg(test)]
    if let Some(bits) = seeded_bits() {
        return bits;
    }
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).expect("BUG: the system has no random source");
    u64::from_ne_bytes(bits)
}

/// Returns a number from 0 to 1.
pub(crate) fn next_f64() -> f64 {
    next_u64() as f64 / u64::MAX as f64
}

/// Derives all further numbers of this thread from `seed`.
#[cfg(test)]
pub(crate) fn seed(seed: u64) {
    SEEDED.set(Some(testkit::SeededRng::new(seed)));
}

#[cfg(test)]
fn seeded_bits() -> Option<u64> {
    SEEDED.with_borrow_mut(|seeded| {
        let rng = seeded.as_mut()?;
        let mut byte = || u8::try_from(rng.below(256)).unwrap_or_default();
        Some(u64::from_ne_bytes(std::array::from_fn(|_| byte())))
    })
}

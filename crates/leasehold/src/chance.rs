//! Where chance comes from: the system's random source, fetched ahead. In unit tests a seed can take its place.

use std::cell::RefCell;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::EMPTY) };
}

/// 64 random bits, fit for secrets.
pub(crate) fn bits() -> u64 {
    POOL.with_borrow_mut(Pool::draw)
}

/// A number from 0 to 1.
pub(crate) fn fraction() -> f64 {
    bits() as f64 / u64::MAX as f64
}

/// On this thread all that follows comes from `seed`.
#[cfg(test)]
pub(crate) fn seed(seed: u64) {
    POOL.with_borrow_mut(|pool| {
        pool.used = pool.bytes.len();
        pool.seeded = Some(testkit::Dice::new(seed));
    });
}

/// Random bytes fetched ahead: one system call for many draws. Each is given out once.
struct Pool {
    bytes: [u8; 512],
    used: usize,
    #[cfg(test)]
    seeded: Option<testkit::Dice>,
}

impl Pool {
    const EMPTY: Self = Self {
        bytes: [0; 512],
        used: 512,
        #[cfg(test)]
        seeded: None,
    };

    fn draw(&mut self) -> u64 {
        if self.used == self.bytes.len() {
            self.fill();
        }
        let drawn = &mut self.bytes[self.used..self.used + 8];
        self.used += 8;
        let mut bits = [0; 8];
        // What was given out does not stay in memory.
        bits.swap_with_slice(drawn);
        u64::from_ne_bytes(bits)
    }

    fn fill(&mut self) {
        self.used = 0;
        #[cfg(test)]
        if let Some(dice) = &mut self.seeded {
            let byte = || u8::try_from(dice.below(256)).unwrap_or_default();
            self.bytes.fill_with(byte);
            return;
        }
        getrandom::fill(&mut self.bytes).expect("BUG: the system has no random source");
    }
}

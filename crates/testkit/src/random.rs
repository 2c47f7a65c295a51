//! Random inputs, and the number of repetitions.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestRunner};

/// A random number generator with a seed, so a failing run can be repeated.
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// Creates a generator from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Returns `default` repetitions, multiplied by `LEASEHOLD_SCALE`.
#[must_use]
pub fn scaled(default: u64) -> u64 {
    let scale = std::env::var("LEASEHOLD_SCALE")
        .ok()
        .and_then(|scale| scale.parse::<f64>().ok());
    scale.map_or(default, |scale| ((default as f64) * scale).ceil() as u64)
}

/// Calls `check` with `cases` random inputs, scaled by `LEASEHOLD_SCALE`.
///
/// # Panics
///
/// If a check panics, with the smallest input for which it does.
pub fn check_property<S: Strategy>(cases: u64, inputs: &S, check: impl Fn(S::Value)) {
    let mut runner = TestRunner::new(Config {
        cases: u32::try_from(scaled(cases)).unwrap_or(u32::MAX),
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(inputs, |input| {
        check(input);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

//! Real servers and a faulty network, for tests.
//!
//! [`Server`] starts a Redis or Valkey on a free loopback port and kills, pauses and restarts it;
//! [`Proxy`] stands between a client and a server and does to single requests what networks do.
//! Knows nothing of locks.

mod clock;
pub mod cluster;
mod flavor;
pub mod proxy;
pub mod redisson;
pub mod resp;
pub mod sentinel_group;
pub mod server;
mod tls;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestRunner};

pub use cluster::Cluster;
pub use flavor::Flavor;
pub use proxy::{Fault, Proxy};
pub use redisson::{Redisson, RedissonConfig};
pub use resp::{Connection, Reply};
pub use server::{Server, Setup};

/// Says that a test cannot lock beside `peer`, another library; see `interop`.
///
/// # Panics
///
/// When `LEASEHOLD_PEERS` says that it must be there.
pub fn skip(peer: &str) {
    let required = std::env::var("LEASEHOLD_PEERS").unwrap_or_default();
    let required = required.split_whitespace().any(|name| name == peer);
    assert!(
        !required,
        "{peer} is required but not there; see interop/README.md"
    );
    println!("skipped: {peer} is not there; see interop/README.md");
}

/// A small generator of random numbers from a seed, so that a failing run can be repeated.
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// Starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// `default` repetitions, or as many as `LEASEHOLD_SCALE` times that.
#[must_use]
pub fn scaled(default: u64) -> u64 {
    let scale = std::env::var("LEASEHOLD_SCALE")
        .ok()
        .and_then(|scale| scale.parse::<f64>().ok());
    scale.map_or(default, |scale| ((default as f64) * scale).ceil() as u64)
}

/// Checks `cases` inputs (more with `LEASEHOLD_SCALE`), and shows the smallest that fails.
///
/// # Panics
///
/// When one fails.
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

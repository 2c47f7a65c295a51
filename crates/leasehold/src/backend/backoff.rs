//! Exponential backoff with jitter.

use std::time::Duration;

use crate::rng;

/// A delay that doubles from `first` to `max`, with jitter.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
    /// The fraction of each delay that is not random.
    fixed: f64,
}

impl Backoff {
    /// Creates a backoff whose delays are at least half of their nominal
    /// length.
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            next: first,
            fixed: 0.5,
        }
    }

    /// Creates a backoff whose delays are anything up to their nominal length.
    /// Clients that lost a server at the same time reconnect at different
    /// times.
    pub(crate) const fn full_jitter(first: Duration, max: Duration) -> Self {
        Self {
            fixed: 0.0,
            ..Self::new(first, max)
        }
    }

    /// Returns the next delay.
    pub(crate) fn pause(&mut self) -> Duration {
        let nominal = self.next;
        self.next = (nominal * 2).min(self.max);
        nominal.mul_f64(self.fixed + (1.0 - self.fixed) * rng::jitter())
    }

    /// Restarts at the first delay, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_max() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(80));
        for nominal in [10, 20, 40, 80, 80] {
            let pause = backoff.pause();
            assert!(
                pause >= Duration::from_millis(nominal) / 2,
                "{pause:?} of {nominal}"
            );
            assert!(
                pause <= Duration::from_millis(nominal),
                "{pause:?} of {nominal}"
            );
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(10));
    }
}

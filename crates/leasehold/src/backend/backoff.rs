//! How long to pause before the next try: longer each time, and never in step with others.

use std::time::Duration;

use crate::rng;

/// A pause that doubles from `first` to `most`, with jitter.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    /// How much of a pause is certain; the rest is random.
    certain: f64,
}

impl Backoff {
    /// Each pause is at least half of its length.
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
            certain: 0.5,
        }
    }

    /// Each pause is anything from nothing to its length, so that clients that lost the same server at the same moment come
    /// back at different ones.
    pub(crate) const fn full_jitter(first: Duration, most: Duration) -> Self {
        Self {
            certain: 0.0,
            ..Self::new(first, most)
        }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        whole.mul_f64(self.certain + (1.0 - self.certain) * rng::next_f64())
    }

    /// Starts over: what failed has succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_most_and_keep_to_their_range() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(80));
        for whole in [10, 20, 40, 80, 80] {
            let pause = backoff.pause();
            assert!(
                pause >= Duration::from_millis(whole) / 2,
                "{pause:?} of {whole}"
            );
            assert!(
                pause <= Duration::from_millis(whole),
                "{pause:?} of {whole}"
            );
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(10));
    }
}

//! How long to pause before the next try: longer each time, and never in step with others.

use std::time::Duration;

use crate::chance;

/// A pause that doubles from `first` to `most`; each is jittered down to half at the least.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        whole / 2 + (whole / 2).mul_f64(chance::fraction())
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

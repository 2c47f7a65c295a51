//! A clock that only moves forward and counts the time a machine sleeps.
//!
//! `std::time::Instant` stops while Linux is suspended, so a laptop or virtual machine that slept
//! past its lease would wake up believing that it still holds the lock. `CLOCK_BOOTTIME` does not
//! stop. In unit tests the clock is tokio's, so that it can be paused.

use std::ops::Add;
use std::time::Duration;

/// A point on the clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(u64);

impl BootInstant {
    /// Later than every moment that will come.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn now() -> Self {
        Self(nanos())
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// How much later than `earlier`; zero when it is not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The same moment for tokio's timers, which stop during suspend.
    pub(crate) fn as_timer(self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.since(Self::now()).min(FAR)
    }

    /// This moment moved `by` into the past.
    pub(crate) fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(whole_nanos(by)))
    }
}

/// Timers are not set further ahead than this.
const FAR: Duration = Duration::from_secs(86_400);

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(whole_nanos(by)))
    }
}

fn whole_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(target_os = "linux", not(test)))]
fn nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
thread_local! {
    static BEGUN: std::cell::Cell<Option<std::time::Instant>> = const { std::cell::Cell::new(None) };
}

/// On this thread the clock starts anew, so that what is done twice is done at the same moments.
#[cfg(test)]
pub(crate) fn begin() {
    BEGUN.set(Some(tokio::time::Instant::now().into_std()));
}

#[cfg(any(test, not(target_os = "linux")))]
fn nanos() -> u64 {
    use std::sync::LazyLock;
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    #[cfg(test)]
    let start = BEGUN.get().unwrap_or(*START);
    #[cfg(not(test))]
    let start = *START;
    let now = tokio::time::Instant::now().into_std();
    // An hour ahead, so that a moment before the start can still be named.
    whole_nanos(now.saturating_duration_since(start) + Duration::from_secs(3600))
}

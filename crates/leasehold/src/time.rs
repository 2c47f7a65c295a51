//! A monotonic clock that includes the time a machine is suspended.
//!
//! `std::time::Instant` stops while Linux or macOS is suspended. A laptop or
//! virtual machine that was suspended beyond the lease would resume and still
//! believe that it holds the lock. `CLOCK_BOOTTIME` does not stop, nor does
//! Apple's `CLOCK_MONOTONIC`. On Windows `Instant` does not stop either. Unit
//! tests use tokio's clock, so they can pause it.

use std::ops::Add;
use std::time::Duration;

/// A point in time, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(u64);

impl BootInstant {
    /// A point in time that is never reached.
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

    /// Returns the time since `earlier`, or zero if that is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Converts into an instant of tokio's timers, which stop during suspend.
    pub(crate) fn as_timer(self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.since(Self::now()).min(MAX_TIMER)
    }

    /// Returns the point in time that is `by` earlier.
    pub(crate) fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(whole_nanos(by)))
    }
}

/// The furthest that a timer is set ahead.
const MAX_TIMER: Duration = Duration::from_secs(86_400);

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(whole_nanos(by)))
    }
}

fn whole_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(unix, not(test)))]
fn nanos() -> u64 {
    use rustix::time::ClockId;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
thread_local! {
    static TEST_START: std::cell::Cell<Option<std::time::Instant>> =
        const { std::cell::Cell::new(None) };
}

/// Restarts the clock on this thread, so a repeated run reads the same times.
#[cfg(test)]
pub(crate) fn begin() {
    TEST_START.set(Some(tokio::time::Instant::now().into_std()));
}

#[cfg(any(test, not(unix)))]
fn nanos() -> u64 {
    use std::sync::LazyLock;
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    #[cfg(test)]
    let start = TEST_START.get().unwrap_or(*START);
    #[cfg(not(test))]
    let start = *START;
    // Starts at one hour, so that earlier points in time can be represented. A
    // paused clock can begin before `start`.
    let now = tokio::time::Instant::now().into_std() + Duration::from_secs(3600);
    whole_nanos(now.saturating_duration_since(start))
}

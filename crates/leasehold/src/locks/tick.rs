//! The ticks of a schedule.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A tick of a schedule: one of the periods since 1970, by this host's clock or
/// by a scheduler.
///
/// Each host that runs the schedule computes the same tick, although their
/// clocks differ: a host starts the job when *its* clock reaches the tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    pub(super) number: u64,
    pub(super) period: Duration,
}

impl Tick {
    /// Returns the current tick of a schedule with this period, by this host's
    /// clock.
    ///
    /// A job that starts at noon every day has a period of one day. A job that
    /// starts exactly at the end of a period, such as at midnight UTC, belongs
    /// to the period that begins.
    ///
    /// Periods begin in UTC. A schedule in local time moves against them when
    /// daylight saving time begins or ends, and around midnight UTC it then
    /// starts twice in one period and not at all in another. Run the schedule
    /// in UTC, or start it an hour away from the end of a period.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Tick;
    /// let hour = Duration::from_secs(3600);
    /// // All hosts agree on the hour, unless their clocks differ by more.
    /// let tick = Tick::now(hour);
    /// ```
    #[must_use]
    pub fn now(period: Duration) -> Self {
        Self::at(SystemTime::now(), period)
    }

    /// Returns the tick that contains `time`, for example the time for which a
    /// scheduler started the job.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use leasehold::Tick;
    /// let day = Duration::from_secs(86_400);
    /// let noon = UNIX_EPOCH + day * 20_000 + day / 2;
    /// assert_eq!(Tick::at(noon, day).number(), 20_000);
    /// ```
    #[must_use]
    pub fn at(time: SystemTime, period: Duration) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // A period of zero is refused later, when the job starts.
        let number = since.as_millis() / period.as_millis().max(1);
        Self {
            number: u64::try_from(number).unwrap_or(u64::MAX),
            period,
        }
    }

    /// Returns the number of periods between 1970 and this tick.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use leasehold::Tick;
    /// let hour = Duration::from_secs(3600);
    /// assert_eq!(Tick::at(UNIX_EPOCH + hour * 5 / 2, hour).number(), 2);
    /// ```
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns when the tick starts, in milliseconds since 1970.
    pub(super) fn start_millis(&self) -> u128 {
        u128::from(self.number) * self.period.as_millis()
    }
}

//! Whether a holder reports progress in time.
//!
//! A report only sets a flag, because reading the clock costs more than a
//! caller's loop can bear. The keeper looks at the flag from time to time, so
//! it knows of a report only that it came between two looks:
//!
//! - It counts the limit from the later look. A holder that reports in time is
//!   therefore always renewed.
//! - It renews until the limit plus one lease after the earlier look. A holder
//!   that stops reporting therefore loses the lock within that time, counted
//!   from its last report (invariant 14).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use crate::time::BootInstant;

/// The reports of one lease's holder, and the limit by which they come.
#[derive(Default)]
pub(super) struct ProgressWatch {
    /// In nanoseconds; zero without a limit.
    limit: AtomicU64,
    /// Whether the holder has reported since the last look.
    reported: AtomicBool,
    /// Whether the last look found the holder late.
    stuck: AtomicBool,
    /// How many multi-locks and campaigns hold this lock for a caller that does
    /// not have it yet.
    exemptions: AtomicU32,
    looks: Mutex<Looks>,
}

/// When the keeper looked. The last report came after `after` and no later
/// than `by`.
#[derive(Default)]
struct Looks {
    last: BootInstant,
    after: BootInstant,
    by: BootInstant,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    InTime,
    /// The limit has passed since the last look.
    NowLate,
    StillLate,
}

impl ProgressWatch {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        let watch = Self::default();
        watch.set_limit(limit);
        watch
    }

    /// Starts to watch a holder, or ends the watch. Holding the lock counts as
    /// the first report.
    pub(super) fn set_limit(&self, limit: Option<Duration>) {
        let nanos = limit.map_or(0, |limit| {
            u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
        });
        if nanos > 0 {
            let now = BootInstant::now();
            *self.looks.lock() = Looks {
                last: now,
                after: now,
                by: now,
            };
            self.stuck.store(false, Ordering::Relaxed);
        }
        self.limit.store(nanos, Ordering::Release);
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limit().is_some()
    }

    fn limit(&self) -> Option<Duration> {
        match self.limit.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Records that the holder makes progress.
    pub(super) fn report(&self) {
        // Read first: callers on several threads then share the cache line,
        // and all but the first after a look write nothing.
        if !self.reported.load(Ordering::Relaxed) {
            self.reported.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the keeper last found the holder late.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_limited() && self.stuck.load(Ordering::Relaxed)
    }

    /// Looks whether the holder has reported since the last look. Only the
    /// keeper calls it.
    pub(super) fn look(&self) -> Look {
        let Some(limit) = self.limit() else {
            return Look::InTime;
        };
        let mut looks = self.looks.lock();
        // Read on both sides of the swap: a report in between counts for this
        // look or the next, and must lie within its bounds.
        let before = BootInstant::now();
        let reported = self.reported.swap(false, Ordering::Relaxed);
        let now = BootInstant::now();
        if reported || self.exemptions.load(Ordering::Relaxed) > 0 {
            looks.after = looks.last;
            looks.by = now;
        }
        looks.last = before;
        let is_late = now > looks.by + limit;
        match (is_late, self.stuck.swap(is_late, Ordering::Relaxed)) {
            (false, _) => Look::InTime,
            (true, false) => Look::NowLate,
            (true, true) => Look::StillLate,
        }
    }

    /// Returns until when a holder that has stopped reporting may keep the
    /// lock.
    pub(super) fn lease_until(&self, lease: Duration) -> BootInstant {
        match self.limit() {
            Some(limit) => self.looks.lock().after + limit + lease,
            None => BootInstant::NEVER,
        }
    }

    /// Counts the holder as making progress until the exemption ends.
    pub(super) fn begin_exemption(&self) {
        self.exemptions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_exemption(&self) {
        // First: the limit counts from now.
        self.report();
        self.exemptions.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(9);
    const LEASE: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn watch() -> ProgressWatch {
        ProgressWatch::new(Some(LIMIT))
    }

    /// The holder reports just after a look; the keeper learns of it only at
    /// the next one.
    #[tokio::test(start_paused = true)]
    async fn late_holder_keeps_no_more_than_limit_and_lease() {
        let watch = watch();
        tokio::time::advance(LEASE / 3).await;
        watch.report();
        watch.look();
        let reported_at = BootInstant::now();
        watch.report();
        let mut until = BootInstant::NEVER;
        let mut found = Look::InTime;
        while found == Look::InTime {
            until = watch.lease_until(LEASE);
            tokio::time::advance(LEASE / 3).await;
            found = watch.look();
        }
        assert_eq!(found, Look::NowLate);
        assert!(until.since(reported_at) <= LIMIT + LEASE, "{until:?}");
        assert!(until.since(reported_at) >= LIMIT + LEASE * 2 / 3);
        assert_eq!(watch.look(), Look::StillLate);
        watch.report();
        assert_eq!(watch.look(), Look::InTime, "renewal resumes");
    }

    #[tokio::test(start_paused = true)]
    async fn reports_at_the_limit_are_in_time() {
        for period in 1..=20 {
            let watch = watch();
            let mut since = Duration::ZERO;
            for second in 1..=600 {
                tokio::time::advance(SECOND).await;
                since += SECOND;
                if since >= LIMIT {
                    since = Duration::ZERO;
                    watch.report();
                }
                if second % period == 0 {
                    assert_eq!(watch.look(), Look::InTime, "{period} {second}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn exempt_holder_is_in_time() {
        let watch = watch();
        watch.begin_exemption();
        tokio::time::advance(LIMIT * 3).await;
        assert_eq!(watch.look(), Look::InTime);
        tokio::time::advance(LIMIT * 3).await;
        watch.end_exemption();
        assert_eq!(watch.look(), Look::InTime);
        tokio::time::advance(LIMIT + SECOND).await;
        assert_eq!(watch.look(), Look::NowLate);
    }

    #[tokio::test(start_paused = true)]
    async fn holder_without_a_limit_is_in_time() {
        let watch = watch();
        watch.set_limit(None);
        tokio::time::advance(LIMIT * 3).await;
        assert_eq!(watch.look(), Look::InTime);
        assert_eq!(watch.lease_until(LEASE), BootInstant::NEVER);
    }
}

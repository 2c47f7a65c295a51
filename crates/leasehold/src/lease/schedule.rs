//! When a lease expires and when it is renewed: arithmetic on instants.

use std::time::Duration;

use crate::options::margin;
use crate::rng;
use crate::time::BootInstant;

/// Timers of leases of one length fire at this many instants per renewal
/// period. Many leases then share one instant, and few instants need sorting.
pub(super) const BUCKETS: u32 = 256;

/// Returns the deadline of a lease that was requested at `sent` (invariant 1).
pub(super) fn deadline(sent: BootInstant, lease: Duration) -> BootInstant {
    sent + lease.saturating_sub(margin(lease))
}

/// Returns when to renew a lease that was last renewed at `sent`: after a third
/// of it, so two renewals can fail.
pub(super) fn next_renewal_at(sent: BootInstant, lease: Duration) -> BootInstant {
    quantize(sent + lease / 3, lease)
}

/// Returns when to look at a holder's progress after `now`: twenty times per
/// renewal. A renewal asks for less than the lease by the time between two
/// looks, and who supervises a lease must not mistake that for an outage.
pub(super) fn next_look_at(now: BootInstant, lease: Duration) -> BootInstant {
    quantize(now + lease / 60, lease)
}

/// Returns when to renew a new lease for the first time: at a random instant
/// in the second half of the period.
///
/// Leases that were acquired together are thus spread, and stay spread, so
/// their renewals do not leave as a burst.
pub(super) fn first_renewal_at(start: BootInstant, lease: Duration) -> BootInstant {
    let early = (lease / 6).mul_f64(rng::jitter());
    next_renewal_at(start.saturating_sub(early), lease)
}

/// Returns the last instant up to `instant` that leases of this length share.
pub(super) fn quantize(instant: BootInstant, lease: Duration) -> BootInstant {
    floor(instant, lease / 3 / BUCKETS)
}

/// Returns the last whole multiple of `step` up to `instant`.
pub(super) fn floor(instant: BootInstant, step: Duration) -> BootInstant {
    let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
    let nanos = instant.as_nanos();
    BootInstant::from_nanos(nanos - nanos % step.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn first_renewals_are_spread_over_shared_instants() {
        let start = BootInstant::from_nanos(3_600_000_000_000);
        let mut first: Vec<_> = (0..10_000)
            .map(|_| first_renewal_at(start, LEASE))
            .collect();
        first.sort();
        for instant in &first {
            let after = instant.since(start);
            assert!(after >= LEASE / 6 - LEASE / 3 / BUCKETS, "{after:?}");
            assert!(after <= LEASE / 3, "{after:?}");
        }
        let (early, late) = (first[100], first[9900]);
        assert!(late.since(early) > LEASE / 8, "not spread");
        first.dedup();
        assert!(first.len() <= 1 + BUCKETS as usize / 2, "{}", first.len());
    }

    #[test]
    fn next_renewal_is_at_most_a_third_of_the_lease_later() {
        for lease in [Duration::from_millis(20), LEASE, LEASE * 1_000_000] {
            let sent = BootInstant::from_nanos(3_600_123_456_789);
            let after = next_renewal_at(sent, lease).since(sent);
            assert!(after <= lease / 3, "{lease:?} {after:?}");
            let earliest = lease / 3 - lease / 3 / BUCKETS * 2;
            assert!(after >= earliest, "{lease:?} {after:?}");
        }
    }
}

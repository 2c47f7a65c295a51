//! The names of the metrics, their units, and buckets for their histograms.

use metrics::{Recorder, Unit};

/// Histogram: the time from the call to the grant, or to the end of the
/// attempt. Labels: `lock`, `kind`, `outcome` and `contended`.
pub const ACQUIRE_DURATION: &str = "leasehold_acquire_duration_seconds";

/// Histogram: how long holders held the lock. Labels: `lock`, `kind` and `end`.
pub const HOLD_DURATION: &str = "leasehold_hold_duration_seconds";

/// Gauge: the holders in this process. Labels: `lock` and `kind`.
pub const HELD: &str = "leasehold_held";

/// Gauge: the waiters in this process. Labels: `lock` and `kind`.
pub const WAITING: &str = "leasehold_waiting";

/// Counter: lost locks. Labels: `lock`, `kind` and `cause`.
pub const LOST: &str = "leasehold_lost_total";

/// Counter: locks that a holder passed to a task of the same client without a
/// request. Labels: `lock` and `kind`.
pub const HANDED_OFF: &str = "leasehold_handed_off_total";

/// Counter: renewals. Label: `outcome`. `withheld` counts how often a holder
/// that reports no progress was found, not each renewal that it missed.
pub const RENEWALS: &str = "leasehold_renewals_total";

/// Histogram: the time that was left until the deadline when a renewal was
/// confirmed. No labels.
pub const LEASE_MARGIN: &str = "leasehold_lease_margin_seconds";

/// Histogram: the same time as a fraction of the lease, at most 1. No labels.
///
/// It is independent of the length of the leases, so one alert serves all of
/// them.
pub const LEASE_MARGIN_RATIO: &str = "leasehold_lease_margin_ratio";

/// Gauge: the releases and cancels that run in the background. No labels.
pub const RELEASES_PENDING: &str = "leasehold_releases_pending";

/// Histogram: the time from sending a request to its reply. Label: `outcome`.
pub const REQUEST_DURATION: &str = "leasehold_request_duration_seconds";

/// Counter: connections that replaced a closed one. Label: `server`.
pub const RECONNECTS: &str = "leasehold_reconnects_total";

/// Gauge: the established connections. Label: `server`.
pub const CONNECTIONS: &str = "leasehold_connections";

/// Recommended buckets of each histogram, in its unit.
///
/// # Examples
///
/// ```
/// use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
///
/// let mut builder = PrometheusBuilder::new();
/// for &(name, buckets) in leasehold_metrics::BUCKETS {
///     let name = Matcher::Full(name.into());
///     builder = builder.set_buckets_for_metric(name, buckets)?;
/// }
/// # Ok::<(), metrics_exporter_prometheus::BuildError>(())
/// ```
pub const BUCKETS: &[(&str, &[f64])] = &[
    (ACQUIRE_DURATION, ACQUIRE_BUCKETS),
    (HOLD_DURATION, HOLD_BUCKETS),
    (LEASE_MARGIN, LEASE_MARGIN_BUCKETS),
    (LEASE_MARGIN_RATIO, LEASE_MARGIN_RATIO_BUCKETS),
    (REQUEST_DURATION, REQUEST_BUCKETS),
];

/// Buckets of [`ACQUIRE_DURATION`]: 0.5 ms to 60 s.
pub const ACQUIRE_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0,
];

/// Buckets of [`HOLD_DURATION`]: 1 ms to 10 min.
pub const HOLD_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Buckets of [`LEASE_MARGIN`]: 10 ms to 60 s.
pub const LEASE_MARGIN_BUCKETS: &[f64] = &[
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0,
];

/// Buckets of [`LEASE_MARGIN_RATIO`]: 0.05 to 0.85.
///
/// A lease is renewed after a third of its length, and the first time after a
/// sixth to a third. The ratio is 0.65 to 0.83 if the first request is
/// confirmed soon.
pub const LEASE_MARGIN_RATIO_BUCKETS: &[f64] =
    &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.85];

/// Buckets of [`REQUEST_DURATION`]: 0.1 ms to 2 s.
pub const REQUEST_BUCKETS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0,
];

/// Registers the unit and description of every metric with the global recorder.
///
/// [`Metrics::new`](crate::Metrics::new) does the same. Call it yourself if the
/// descriptions are wanted before the first client exists.
pub fn describe() {
    metrics::with_recorder(describe_to);
}

/// Registers the unit and description of every metric with `recorder`.
pub(crate) fn describe_to(recorder: &dyn Recorder) {
    for (name, unit, description) in HISTOGRAMS {
        recorder.describe_histogram(name.into(), Some(unit), description.into());
    }
    for (name, description) in GAUGES {
        recorder.describe_gauge(name.into(), Some(Unit::Count), description.into());
    }
    for (name, description) in COUNTERS {
        recorder.describe_counter(name.into(), Some(Unit::Count), description.into());
    }
}

const HISTOGRAMS: [(&str, Unit, &str); 5] = [
    (
        ACQUIRE_DURATION,
        Unit::Seconds,
        "Time from the call to the grant, or to the end of the attempt",
    ),
    (
        HOLD_DURATION,
        Unit::Seconds,
        "How long holders held the lock",
    ),
    (
        LEASE_MARGIN,
        Unit::Seconds,
        "Time left until the deadline when a renewal was confirmed",
    ),
    (
        LEASE_MARGIN_RATIO,
        Unit::Count,
        "Time left when a renewal was confirmed, as a fraction of the lease",
    ),
    (
        REQUEST_DURATION,
        Unit::Seconds,
        "Time from sending a request to its reply",
    ),
];

const GAUGES: [(&str, &str); 4] = [
    (HELD, "Holders in this process"),
    (WAITING, "Waiters in this process"),
    (
        RELEASES_PENDING,
        "Releases and cancels that run in the background",
    ),
    (CONNECTIONS, "Established connections"),
];

const COUNTERS: [(&str, &str); 4] = [
    (LOST, "Lost locks"),
    (
        HANDED_OFF,
        "Locks passed to a task of the same client without a request",
    ),
    (RENEWALS, "Renewals of leases"),
    (RECONNECTS, "Connections that replaced a closed one"),
];

//! Metrics in the text format 0.0.4 of Prometheus.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use leasehold::Run;

use super::inspection::{Gauges, Inspection};

/// The media type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A gauge of locks: the end of its name, its help, and its value if known.
type LockGauge = (&'static str, &'static str, fn(&Gauges) -> Option<f64>);

const LOCK_GAUGES: [LockGauge; 4] = [
    ("holders", "Number of holders", |gauges| {
        Some(gauges.holders as f64)
    }),
    ("waiters", "Number of waiters", |gauges| {
        gauges.waiters.map(|count| count as f64)
    }),
    (
        "oldest_hold_seconds",
        "Time since the acquisition by the oldest holder",
        |gauges| gauges.oldest_hold.map(|age| age.as_secs_f64()),
    ),
    (
        "disconnected_holders",
        "Number of disconnected holders",
        |gauges| Some(gauges.disconnected as f64),
    ),
];

/// A gauge of the last run of a job, likewise.
type RunGauge = (&'static str, &'static str, fn(&Run) -> Option<f64>);

const RUN_GAUGES: [RunGauge; 2] = [
    (
        "timestamp_seconds",
        "Time at which the last run of a job started, since 1970.",
        |run| {
            let since = run.process.since?.duration_since(SystemTime::UNIX_EPOCH);
            Some(since.ok()?.as_secs_f64())
        },
    ),
    (
        "period_seconds",
        "Period of a job, as of its last run.",
        |run| Some(run.period.as_secs_f64()),
    ),
];

/// Returns the metrics of an inspection that succeeded.
pub(super) fn metrics(inspection: &Inspection, took: Duration) -> String {
    let mut out = outcome(true, took);
    named(&mut out, inspection);
    let counts = inspection.sums.iter();
    let counts = counts.map(|(kind, sum)| (labels(&[("kind", kind)]), sum.locks as f64));
    let help = "Number of locks, by kind.";
    family(&mut out, "leasehold_locks", help, counts);
    for (suffix, help, value) in LOCK_GAUGES {
        let samples = inspection
            .sums
            .iter()
            .filter_map(|(kind, sum)| Some((labels(&[("kind", kind)]), value(&sum.gauges)?)));
        let name = format!("leasehold_other_lock_{suffix}");
        let help = format!("{help} of all locks, by kind, if known.");
        family(&mut out, &name, &help, samples);
    }
    out
}

/// Appends the metrics of the locks that are exported one by one.
fn named(out: &mut String, inspection: &Inspection) {
    let label = |name: &str| labels(&[("lock", name)]);
    let found = inspection.named.keys().map(|name| (label(name), 1.0));
    let failed = inspection.failed.keys().map(|name| (label(name), 0.0));
    let help = "Whether a named lock could be inspected.";
    let name = "leasehold_lock_export_success";
    family(out, name, help, found.chain(failed));
    let infos = inspection.named.iter().filter_map(|(name, lock)| {
        let labels = labels(&[("lock", name), ("kind", lock.kind?)]);
        Some((labels, 1.0))
    });
    let help = "Kind of a named lock that exists.";
    family(out, "leasehold_lock_info", help, infos);
    for (suffix, help, value) in LOCK_GAUGES {
        let samples = inspection.named.iter();
        let samples = samples.filter_map(|(name, lock)| Some((label(name), value(&lock.gauges)?)));
        let name = format!("leasehold_lock_{suffix}");
        let help = format!("{help} of a named lock, if known.");
        family(out, &name, &help, samples);
    }
    for (suffix, help, value) in RUN_GAUGES {
        let samples = inspection.named.iter();
        let samples =
            samples.filter_map(|(name, lock)| Some((label(name), value(lock.last_run.as_ref()?)?)));
        let name = format!("leasehold_lock_last_run_{suffix}");
        family(out, &name, help, samples);
    }
}

/// Returns the metrics of an inspection that failed.
pub(super) fn failure(took: Duration) -> String {
    outcome(false, took)
}

fn outcome(success: bool, took: Duration) -> String {
    let mut out = String::new();
    let help = "Whether the locks could be inspected.";
    let value = f64::from(u8::from(success));
    family(
        &mut out,
        "leasehold_export_success",
        help,
        [(String::new(), value)],
    );
    let help = "Duration of the inspection.";
    let value = took.as_secs_f64();
    family(
        &mut out,
        "leasehold_export_duration_seconds",
        help,
        [(String::new(), value)],
    );
    out
}

/// Appends a family of gauges, unless it has no samples.
fn family(
    out: &mut String,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (String, f64)>,
) {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return;
    }
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (labels, value) in samples {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

fn labels(labels: &[(&str, &str)]) -> String {
    let labels = labels.iter();
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    format!("{{{}}}", labels.join(","))
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', r"\\");
    value.replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let labels = labels(&[("lock", "a\\n\"b\"\nc"), ("kind", "mutex")]);
        assert_eq!(labels, r#"{lock="a\\n\"b\"\nc",kind="mutex"}"#);
    }

    #[test]
    fn failure_lists_no_lock() {
        let text = failure(Duration::from_millis(1500));
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "leasehold_export_success 0",
            "leasehold_export_duration_seconds 1.5",
        ];
        assert_eq!(samples, expected);
    }
}

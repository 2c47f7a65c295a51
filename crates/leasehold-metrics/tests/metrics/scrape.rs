//! A Prometheus recorder, and the values that a scrape of it returns.

use std::collections::BTreeSet;

use leasehold_metrics::{BUCKETS, Metrics, MetricsBuilder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

#[derive(Clone)]
pub(crate) struct Registry(PrometheusHandle);

/// A line of a scrape.
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Registry {
    /// Builds the observer with a new recorder.
    pub(crate) fn new(builder: MetricsBuilder) -> (Metrics, Self) {
        let mut prometheus = PrometheusBuilder::new();
        for &(name, buckets) in BUCKETS {
            let matcher = Matcher::Full(name.to_owned());
            prometheus = prometheus.set_buckets_for_metric(matcher, buckets).unwrap();
        }
        let recorder = prometheus.build_recorder();
        let handle = recorder.handle();
        (builder.recorder(recorder).build(), Self(handle))
    }

    pub(crate) fn text(&self) -> String {
        self.0.render()
    }

    /// Moves recorded values into their buckets.
    pub(crate) fn run_upkeep(&self) {
        self.0.run_upkeep();
    }

    /// Returns the sum over the series that have all of `labels`; `None` if
    /// there is none.
    pub(crate) fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |sample: &Sample, (key, value): &(&str, &str)| {
            let mut own = sample.labels.iter();
            own.any(|(k, v)| k == key && v == value)
        };
        self.samples()
            .iter()
            .filter(|sample| sample.name == name)
            .filter(|sample| labels.iter().all(|label| has(sample, label)))
            .map(|sample| sample.value)
            .reduce(|sum, value| sum + value)
    }

    /// Returns the same sum; 0 if there is no such series.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).unwrap_or(0.0)
    }

    /// Returns the number of values in a histogram.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.value(&format!("{name}_count"), labels)
    }

    /// Returns the distinct values of a label.
    pub(crate) fn label_values(&self, key: &str) -> BTreeSet<String> {
        let samples = self.samples().into_iter();
        let labels = samples.flat_map(|sample| sample.labels);
        let labels = labels.filter(|(k, _)| k == key);
        labels.map(|(_, value)| value).collect()
    }

    fn samples(&self) -> Vec<Sample> {
        let text = self.text();
        let lines = text.lines();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(parse).collect()
    }
}

fn parse(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.trim_end_matches('}').split("\",");
    let labels = labels.filter(|label| !label.is_empty()).map(|label| {
        let (key, value) = label.split_once("=\"").unwrap();
        (key.to_owned(), value.trim_end_matches('"').to_owned())
    });
    Sample {
        name: name.to_owned(),
        labels: labels.collect(),
        value: value.parse().unwrap(),
    }
}

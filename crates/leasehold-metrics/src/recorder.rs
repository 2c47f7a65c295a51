//! Registers handles with the global recorder or with one of its own.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};

static METADATA: Metadata<'static> = Metadata::new("leasehold", Level::INFO, Some(module_path!()));

/// The recorder that the handles are bound to; the global one if `None`.
pub(crate) struct Registrar(pub(crate) Option<Box<dyn Recorder + Send + Sync>>);

impl Registrar {
    pub(crate) fn with<R>(&self, register: impl FnOnce(&dyn Recorder) -> R) -> R {
        match &self.0 {
            Some(recorder) => register(recorder),
            None => metrics::with_recorder(register),
        }
    }

    pub(crate) fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        let key = Key::from_parts(name, labels);
        self.with(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(crate) fn gauge(&self, name: &'static str, labels: Vec<Label>) -> Gauge {
        let key = Key::from_parts(name, labels);
        self.with(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    pub(crate) fn histogram(&self, name: &'static str, labels: Vec<Label>) -> Histogram {
        let key = Key::from_parts(name, labels);
        self.with(|recorder| recorder.register_histogram(&key, &METADATA))
    }
}

pub(crate) fn label(key: &'static str, value: impl Into<SharedString>) -> Label {
    Label::new(key, value)
}

//! The series of every lock, with a bounded number of labels.
//!
//! # Invariants
//!
//! 1. There are at most `max_labels` values of the label `lock`, and `_other`.
//! 2. A name maps to the same series for the life of the process, so a gauge
//!    decreases where it increased. Labels are therefore never removed, and a
//!    label that found the map full stays `_other`.
//! 3. A name whose label is known is mapped without an allocation.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::fold::{fold, is_plain};
use crate::recorder::Registrar;
use crate::series::Series;

/// The label of the locks beyond the limit.
pub(crate) const OTHER: &str = "_other";

/// A function from the name of a lock to its label.
pub(crate) type LabelFn = dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync;

/// The series of the locks of one process.
pub(crate) struct Locks {
    /// The caller's function; names are folded if `None`.
    label: Option<Box<LabelFn>>,
    max_labels: usize,
    table: RwLock<Table>,
}

/// The series by label, and then by kind: few labels have more than one.
#[derive(Default)]
struct Table {
    labels: HashMap<Arc<str>, Vec<Series>>,
    other: Vec<Series>,
}

impl Locks {
    pub(crate) fn new(label: Option<Box<LabelFn>>, max_labels: usize) -> Self {
        Self {
            label,
            max_labels,
            table: RwLock::default(),
        }
    }

    /// Calls `record` with the series of a lock.
    pub(crate) fn with(
        &self,
        registrar: &Registrar,
        name: &str,
        kind: &'static str,
        record: impl FnOnce(&Series),
    ) {
        self.with_label(name, |label| {
            let table = self.table.read();
            if let Some(series) = table.find(label, kind, self.max_labels) {
                return record(series);
            }
            drop(table);
            let mut table = self.table.write();
            record(table.add(label, kind, self.max_labels, registrar));
        });
    }

    fn with_label(&self, name: &str, then: impl FnOnce(&str)) {
        // Taken out while it is used, so that no borrow can conflict.
        thread_local!(static BUFFER: Cell<String> = const { Cell::new(String::new()) });
        match &self.label {
            Some(label) => then(&label(name)),
            None if is_plain(name) => then(name),
            None => {
                let mut label = BUFFER.take();
                label.clear();
                fold(name, &mut label);
                then(&label);
                BUFFER.set(label);
            }
        }
    }
}

impl Table {
    fn find(&self, label: &str, kind: &str, max_labels: usize) -> Option<&Series> {
        let row = match self.labels.get(label) {
            None if self.labels.len() >= max_labels => &self.other,
            row => row?,
        };
        row.iter().find(|series| series.kind() == kind)
    }

    /// Adds the series, unless another thread did.
    fn add(
        &mut self,
        label: &str,
        kind: &'static str,
        max_labels: usize,
        registrar: &Registrar,
    ) -> &Series {
        let is_full = self.labels.len() >= max_labels;
        let (lock, row) = match self.labels.get_key_value(label) {
            Some((lock, _)) => (lock.clone(), self.labels.get_mut(label)),
            None if is_full => (OTHER.into(), None),
            None => {
                let lock: Arc<str> = label.into();
                let row = self.labels.entry(lock.clone()).or_default();
                (lock, Some(row))
            }
        };
        let row = row.unwrap_or(&mut self.other);
        let at = row.iter().position(|series| series.kind() == kind);
        let at = at.unwrap_or_else(|| {
            row.push(Series::register(registrar, lock, kind));
            row.len() - 1
        });
        &row[at]
    }
}

#[cfg(test)]
mod tests {
    use metrics::NoopRecorder;

    use super::*;

    fn registrar() -> Registrar {
        Registrar(Some(Box::new(NoopRecorder)))
    }

    fn label_of(locks: &Locks, name: &str) -> String {
        let label = Cell::new(String::new());
        locks.with(&registrar(), name, "mutex", |series| {
            label.set(series.lock().to_owned());
        });
        label.into_inner()
    }

    /// Returns the resident memory of this process, in KiB.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let words = line.unwrap().split_whitespace();
        words.skip(1).find_map(|word| word.parse().ok()).unwrap()
    }

    #[test]
    fn million_names_give_bounded_labels_and_memory() {
        let verbatim: Box<LabelFn> = Box::new(|name| Cow::Borrowed(name));
        let locks = Locks::new(Some(verbatim), 100);
        let registrar = registrar();
        let before = resident();
        for number in 0..1_000_000 {
            let name = format!("order:{number}");
            let kind = ["mutex", "semaphore"][number % 2];
            locks.with(&registrar, &name, kind, |_| {});
        }
        let table = locks.table.read();
        assert_eq!(table.labels.len(), 100);
        let series = table.labels.values().map(Vec::len).sum::<usize>() + table.other.len();
        assert_eq!(series, 102, "one per label, and two kinds of other");
        let grown = resident().saturating_sub(before);
        println!("{grown} KiB for a million names");
        assert!(grown < 4096, "{grown} KiB");
    }

    #[test]
    fn name_beyond_the_limit_keeps_its_series() {
        let verbatim: Box<LabelFn> = Box::new(|name| Cow::Borrowed(name));
        let locks = Locks::new(Some(verbatim), 2);
        assert_eq!(label_of(&locks, "a"), "a");
        assert_eq!(label_of(&locks, "b"), "b");
        assert_eq!(label_of(&locks, "c"), OTHER);
        assert_eq!(label_of(&locks, "a"), "a");
        assert_eq!(label_of(&locks, "c"), OTHER);
        locks.with(&registrar(), "b", "semaphore", |series| {
            assert_eq!(series.lock(), "b", "a new kind of a known label");
        });
    }

    #[test]
    fn folded_names_share_a_label() {
        let locks = Locks::new(None, 100);
        for number in 0..1000 {
            assert_eq!(label_of(&locks, &format!("order:{number}")), "order:*");
        }
        assert_eq!(locks.table.read().labels.len(), 1);
    }
}

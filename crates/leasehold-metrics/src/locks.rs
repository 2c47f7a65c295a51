//! The series of every lock, with a bounded number of labels.
//!
//! # Invariants
//!
//! 1. There are at most `max_labels` values of the label `lock`, and `_other`.
//! 2. A name maps to the same series for the life of the process, so a gauge
//!    decreases where it increased. Labels are therefore never removed, and a
//!    label that found the table full stays `_other`.
//! 3. A name whose label is known is mapped without a lock or an allocation.

use std::borrow::Cow;
use std::cell::Cell;

use crate::fold::fold;
use crate::recorder::Registrar;
use crate::series::Series;
use crate::table::Table;

/// A function from the name of a lock to its label.
pub(crate) type LabelFn = dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync;

/// The series of the locks of one process.
pub(crate) struct Locks {
    /// The caller's function; names are folded if `None`.
    label: Option<Box<LabelFn>>,
    table: Table,
}

impl Locks {
    pub(crate) fn new(label: Option<Box<LabelFn>>, max_labels: usize) -> Self {
        Self {
            label,
            table: Table::new(max_labels),
        }
    }

    /// Returns a lock's series.
    pub(crate) fn get(&self, registrar: &Registrar, name: &str, kind: &'static str) -> &Series {
        match &self.label {
            Some(label) => self.table.get(registrar, &label(name), kind),
            None => with_folded(name, |label| self.table.get(registrar, label, kind)),
        }
    }
}

fn with_folded<R>(name: &str, then: impl FnOnce(&str) -> R) -> R {
    thread_local!(static BUFFER: Cell<String> = const { Cell::new(String::new()) });
    // Taken out while it is used, so that no borrow can conflict.
    let mut label = BUFFER.take();
    label.clear();
    fold(name, &mut label);
    let result = then(&label);
    BUFFER.set(label);
    result
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    use metrics::NoopRecorder;
    use parking_lot::Mutex;

    use super::*;
    use crate::table::OTHER;

    fn registrar() -> Registrar {
        Registrar(Some(Box::new(NoopRecorder)))
    }

    fn label_of(locks: &Locks, name: &str) -> String {
        locks.get(&registrar(), name, "mutex").lock().to_owned()
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
        let mut seen = BTreeSet::new();
        let before = resident();
        for number in 0..1_000_000 {
            let name = format!("order:{number}");
            let kind = ["mutex", "semaphore"][number % 2];
            let series = locks.get(&registrar, &name, kind);
            let address = std::ptr::from_ref(series) as usize;
            seen.insert((series.lock().to_owned(), series.kind(), address));
        }
        assert_eq!(seen.len(), 102, "one per label, and two kinds of other");
        let labels: BTreeSet<_> = seen.iter().map(|(label, ..)| label).collect();
        assert_eq!(labels.len(), 101);
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
        let series = locks.get(&registrar(), "b", "semaphore");
        assert_eq!(series.lock(), "b", "a new kind of a known label");
    }

    #[test]
    fn threads_that_race_share_the_series() {
        for _ in 0..50 {
            let verbatim: Box<LabelFn> = Box::new(|name| Cow::Borrowed(name));
            let locks = Locks::new(Some(verbatim), 20);
            let registrar = registrar();
            let barrier = Barrier::new(4);
            let seen = Mutex::new(BTreeSet::new());
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        barrier.wait();
                        for number in 0..40 {
                            let name = number.to_string();
                            let series = locks.get(&registrar, &name, "mutex");
                            let address = std::ptr::from_ref(series) as usize;
                            let label = series.lock().to_owned();
                            seen.lock().insert(((name, address), label));
                        }
                    });
                }
            });
            let seen = seen.into_inner();
            assert_eq!(seen.len(), 40, "a name has one series");
            let labels: BTreeSet<_> = seen.iter().map(|(_, label)| label).collect();
            assert_eq!(labels.len(), 21);
        }
    }

    #[test]
    fn folded_names_share_a_label() {
        let locks = Locks::new(None, 100);
        for number in 0..1000 {
            assert_eq!(label_of(&locks, &format!("order:{number}")), "order:*");
        }
    }
}

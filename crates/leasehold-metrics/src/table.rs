//! A hash table of series that only grows, and is read without a lock.
//!
//! # Invariants
//!
//! 1. An entry is never moved or removed.
//! 2. Entries are added while `adding` is locked, so none is added twice.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::recorder::Registrar;
use crate::series::Series;

/// The label of the locks beyond the limit.
pub(crate) const OTHER: &str = "_other";

/// A power of two, several times the usual number of labels.
const CHAINS: usize = 256;

/// Series by label and kind, with at most `max_labels` labels and [`OTHER`].
pub(crate) struct Table {
    chains: Box<[Link]>,
    max_labels: usize,
    /// The number of labels without [`OTHER`].
    labels: AtomicUsize,
    adding: Mutex<()>,
}

/// The rest of a chain: all entries whose labels have the same hash.
type Link = OnceLock<Box<Entry>>;

struct Entry {
    series: Series,
    next: Link,
}

enum Found<'a> {
    Series(&'a Series),
    /// The label has series of other kinds only.
    Label,
    Nothing,
}

impl Table {
    pub(crate) fn new(max_labels: usize) -> Self {
        Self {
            chains: (0..CHAINS).map(|_| Link::new()).collect(),
            max_labels,
            labels: AtomicUsize::new(0),
            adding: Mutex::default(),
        }
    }

    /// Returns the series of a label and kind, and adds it if it is missing.
    pub(crate) fn get(&self, registrar: &Registrar, label: &str, kind: &'static str) -> &Series {
        match self.find(label, kind) {
            Found::Series(series) => series,
            Found::Nothing if self.is_full() => match self.find(OTHER, kind) {
                Found::Series(series) => series,
                _ => self.add(registrar, label, kind),
            },
            _ => self.add(registrar, label, kind),
        }
    }

    fn find(&self, label: &str, kind: &str) -> Found<'_> {
        let mut found = Found::Nothing;
        let mut link = self.chain(label);
        while let Some(entry) = link.get() {
            if entry.series.lock() == label {
                if entry.series.kind() == kind {
                    return Found::Series(&entry.series);
                }
                found = Found::Label;
            }
            link = &entry.next;
        }
        found
    }

    fn add(&self, registrar: &Registrar, label: &str, kind: &'static str) -> &Series {
        let _adding = self.adding.lock();
        // Another thread may have added the series or the last label.
        let label = match self.find(label, kind) {
            Found::Series(series) => return series,
            Found::Nothing if self.is_full() => OTHER,
            Found::Nothing => {
                self.labels.fetch_add(1, Ordering::Release);
                label
            }
            Found::Label => label,
        };
        let mut link = self.chain(label);
        while let Some(entry) = link.get() {
            if entry.series.lock() == label && entry.series.kind() == kind {
                return &entry.series;
            }
            link = &entry.next;
        }
        let entry = link.get_or_init(|| {
            Box::new(Entry {
                series: Series::register(registrar, label.into(), kind),
                next: Link::new(),
            })
        });
        &entry.series
    }

    fn is_full(&self) -> bool {
        self.labels.load(Ordering::Acquire) >= self.max_labels
    }

    fn chain(&self, label: &str) -> &Link {
        // FNV-1a: fast for short text. Chosen names cannot make a chain long,
        // because there are few labels.
        let hash = label.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        &self.chains[hash as usize % CHAINS]
    }
}

//! What a caller with a slot wants, and when another caller can have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Span;

use super::slot::CallerSlot;
use super::slots::SlotQueue;
use crate::lease::owned::OwnedLease;
use crate::options::AcquireOptions;
use crate::protocol::Kind;

/// The slots of one lock.
pub(super) type LeaseQueue = SlotQueue<Terms, OwnedLease>;

/// The slot of one caller that wants a lock.
pub(super) type LeaseSlot = CallerSlot<Terms, OwnedLease>;

/// What a caller wants.
pub(crate) struct Terms {
    pub(super) kind: Arc<dyn Kind>,
    pub(super) options: AcquireOptions,
    pub(super) position: Position,
}

impl Terms {
    /// Returns whether a lock that was acquired on the other terms is what this
    /// caller wants. This is the only place that decides it.
    ///
    /// Callers of one queue can want different things: fewer permits, or to
    /// read and not to write.
    pub(super) fn equal(&self, other: &Self) -> bool {
        self.options.acquire_same_lease(&other.options)
            && self.kind.key() == other.kind.key()
            && self.kind.label() == other.kind.label()
            && self.kind.variant() == other.kind.variant()
    }
}

/// The last position of one caller in the server's queue.
#[derive(Default)]
pub(crate) struct Position {
    /// Zero if unknown.
    number: AtomicU64,
    /// The span of a caller that waits by itself.
    span: Option<Span>,
}

impl Position {
    pub(crate) fn in_span(span: &Span) -> Self {
        Self {
            number: AtomicU64::new(0),
            span: Some(span.clone()),
        }
    }

    pub(super) fn set(&self, position: u64) {
        self.number.store(position, Ordering::Relaxed);
        if let Some(span) = &self.span {
            span.record("lock.position", position);
        }
    }

    /// Records the position in the span of the caller's wait, when it ends.
    pub(super) fn record(&self, span: &Span) {
        let position = self.number.load(Ordering::Relaxed);
        if position > 0 {
            span.record("lock.position", position);
        }
    }
}

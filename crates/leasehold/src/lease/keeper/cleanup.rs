//! The releases and cancels that the keeper runs in the background, counted
//! for observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::observe::{Event, Observers};

/// The number of releases and cancels without a reply.
#[derive(Clone)]
pub(super) struct Cleanups {
    pending: Arc<AtomicUsize>,
    observers: Observers,
}

/// Counts as one of them until dropped.
pub(super) struct Cleanup(Cleanups);

impl Cleanups {
    pub(super) fn new(observers: Observers) -> Self {
        Self {
            pending: Arc::default(),
            observers,
        }
    }

    pub(super) fn start(&self) -> Cleanup {
        let pending = self.pending.fetch_add(1, Ordering::AcqRel) + 1;
        self.report(pending);
        Cleanup(self.clone())
    }

    fn report(&self, pending: usize) {
        let event = Event::CancelPending { pending };
        self.observers.notify(&event);
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let pending = self.0.pending.fetch_sub(1, Ordering::AcqRel) - 1;
        self.0.report(pending);
    }
}

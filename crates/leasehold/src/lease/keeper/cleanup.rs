//! The releases and cancels that the keeper runs in the background, counted
//! for observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::observe::{CancelPending, Observers};

/// The number of releases and cancels without a reply.
#[derive(Clone)]
pub(super) struct Cleanups {
    pending: Arc<AtomicUsize>,
    observers: Observers,
}

/// Counts as one of them until dropped.
pub(super) struct Cleanup {
    pending: Arc<AtomicUsize>,
    observers: Observers,
}

impl Cleanups {
    pub(super) fn new(observers: Observers) -> Self {
        Self {
            pending: Arc::default(),
            observers,
        }
    }

    pub(super) fn start(&self) -> Cleanup {
        let pending = self.pending.fetch_add(1, Ordering::AcqRel) + 1;
        report(&self.observers, pending);
        Cleanup {
            pending: self.pending.clone(),
            observers: self.observers.clone(),
        }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let pending = self.pending.fetch_sub(1, Ordering::AcqRel) - 1;
        report(&self.observers, pending);
    }
}

fn report(observers: &Observers, pending: usize) {
    let event = CancelPending { pending };
    observers.notify(|observer| observer.cancel_pending(&event));
}

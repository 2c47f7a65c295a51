//! Entering a lock again that one holds already.
//!
//! Reentrancy belongs to a handle, not to a thread: tasks move between threads.

use std::sync::Arc;

use super::acquire::{Acquire, AcquireRequest, TryAcquire};
use super::handle::Handle;
use crate::lease::{Guard, Reentry};
use crate::protocol::Kind;

/// A handle to a lock that can be entered again by whoever has a clone of it.
///
/// The first guard acquires the lock, the last one to go gives it back; those in between do not ask
/// the server. All share one lease and one token. The options of the first acquisition stand.
pub struct Reentrant<G = Guard> {
    handle: Handle<dyn Kind>,
    reentry: Arc<Reentry>,
    /// Makes the guard that this kind hands out.
    wrap: fn(Guard) -> G,
}

impl<G> Reentrant<G> {
    pub(super) fn new(handle: Handle<dyn Kind>, wrap: fn(Guard) -> G) -> Self {
        Self {
            handle,
            reentry: Arc::default(),
            wrap,
        }
    }

    /// Acquires the lock, or enters it again at once when a guard of this handle holds it.
    pub fn lock(&self) -> Acquire<G> {
        Acquire::guarded_by(self.request(), self.wrap)
    }

    /// Acquires the lock if it is free or held by this handle.
    pub fn try_lock(&self) -> TryAcquire<G> {
        TryAcquire::guarded_by(self.request(), self.wrap)
    }

    fn request(&self) -> AcquireRequest {
        AcquireRequest {
            reentry: Some(self.reentry.clone()),
            ..self.handle.request()
        }
    }
}

impl<G> Clone for Reentrant<G> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            reentry: self.reentry.clone(),
            wrap: self.wrap,
        }
    }
}

impl<G> std::fmt::Debug for Reentrant<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reentrant")
            .field(&self.handle.name())
            .finish()
    }
}

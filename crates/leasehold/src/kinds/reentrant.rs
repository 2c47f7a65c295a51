//! Entering a lock again that one holds already.
//!
//! Reentrancy belongs to a handle, not to a thread: tasks move between threads.

use std::sync::Arc;

use super::lock::{Ask, Lock, TryLock};
use super::mutex::Mutex;
use crate::lease::Reentry;

/// A handle to a lock that can be entered again by whoever has a clone of it.
///
/// The first guard acquires the lock, the last one to go gives it back; those in between do not reach
/// the server. All share one lease and one token. The terms of the first acquisition stand.
#[derive(Clone)]
pub struct Reentrant {
    mutex: Mutex,
    reentry: Arc<Reentry>,
}

impl Reentrant {
    pub(super) fn new(mutex: Mutex) -> Self {
        Self {
            mutex,
            reentry: Arc::default(),
        }
    }

    /// Acquires the lock, or enters it again at once when a guard of this handle holds it.
    pub fn lock(&self) -> Lock {
        Lock::new(self.ask())
    }

    /// Acquires the lock if it is free or held by this handle.
    pub fn try_lock(&self) -> TryLock {
        TryLock::new(self.ask())
    }

    fn ask(&self) -> Ask {
        Ask {
            reentry: Some(self.reentry.clone()),
            ..self.mutex.ask()
        }
    }
}

impl std::fmt::Debug for Reentrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reentrant")
            .field(&self.mutex.name())
            .finish()
    }
}

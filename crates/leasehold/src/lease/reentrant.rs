//! One acquisition shared by all guards of a reentrant handle.
//!
//! The number of guards is known only here, as a reference count. It never
//! reaches the server, so no request can count twice.

use std::pin::pin;
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::engine::Engine;
use super::owned::OwnedLease;
use crate::error::Error;
use crate::options::AcquireOptions;
use crate::protocol::Kind;
use crate::sync::Mutex;

/// The acquisition that the guards of one handle share.
#[derive(Default)]
pub(crate) struct Reentry {
    current: Mutex<Weak<OwnedLease>>,
    /// Notified when a task of the handle has acquired the lock.
    acquired: Notify,
}

impl Reentry {
    /// Enters the current acquisition, or acquires the lock.
    ///
    /// Tasks of one handle acquire independently: none waits for another, which
    /// may not be polled. The first that succeeds lets the others in.
    pub(crate) async fn enter(
        &self,
        engine: &Engine,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Arc<OwnedLease>, Error> {
        options.validate()?;
        engine.check_process()?;
        let mut acquiring = pin!(engine.acquire(kind, options));
        loop {
            // Registered before the check, or an acquisition in between would
            // be missed.
            let mut entered = pin!(self.acquired.notified());
            entered.as_mut().enable();
            if let Some(lease) = self.enter_current(options) {
                return Ok(lease);
            }
            tokio::select! {
                biased;
                lease = &mut acquiring => return match lease {
                    Ok(lease) => Ok(self.share(lease)),
                    // Another task of the handle may have been faster.
                    Err(error) => self.enter_current(options).ok_or(error),
                },
                () = entered => {}
            }
        }
    }

    /// Returns the number of guards.
    pub(crate) fn guards(&self) -> usize {
        self.current()
            .map_or(0, |lease| lease.state.entries() as usize)
    }

    /// Returns the current acquisition for one more caller.
    fn enter_current(&self, options: &AcquireOptions) -> Option<Arc<OwnedLease>> {
        let lease = self.current()?;
        // Acquired for a caller that may still wait for other locks.
        lease.begin_at_least(options);
        Some(lease)
    }

    /// Returns the current acquisition, unless it is lost.
    fn current(&self) -> Option<Arc<OwnedLease>> {
        let current = self.current.lock().upgrade();
        current.filter(|lease| lease.is_valid())
    }

    fn share(&self, lease: OwnedLease) -> Arc<OwnedLease> {
        let lease = Arc::new(lease);
        *self.current.lock() = Arc::downgrade(&lease);
        self.acquired.notify_waiters();
        lease
    }
}

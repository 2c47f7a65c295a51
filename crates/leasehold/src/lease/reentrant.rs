//! One acquisition shared by all guards of a reentrant handle.
//!
//! The number of guards is known only here, as a reference count. It never
//! reaches the server, so no request can count twice.

use std::pin::pin;
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::engine::Engine;
use super::owned::OwnedLease;
use super::state::LeaseState;
use crate::error::Error;
use crate::options::AcquireOptions;
use crate::protocol::Kind;
use crate::sync::Mutex;

/// The acquisition that the guards of one handle share.
#[derive(Default)]
pub(crate) struct Reentry {
    current: Mutex<Current>,
    /// Notified when a task of the handle has acquired the lock.
    acquired: Notify,
}

#[derive(Default)]
struct Current {
    lease: Weak<OwnedLease>,
    /// For those that only look: if they owned the lease for a moment, the last
    /// guard's release would not be the last one.
    state: Weak<LeaseState>,
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
        // Another task of the handle may be faster.
        let is_entered = || self.state().is_some();
        let mut acquiring = pin!(engine.acquire_unless(kind, options, &is_entered));
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
                    Err(error) => self.enter_current(options).ok_or(error),
                },
                () = entered => {}
            }
        }
    }

    /// Returns the number of guards.
    pub(crate) fn guards(&self) -> usize {
        self.state().map_or(0, |state| state.entries() as usize)
    }

    /// Returns the current acquisition for one more caller.
    fn enter_current(&self, options: &AcquireOptions) -> Option<Arc<OwnedLease>> {
        self.state()?;
        let lease = self.current.lock().lease.upgrade()?;
        // Acquired for a caller that may still wait for other locks.
        lease.begin_at_least(options);
        Some(lease)
    }

    /// Returns the state of the current acquisition, unless it has ended.
    fn state(&self) -> Option<Arc<LeaseState>> {
        let current = self.current.lock();
        // A local hand-off leaves the state to the next holder.
        let is_owned = current.lease.strong_count() > 0;
        let state = current.state.upgrade().filter(|_| is_owned);
        drop(current);
        state.filter(|state| state.is_valid())
    }

    fn share(&self, lease: OwnedLease) -> Arc<OwnedLease> {
        let lease = Arc::new(lease);
        *self.current.lock() = Current {
            lease: Arc::downgrade(&lease),
            state: Arc::downgrade(&lease.state),
        };
        self.acquired.notify_waiters();
        lease
    }
}

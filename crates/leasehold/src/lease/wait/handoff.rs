//! Local hand-off: how a lock goes from one caller of this process to the next.
//!
//! This is *lock cohorting*: the process keeps the lock for a short window and
//! passes it on without a request. See decision 15 in `docs/decisions/`.

use std::sync::Arc;
use std::time::Duration;

use super::registry::LockEntry;
use super::terms::{LeaseSlot, Terms};
use crate::lease::attempt::PATIENCE;
use crate::lease::owned::{OwnedLease, Successor};
use crate::lease::state::EndHook;
use crate::time::BootInstant;

/// After this long the lock returns to the server: other processes may wait,
/// and only the server knows.
const HANDOFF_WINDOW: Duration = Duration::from_millis(10);

/// The slots behind a lock that was acquired after a wait.
pub(super) struct Handoff {
    entry: Arc<LockEntry>,
    /// The slot for which the lock was acquired.
    origin: Arc<LeaseSlot>,
    since: BootInstant,
    last_handoffs: u64,
    /// The number of this window at the lock.
    number: u64,
}

impl Handoff {
    /// Opens the hand-off window of a lock that was acquired for `origin`.
    pub(super) fn new(entry: &Arc<LockEntry>, origin: &Arc<LeaseSlot>) -> Arc<Self> {
        let mut windows = entry.windows.lock();
        windows.opened += 1;
        Arc::new(Self {
            entry: entry.clone(),
            origin: origin.clone(),
            since: BootInstant::now(),
            last_handoffs: windows.handoffs,
            number: windows.opened,
        })
    }

    fn fits(&self, terms: &Terms) -> bool {
        terms.equal(&self.origin.terms)
    }
}

impl Successor for Handoff {
    fn offer(&self, mut lease: OwnedLease) -> Result<(), OwnedLease> {
        match lease.advance_token() {
            true => self.grant(lease),
            // The waiting task reserves tokens: a caller that claims the lock
            // must not await anything.
            false => {
                let queue = &self.entry.queue;
                queue.park(lease, |terms| self.fits(terms))
            }
        }
    }

    fn grant(&self, lease: OwnedLease) -> Result<(), OwnedLease> {
        self.entry.queue.grant(lease, |terms| self.fits(terms))
    }

    fn on_release(&self, limit: Duration) {
        let by = BootInstant::now() + limit + PATIENCE;
        self.entry.queue.set_leaving(by);
    }

    fn is_open(&self) -> bool {
        BootInstant::now().since(self.since) < HANDOFF_WINDOW
    }

    fn last_handoffs(&self) -> u64 {
        self.last_handoffs
    }
}

impl EndHook for Handoff {
    fn on_end(&self, notified: u64, handoffs: u64) {
        // One of the notified processes is this one.
        let others = notified.saturating_sub(1);
        let mut windows = self.entry.windows.lock();
        // A window that ended early was not used up, and owes the others
        // nothing.
        windows.yields = if self.is_open() { 0 } else { others };
        windows.handoffs = handoffs;
        // Unless a release that was not polled ends after the lock returned.
        let is_last = windows.opened == self.number;
        drop(windows);
        if is_last {
            self.entry.queue.set_here(false);
        }
    }
}

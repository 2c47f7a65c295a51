//! Local hand-off: how a lock goes from one task of this process to the next.
//!
//! This is *lock cohorting*: the process keeps the lock for a short window and
//! passes it on without a request. See decision 15 in `docs/decisions/`.

use std::sync::Arc;
use std::time::Duration;

use super::registry::{HandoffWindow, LeaderState, Registration};
use crate::lease::owned::{OwnedLease, Successor};
use crate::lease::state::EndHook;
use crate::options::AcquireOptions;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// After this long the lock returns to the server: other processes may wait,
/// and only the server knows.
const HANDOFF_WINDOW: Duration = Duration::from_millis(10);

/// The local waiters behind a lock that was acquired after a wait.
pub(super) struct Handoff {
    /// Dropped when the lock leaves this process.
    registration: Mutex<Option<Registration>>,
    since: BootInstant,
    note: Box<str>,
    last_handoffs: u64,
}

impl Handoff {
    /// Opens the hand-off window. `last_handoffs` is the number of hand-offs
    /// when this process last held the lock.
    pub(super) fn new(
        registration: Registration,
        options: &AcquireOptions,
        last_handoffs: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            registration: Mutex::new(Some(registration)),
            since: BootInstant::now(),
            note: options.note.as_str().into(),
            last_handoffs,
        })
    }
}

impl Successor for Handoff {
    fn accepts(&self, options: &AcquireOptions) -> bool {
        *self.note == *options.note
    }

    fn offer(&self, lease: OwnedLease) -> Result<(), OwnedLease> {
        let registration = self.registration.lock();
        let queue = registration
            .as_ref()
            .map(|registration| registration.entry.queue.clone());
        drop(registration);
        match queue {
            Some(queue) => queue.hand_off(lease),
            None => Err(lease),
        }
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
        let Some(registration) = self.registration.lock().take() else {
            return;
        };
        let window = HandoffWindow {
            // One of the notified processes is this one.
            yield_next: !self.is_open() && notified > 1,
            handoffs,
        };
        let update = |state: &mut LeaderState| state.last_window = window;
        registration.entry.queue.elect_leader(update);
    }
}

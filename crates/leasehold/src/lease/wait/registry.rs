//! The locks that tasks of this client wait for, or hold after a wait.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::local_queue::LocalQueue;
use crate::backend::{Listener, PubSubEvent, Subscription};
use crate::info::Holder;
use crate::lease::owned::OwnedLease;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// All locks that have a [`Registration`].
#[derive(Default)]
pub(in crate::lease) struct WaiterRegistry {
    locks: Mutex<HashMap<Arc<[u8]>, EntryRef>>,
}

struct EntryRef {
    entry: Arc<LockEntry>,
    /// The number of registrations. The entry is removed with the last one.
    registrations: usize,
}

/// The local queue of a lock.
pub(in crate::lease) type LeaseQueue = LocalQueue<LeaderState, OwnedLease>;

/// What the tasks that want one lock share.
pub(super) struct LockEntry {
    key: Arc<[u8]>,
    pub(super) queue: Arc<LeaseQueue>,
    pub(super) wakeup: Arc<Wakeup>,
    /// The leader's last observation, and when it was made.
    observed: Mutex<Option<(BootInstant, Observed)>>,
}

/// What one leader leaves to the next.
#[derive(Default)]
pub(in crate::lease) struct LeaderState {
    pub(super) subscription: Option<Subscription>,
    /// The ticket of the position in the server's queue, if the last leader
    /// gave up before it was served.
    pub(super) ticket: Option<u64>,
    pub(super) last_window: HandoffWindow,
}

/// The hand-off window that ended when the lock last left this process.
#[derive(Clone, Copy, Default)]
pub(super) struct HandoffWindow {
    /// Whether the window was used up while other processes wait.
    pub(super) yield_next: bool,
    pub(super) handoffs: u64,
}

/// A leader's observation of the lock.
#[derive(Clone)]
pub(in crate::lease) struct Observed {
    pub(in crate::lease) holder: Holder,
    /// The number of waiters that are served first, for kinds with a queue.
    pub(in crate::lease) ahead: Option<u64>,
}

/// A wake-up for a waiter or watcher, set by the connection's task.
#[derive(Default)]
pub(in crate::lease) struct Wakeup(pub(in crate::lease) Notify);

impl Listener for Wakeup {
    fn on_event(&self, _event: PubSubEvent<'_>) {
        // Every event is a wake-up; its content does not matter.
        self.0.notify_one();
    }
}

impl WaiterRegistry {
    /// Registers at `key` if another task is registered there.
    pub(super) fn join(self: &Arc<Self>, key: &[u8]) -> Option<Registration> {
        let mut locks = self.locks.lock();
        Some(locks.get_mut(key)?.register(self))
    }

    /// Registers at `key`.
    pub(super) fn register(self: &Arc<Self>, key: &[u8]) -> Registration {
        let mut locks = self.locks.lock();
        let entry = locks.entry(key.into()).or_insert_with_key(|key| EntryRef {
            entry: Arc::new(LockEntry {
                key: key.clone(),
                queue: Arc::new(LocalQueue::new(LeaderState::default())),
                wakeup: Arc::default(),
                observed: Mutex::default(),
            }),
            registrations: 0,
        });
        entry.register(self)
    }

    /// Returns what the leader at `key` last observed.
    pub(in crate::lease) fn last_observed(&self, key: &[u8]) -> Option<Observed> {
        let entry = self.locks.lock().get(key)?.entry.clone();
        let (at, mut observed) = entry.observed.lock().clone()?;
        let passed = BootInstant::now().since(at);
        let remaining = observed.holder.lease_remaining;
        observed.holder.lease_remaining =
            remaining.map(|remaining| remaining.saturating_sub(passed));
        Some(observed)
    }

    #[cfg(test)]
    pub(in crate::lease) fn is_empty(&self) -> bool {
        self.locks.lock().is_empty()
    }
}

impl EntryRef {
    fn register(&mut self, registry: &Arc<WaiterRegistry>) -> Registration {
        self.registrations += 1;
        Registration {
            registry: registry.clone(),
            entry: self.entry.clone(),
        }
    }
}

/// The registration of a task that waits for a lock, or holds it after a wait.
pub(super) struct Registration {
    registry: Arc<WaiterRegistry>,
    pub(super) entry: Arc<LockEntry>,
}

impl Registration {
    /// Registers once more at the same lock.
    pub(super) fn again(&self) -> Self {
        self.registry.register(&self.entry.key)
    }

    /// Records the holder for the other tasks at this lock.
    pub(super) fn record_holder(&self, holder: Holder, ahead: Option<u64>) {
        let observed = Observed { holder, ahead };
        *self.entry.observed.lock() = Some((BootInstant::now(), observed));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut locks = self.registry.locks.lock();
        let mut last = None;
        if let Some(entry) = locks.get_mut(&self.entry.key) {
            entry.registrations -= 1;
            if entry.registrations == 0 {
                last = locks.remove(&self.entry.key);
            }
        }
        // The entry may own resources that must not be dropped under the
        // mutex.
        drop(locks);
        drop(last);
    }
}

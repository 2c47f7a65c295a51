//! The keeper's inbox: messages, and new leases.
//!
//! # Invariants
//!
//! 1. The keeper takes a message at once, and a lease before the first renewal
//!    is due.
//! 2. A lease that ends before the keeper takes it costs the keeper neither
//!    work nor memory.

use std::mem;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::sync::Mutex;
use crate::time::BootInstant;

/// Messages `M` and leases `L` that the keeper has not taken.
pub(super) struct Inbox<M, L> {
    /// One mutex also covers the keeper's wake-up time, so no message or lease
    /// waits longer than allowed (invariant 1).
    pending: Mutex<Unread<M, L>>,
    wake: Arc<Notify>,
}

struct Unread<M, L> {
    messages: Vec<M>,
    leases: NewLeases<L>,
    /// When the keeper wakes without being notified.
    sleeps_until: BootInstant,
    is_closed: bool,
}

/// Leases that the keeper has not taken.
struct NewLeases<L> {
    /// Increases each time the keeper takes them.
    round: u64,
    leases: Vec<Option<L>>,
    free: Vec<usize>,
    /// When the keeper must take the first of them.
    due: BootInstant,
}

/// The slot of a lease in the inbox.
#[derive(Clone, Copy)]
pub(crate) struct InboxSlot {
    round: u64,
    at: usize,
}

/// The contents of the inbox.
pub(super) struct Delivery<M, L> {
    pub(super) messages: Vec<M>,
    pub(super) leases: Vec<L>,
    /// Whether the inbox was closed.
    pub(super) is_last: bool,
}

impl<M, L> Default for Inbox<M, L> {
    fn default() -> Self {
        let leases = NewLeases {
            round: 0,
            leases: Vec::new(),
            free: Vec::new(),
            due: BootInstant::NEVER,
        };
        Self {
            pending: Mutex::new(Unread {
                messages: Vec::new(),
                leases,
                sleeps_until: BootInstant::NEVER,
                is_closed: false,
            }),
            wake: Arc::default(),
        }
    }
}

impl<M, L> Inbox<M, L> {
    /// Sends a message and wakes the keeper.
    pub(super) fn send(&self, message: M) {
        self.pending.lock().messages.push(message);
        self.wake.notify_one();
    }

    /// Adds a lease that the keeper must take by `due`.
    pub(super) fn add(&self, lease: L, due: BootInstant) -> InboxSlot {
        let mut pending = self.pending.lock();
        let slot = pending.leases.add(lease, due);
        let is_early = due < pending.sleeps_until;
        drop(pending);
        if is_early {
            self.wake.notify_one();
        }
        slot
    }

    /// Removes a lease that has ended, unless the keeper took it
    /// (invariant 2).
    pub(super) fn remove(&self, slot: InboxSlot) {
        // Dropped after the mutex is unlocked.
        let _lease = self.pending.lock().leases.remove(slot);
    }

    /// Returns what wakes the keeper, which then takes the inbox.
    pub(super) fn waker(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Announces that no more messages follow.
    pub(super) fn close(&self) {
        self.pending.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Takes everything, and whether the inbox was closed. Both are read under
    /// one lock, or a message in between would be lost.
    pub(super) fn take(&self) -> Delivery<M, L> {
        let mut pending = self.pending.lock();
        Delivery {
            messages: mem::take(&mut pending.messages),
            leases: pending.leases.take(),
            is_last: pending.is_closed,
        }
    }

    /// Returns whether the keeper has taken everything.
    pub(super) fn is_empty(&self) -> bool {
        let pending = self.pending.lock();
        pending.messages.is_empty() && pending.leases.leases.iter().all(Option::is_none)
    }

    /// Records that the keeper sleeps until `instant`. Returns `false` if a
    /// message or lease cannot wait that long.
    pub(super) fn may_sleep_until(&self, instant: BootInstant) -> bool {
        let mut pending = self.pending.lock();
        pending.sleeps_until = instant;
        pending.messages.is_empty() && pending.leases.due >= instant
    }

    /// Waits until a message or lease cannot wait.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl<L> NewLeases<L> {
    fn add(&mut self, lease: L, due: BootInstant) -> InboxSlot {
        self.due = self.due.min(due);
        let at = match self.free.pop() {
            Some(at) => {
                self.leases[at] = Some(lease);
                at
            }
            None => {
                self.leases.push(Some(lease));
                self.leases.len() - 1
            }
        };
        let round = self.round;
        InboxSlot { round, at }
    }

    fn remove(&mut self, slot: InboxSlot) -> Option<L> {
        if slot.round != self.round {
            return None;
        }
        let lease = self.leases[slot.at].take();
        if lease.is_some() {
            self.free.push(slot.at);
        }
        lease
    }

    fn take(&mut self) -> Vec<L> {
        self.round += 1;
        self.due = BootInstant::NEVER;
        self.free.clear();
        self.leases.drain(..).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn later(seconds: u64) -> BootInstant {
        BootInstant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn removed_lease_is_not_delivered() {
        let inbox = Inbox::<(), _>::default();
        let first = inbox.add(1, later(10));
        let second = inbox.add(2, later(10));
        inbox.remove(first);
        let third = inbox.add(3, later(10));
        inbox.remove(third);
        assert_eq!(inbox.take().leases, [2]);
        let fourth = inbox.add(4, later(10));
        // The keeper took it: the slot holds another lease now.
        inbox.remove(second);
        assert_eq!(inbox.take().leases, [4]);
        inbox.remove(fourth);
        assert!(inbox.take().leases.is_empty());
    }

    #[test]
    fn keeper_sleeps_while_nothing_is_due() {
        let inbox = Inbox::default();
        assert!(inbox.may_sleep_until(BootInstant::NEVER));
        inbox.add((), later(10));
        assert!(inbox.may_sleep_until(later(1)));
        assert!(!inbox.may_sleep_until(later(60)));
        inbox.take();
        assert!(inbox.may_sleep_until(later(60)));
        inbox.send(());
        assert!(!inbox.may_sleep_until(later(1)));
    }
}

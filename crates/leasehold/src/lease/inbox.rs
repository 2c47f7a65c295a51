//! What callers leave for the keeper: orders, and new leases to look after.
//!
//! # Invariants
//!
//! 1. The keeper takes up an order at once, and a lease before its first renewal is due.
//! 2. A lease that ends before the keeper has taken it up leaves no trace: neither work nor memory.

use std::mem;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::time::BootInstant;

pub(super) struct Inbox<O, L> {
    /// Under one lock with the keeper's sleep, so that nothing lies longer than it can bear (invariant 1).
    state: Mutex<State<O, L>>,
    wake: Notify,
}

struct State<O, L> {
    orders: Vec<O>,
    leases: NewLeases<L>,
    /// When the keeper wakes by itself.
    sleeps_until: BootInstant,
    is_closed: bool,
}

/// Leases that the keeper has not taken up.
struct NewLeases<L> {
    /// Grows when they are taken up.
    round: u64,
    leases: Vec<Option<L>>,
    free: Vec<usize>,
    /// When the first of them must be taken up.
    due: BootInstant,
}

/// The place of a lease among those that the keeper has not taken up.
#[derive(Clone, Copy)]
pub(super) struct NewLease {
    round: u64,
    at: usize,
}

/// What the keeper takes at once.
pub(super) struct Taken<O, L> {
    pub(super) orders: Vec<O>,
    pub(super) leases: Vec<L>,
    /// Whether nothing follows.
    pub(super) is_last: bool,
}

impl<O, L> Default for Inbox<O, L> {
    fn default() -> Self {
        let leases = NewLeases {
            round: 0,
            leases: Vec::new(),
            free: Vec::new(),
            due: BootInstant::NEVER,
        };
        Self {
            state: Mutex::new(State {
                orders: Vec::new(),
                leases,
                sleeps_until: BootInstant::NEVER,
                is_closed: false,
            }),
            wake: Notify::new(),
        }
    }
}

impl<O, L> Inbox<O, L> {
    /// Leaves an order, and wakes the keeper.
    pub(super) fn order(&self, order: O) {
        self.state.lock().orders.push(order);
        self.wake.notify_one();
    }

    /// Leaves a lease that must be taken up by `due`.
    pub(super) fn add(&self, lease: L, due: BootInstant) -> NewLease {
        let mut state = self.state.lock();
        let place = state.leases.add(lease, due);
        let is_early = due < state.sleeps_until;
        drop(state);
        if is_early {
            self.wake.notify_one();
        }
        place
    }

    /// Takes back a lease that has ended, unless the keeper has it (invariant 2).
    pub(super) fn remove(&self, place: NewLease) {
        // Dropped after the lock is let go of.
        let _lease = self.state.lock().leases.remove(place);
    }

    /// Says that nothing follows.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Takes everything, and whether it was the last: known together, or what comes in between is forgotten.
    pub(super) fn take(&self) -> Taken<O, L> {
        let mut state = self.state.lock();
        Taken {
            orders: mem::take(&mut state.orders),
            leases: state.leases.take(),
            is_last: state.is_closed,
        }
    }

    /// Notes that the keeper will sleep until `moment`; returns false when something cannot wait that long.
    pub(super) fn may_sleep_until(&self, moment: BootInstant) -> bool {
        let mut state = self.state.lock();
        state.sleeps_until = moment;
        state.orders.is_empty() && state.leases.due >= moment
    }

    /// Waits until something cannot wait.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl<L> NewLeases<L> {
    fn add(&mut self, lease: L, due: BootInstant) -> NewLease {
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
        NewLease { round, at }
    }

    fn remove(&mut self, place: NewLease) -> Option<L> {
        if place.round != self.round {
            return None;
        }
        let lease = self.leases[place.at].take();
        if lease.is_some() {
            self.free.push(place.at);
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
    fn ended_lease_leaves_no_trace() {
        let inbox = Inbox::<(), _>::default();
        let first = inbox.add(1, later(10));
        let second = inbox.add(2, later(10));
        inbox.remove(first);
        let third = inbox.add(3, later(10));
        inbox.remove(third);
        assert_eq!(inbox.take().leases, [2]);
        let fourth = inbox.add(4, later(10));
        // The keeper has it: its place is another's now.
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
        inbox.order(());
        assert!(!inbox.may_sleep_until(later(1)));
    }
}

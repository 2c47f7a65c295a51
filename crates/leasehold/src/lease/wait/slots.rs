//! The callers of this process that wait for the same thing: a FIFO of slots.
//!
//! A caller polls one slot and nothing else. The waiting task, or a holder that
//! releases the lock, grants a slot. This module does not know what is granted,
//! or who else wants it.
//!
//! # Invariants
//!
//! 1. A grant is claimed, taken back, or returned by a cancelled caller in one
//!    step: the side that changes the slot's phase owns what was granted.
//! 2. No lock is dropped and no task is woken while a mutex is locked.
//! 3. The waiting task is woken after each change that it must act on.
//! 4. A caller that does not claim a grant in time keeps the place, and is
//!    passed over until it is polled again.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;

use super::slot::{CallerSlot, Phase, TakeBack};
use crate::backend::RequestError;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// The slots of callers that want a lock `L` on terms `T`.
pub(crate) struct SlotQueue<T, L> {
    inner: Mutex<Inner<T, L>>,
    /// Wakes the waiting task.
    wake: Notify,
}

struct Inner<T, L> {
    /// The slots that are not granted, in FIFO order.
    slots: VecDeque<Arc<CallerSlot<T, L>>>,
    /// The slots that were granted, the oldest first. Most have claimed.
    granted: VecDeque<Arc<CallerSlot<T, L>>>,
    /// A lock that the waiting task must prepare before it can be granted.
    parked: Option<L>,
    /// Until when a lock that holders hand off is in this process, as far as
    /// we know: [`BootInstant::NEVER`] while it is held.
    here_until: Option<BootInstant>,
    /// Whether the waiting task knows that a grant may be unclaimed.
    is_watched: bool,
    is_closed: bool,
}

/// A caller's place in the queue. Dropping it leaves the queue.
pub(crate) struct Place<T, L> {
    queue: Arc<SlotQueue<T, L>>,
    slot: Arc<CallerSlot<T, L>>,
}

/// What the waiting task must do.
pub(crate) enum Step<T, L> {
    /// Acquire the lock for this slot.
    Seek(Arc<CallerSlot<T, L>>),
    /// Prepare this lock, and grant it.
    Prepare(L),
    /// Wait for the next change.
    StandBy,
    /// No caller waits, and nothing is left.
    End,
}

impl<T, L> Default for SlotQueue<T, L> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                slots: VecDeque::new(),
                granted: VecDeque::new(),
                parked: None,
                here_until: None,
                is_watched: false,
                is_closed: false,
            }),
            wake: Notify::new(),
        }
    }
}

impl<T, L> SlotQueue<T, L> {
    /// Enqueues a caller at the end, or returns the terms if the waiting task
    /// has ended.
    pub(crate) fn enqueue(self: &Arc<Self>, terms: T) -> Result<Place<T, L>, T> {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(terms);
        }
        let slot = Arc::new(CallerSlot::new(terms));
        inner.prune();
        // Behind others, nothing changes for the waiting task.
        let is_first = inner.first_waiting().is_none();
        inner.slots.push_back(slot.clone());
        drop(inner);
        if is_first {
            self.wake.notify_one();
        }
        Ok(Place {
            queue: self.clone(),
            slot,
        })
    }

    /// Grants the lock to the first waiting slot, or returns the lock if there
    /// is none or the lock does not fit.
    pub(crate) fn grant(&self, lock: L, fits: impl Fn(&T) -> bool) -> Result<(), L> {
        self.grant_to_earlier(lock, BootInstant::NEVER, fits)
    }

    /// Grants the lock like [`grant`](Self::grant), but not to a caller that
    /// began to wait after `by`.
    pub(crate) fn grant_to_earlier(
        &self,
        mut lock: L,
        by: BootInstant,
        fits: impl Fn(&T) -> bool,
    ) -> Result<(), L> {
        let mut inner = self.inner.lock();
        let (slot, waker) = loop {
            let Some(at) = inner.first_waiting() else {
                return Err(lock);
            };
            let slot = inner.slots[at].clone();
            if slot.start > by || !fits(&slot.terms) {
                return Err(lock);
            }
            inner.slots.remove(at);
            match slot.grant(lock) {
                Ok(waker) => break (slot, waker),
                // The caller has left in between.
                Err(returned) => lock = returned,
            }
        };
        inner.forget_claimed();
        inner.granted.push_back(slot);
        let must_wake = !mem::replace(&mut inner.is_watched, true);
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        if must_wake {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Parks a lock for the waiting task, or returns it if it does not fit the
    /// first waiting slot.
    pub(crate) fn park(&self, lock: L, fits: impl FnOnce(&T) -> bool) -> Result<(), L> {
        let mut inner = self.inner.lock();
        match inner.first_waiting() {
            Some(at) if !inner.is_closed && fits(&inner.slots[at].terms) => {
                // A lock that was parked before has ended.
                let ended = inner.parked.replace(lock);
                drop(inner);
                drop(ended);
                self.wake.notify_one();
                Ok(())
            }
            _ => Err(lock),
        }
    }

    /// Records whether a lock that holders hand off is in this process.
    pub(crate) fn set_here(&self, is_here: bool) {
        self.inner.lock().here_until = is_here.then_some(BootInstant::NEVER);
        if !is_here {
            self.wake.notify_one();
        }
    }

    /// Records that the lock is being released. The waiting task asks for it at
    /// `by` even if the release did not return: the caller may not be polled.
    pub(crate) fn set_leaving(&self, by: BootInstant) {
        let mut inner = self.inner.lock();
        if inner.here_until.is_some() {
            inner.here_until = Some(by);
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// Returns what the waiting task must do.
    pub(crate) fn next_step(&self) -> Step<T, L> {
        let mut inner = self.inner.lock();
        if let Some(lock) = inner.parked.take() {
            return Step::Prepare(lock);
        }
        let is_here = inner.is_here();
        match inner.first_waiting() {
            Some(at) if !is_here => Step::Seek(inner.slots[at].clone()),
            _ => match inner.is_idle() {
                true => Step::End,
                false => Step::StandBy,
            },
        }
    }

    /// Tests the first waiting slot. Returns `None` if there is none, or the
    /// lock is in this process.
    pub(crate) fn test_first<R>(&self, test: impl FnOnce(&T) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        let is_here = inner.is_here();
        let at = inner.first_waiting().filter(|_| !is_here)?;
        Some(test(&inner.slots[at].terms))
    }

    /// Closes the queue if no caller waits and nothing is left. Returns whether
    /// it did.
    pub(crate) fn close_if_idle(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.is_closed = inner.is_idle();
        inner.is_closed
    }

    /// Waits for the next change, or takes back what was not claimed in time.
    pub(crate) async fn stand_by(&self) {
        let now = BootInstant::now();
        let (unclaimed, due) = self.take_back(now);
        if due <= now || !unclaimed.is_empty() {
            // Dropping a lease offers it to the next slot, or releases it.
            return drop(unclaimed);
        }
        let leaves_by = self.inner.lock().here_until;
        let due = leaves_by.map_or(due, |by| by.min(due));
        tokio::select! {
            biased;
            () = self.changed() => {}
            () = tokio::time::sleep_until(due.as_timer()) => {}
        }
    }

    /// Waits for the next change.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Takes back the grants that were not claimed in time. Returns them, and
    /// when to call this again.
    pub(crate) fn take_back(&self, now: BootInstant) -> (Vec<L>, BootInstant) {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        let mut next = BootInstant::NEVER;
        if !inner.is_watched {
            return (taken, next);
        }
        for slot in mem::take(&mut inner.granted) {
            match slot.take_back(now) {
                TakeBack::Claimed => {}
                TakeBack::NotDue(due) => {
                    next = next.min(due);
                    inner.granted.push_back(slot);
                }
                TakeBack::Taken(lock) => {
                    taken.push(lock);
                    inner.put_back(slot);
                }
            }
        }
        inner.is_watched = next < BootInstant::NEVER;
        match inner.is_watched {
            true => (taken, next),
            // The last one has claimed, and did not wake the waiting task.
            false => (taken, now),
        }
    }

    /// Fails every caller whose patience with an outage is over: it has waited
    /// for longer than `limit` since it began, and since the outage began.
    pub(crate) fn fail_overdue(&self, outage: BootInstant, limit: Duration, error: &RequestError) {
        let now = BootInstant::now();
        let mut overdue = Vec::new();
        let mut inner = self.inner.lock();
        inner.slots.retain(|slot| {
            let is_overdue = now.since(slot.start.max(outage)) > limit;
            if is_overdue {
                overdue.push(slot.clone());
            }
            !is_overdue
        });
        drop(inner);
        for slot in overdue {
            slot.fail(error.duplicate());
        }
        self.wake.notify_one();
    }

    /// Ends the wait of all callers, and returns the locks that are left.
    pub(crate) fn close(&self) -> Vec<L> {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        let mut left: Vec<_> = inner.parked.take().into_iter().collect();
        let mut slots = mem::take(&mut inner.slots);
        slots.append(&mut inner.granted);
        drop(inner);
        left.extend(slots.iter().filter_map(|slot| slot.close()));
        left
    }
}

impl<T, L> Inner<T, L> {
    /// Returns the position of the first slot that a lock can be granted to.
    fn first_waiting(&mut self) -> Option<usize> {
        self.forget_gone();
        self.slots.iter().position(|slot| slot.is_waiting())
    }

    fn is_here(&mut self) -> bool {
        // Forgotten when it is over: the waiting task would wake up for it.
        self.here_until = self.here_until.filter(|until| BootInstant::now() < *until);
        self.here_until.is_some()
    }

    /// Puts a slot back before the slots of callers that arrived later.
    fn put_back(&mut self, slot: Arc<CallerSlot<T, L>>) {
        let arrived_earlier = |other: &&Arc<CallerSlot<T, L>>| other.start < slot.start;
        let at = self.slots.iter().take_while(arrived_earlier).count();
        self.slots.insert(at, slot);
    }

    /// Forgets the callers at the front that have left.
    fn forget_gone(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.is_gone()) {
            self.slots.pop_front();
        }
    }

    /// Forgets all callers that have left, before the queue grows: many can
    /// come and go while one holds the lock.
    fn prune(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.retain(|slot| !slot.is_gone());
            let count = self.slots.len() + 1;
            self.slots.reserve(count);
        }
    }

    fn forget_claimed(&mut self) {
        while self.granted.front().is_some_and(|slot| !slot.is_granted()) {
            self.granted.pop_front();
        }
    }

    /// Returns whether no caller waits, and nothing is left to do.
    fn is_idle(&mut self) -> bool {
        self.forget_gone();
        self.forget_claimed();
        self.slots.is_empty() && self.granted.is_empty() && self.parked.is_none() && !self.is_here()
    }
}

impl<T, L> Place<T, L> {
    pub(crate) fn terms(&self) -> &T {
        &self.slot.terms
    }

    /// Claims the lock if it was granted. Claiming awaits nothing, so a caller
    /// that is polled once holds the lock.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<L, RequestError>> {
        let mut state = self.slot.state.lock();
        let was_dormant = match mem::replace(&mut state.phase, Phase::Gone) {
            Phase::Granted(lock) => return Poll::Ready(Ok(lock)),
            Phase::Failed(error) => return Poll::Ready(Err(error)),
            Phase::Gone => unreachable!("BUG: polled after its end"),
            Phase::Waiting => false,
            Phase::Dormant => true,
        };
        state.phase = Phase::Waiting;
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        drop(state);
        if was_dormant {
            self.queue.wake.notify_one();
        }
        Poll::Pending
    }

    /// Leaves after a claim, and wakes the waiting task, which would notice
    /// only when the grant is overdue.
    pub(crate) fn end(self) {
        self.queue.wake.notify_one();
    }

    /// Returns to the place: the lock that was claimed is of no use. Returns
    /// `false` if the waiting task has ended meanwhile.
    pub(crate) fn wait_again(&self) -> bool {
        let mut inner = self.queue.inner.lock();
        if inner.is_closed {
            return false;
        }
        self.slot.state.lock().phase = Phase::Waiting;
        inner.put_back(self.slot.clone());
        drop(inner);
        self.queue.wake.notify_one();
        true
    }
}

impl<T, L> Drop for Place<T, L> {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        let phase = mem::replace(&mut state.phase, Phase::Gone);
        let waker = state.waker.take();
        drop(state);
        drop(waker);
        match phase {
            // Dropping the lock offers it to the next slot.
            Phase::Granted(lock) => drop(lock),
            Phase::Waiting | Phase::Dormant => {}
            Phase::Failed(_) | Phase::Gone => return,
        }
        self.queue.wake.notify_one();
    }
}

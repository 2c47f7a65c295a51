//! The queue of tasks of one process that wait for the same lock.
//!
//! One task at a time, the *leader*, talks to the server for all of them. Once
//! the leader has acquired the lock, it parks its state: each holder hands the
//! lock off to the next task in the queue, until it returns to the server and
//! the first task of the queue is elected leader. This module does not know
//! what the lock is, or when it can be handed off.
//!
//! # Invariants
//!
//! 1. While the queue is not empty, another task is the leader or holds the
//!    lock: no waiter is forgotten.
//! 2. A leader or a lock that is dropped goes to the next task, so a task that
//!    is cancelled while it is woken takes nothing with it.
//! 3. Nothing is dropped while the queue's mutex is locked.
//! 4. A leader that is not polled is replaced within two passes of the keeper.

use std::collections::VecDeque;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use tokio::sync::oneshot;

use crate::lease::keeper::Monitored;
use crate::sync::Mutex;

/// The local queue of one lock `L`; the leader owns the state `S`.
pub(in crate::lease) struct LocalQueue<S, L> {
    inner: Mutex<Inner<S, L>>,
}

struct Inner<S, L> {
    /// The waiters in FIFO order.
    waiters: VecDeque<oneshot::Sender<Wake<S, L>>>,
    leader: LeaderSlot<S>,
    /// Whether the keeper monitors this queue.
    is_monitored: bool,
}

/// Where the leader's state is.
enum LeaderSlot<S> {
    /// No task leads and no task waits.
    Vacant(S),
    /// With the leader.
    Leading(Arc<Pulse>),
    /// Parked: a former leader holds the lock, or handed it off.
    Parked(S),
}

/// Why a waiter is woken.
pub(in crate::lease) enum Wake<S, L> {
    Lead(Leader<S, L>),
    Hold(L),
}

/// A task's entry in the queue.
pub(in crate::lease) enum Enqueued<S, L> {
    Woken(Wake<S, L>),
    Waiting(oneshot::Receiver<Wake<S, L>>),
}

/// The right to talk to the server for all tasks in the queue. Dropping it
/// elects the next leader.
pub(in crate::lease) struct Leader<S, L> {
    queue: Arc<LocalQueue<S, L>>,
    state: Option<S>,
    pulse: Arc<Pulse>,
}

/// Records whether the leader is polled.
#[derive(Default)]
pub(in crate::lease) struct Pulse {
    is_awaited: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Pulse {
    /// Records that the task is polled.
    pub(in crate::lease) fn beat(&self, context: &Context<'_>) {
        self.is_awaited.store(false, Ordering::Release);
        let mut task = self.task.lock();
        match &mut *task {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Awaits a poll. Returns `false` if there was none since the last call.
    fn is_beating(&self) -> bool {
        !self.is_awaited.swap(true, Ordering::AcqRel)
    }

    fn wake(&self) {
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<S, L> LocalQueue<S, L> {
    pub(in crate::lease) fn new(state: S) -> Self {
        Self {
            inner: Mutex::new(Inner {
                waiters: VecDeque::new(),
                leader: LeaderSlot::Vacant(state),
                is_monitored: false,
            }),
        }
    }

    /// Enqueues a task at the end.
    pub(in crate::lease) fn enqueue(self: &Arc<Self>) -> Enqueued<S, L> {
        self.insert(VecDeque::push_back)
    }

    /// Enqueues a task at the front: it was woken with a lock that it could not
    /// use.
    pub(in crate::lease) fn requeue_front(self: &Arc<Self>) -> Enqueued<S, L> {
        self.insert(VecDeque::push_front)
    }

    fn insert(
        self: &Arc<Self>,
        push: impl FnOnce(&mut VecDeque<oneshot::Sender<Wake<S, L>>>, oneshot::Sender<Wake<S, L>>),
    ) -> Enqueued<S, L> {
        let mut inner = self.inner.lock();
        let pulse = Arc::<Pulse>::default();
        match mem::replace(&mut inner.leader, LeaderSlot::Leading(pulse.clone())) {
            LeaderSlot::Vacant(state) => {
                Enqueued::Woken(Wake::Lead(Leader::new(self, state, pulse)))
            }
            occupied => {
                inner.leader = occupied;
                inner.prune_cancelled();
                let (wake, woken) = oneshot::channel();
                push(&mut inner.waiters, wake);
                Enqueued::Waiting(woken)
            }
        }
    }

    /// Offers the lock to the next waiter, or returns it if the queue is empty.
    pub(in crate::lease) fn hand_off(&self, lock: L) -> Result<(), L> {
        let mut inner = self.inner.lock();
        match inner.wake_next(Wake::Hold(lock)) {
            Err(Wake::Hold(lock)) => Err(lock),
            _ => Ok(()),
        }
    }

    /// Elects a leader after the lock has left this process; `update` changes
    /// the parked state. Must be called once per [`Leader::park`].
    pub(in crate::lease) fn elect_leader(self: &Arc<Self>, update: impl FnOnce(&mut S)) {
        let mut inner = self.inner.lock();
        let placeholder = LeaderSlot::Leading(Arc::default());
        match mem::replace(&mut inner.leader, placeholder) {
            LeaderSlot::Parked(mut state) => {
                update(&mut state);
                self.wake_leader(&mut inner, state);
            }
            occupied => inner.leader = occupied,
        }
    }

    fn wake_leader(self: &Arc<Self>, inner: &mut Inner<S, L>, state: S) {
        let pulse = Arc::<Pulse>::default();
        inner.leader = LeaderSlot::Leading(pulse.clone());
        let leader = Leader::new(self, state, pulse);
        if let Err(Wake::Lead(mut leader)) = inner.wake_next(Wake::Lead(leader))
            && let Some(state) = leader.state.take()
        {
            inner.leader = LeaderSlot::Vacant(state);
        }
    }

    /// Returns whether the caller must register this queue with the keeper: it
    /// has waiters and is not monitored.
    pub(in crate::lease) fn begin_monitoring(&self) -> bool {
        let mut inner = self.inner.lock();
        !inner.waiters.is_empty() && !mem::replace(&mut inner.is_monitored, true)
    }
}

impl<S: Default + Send, L: Send> Monitored for LocalQueue<S, L> {
    fn monitor(self: Arc<Self>) -> bool {
        let mut inner = self.inner.lock();
        inner.waiters.retain(|wake| !wake.is_closed());
        inner.is_monitored = !inner.waiters.is_empty();
        let pulse = match &inner.leader {
            LeaderSlot::Leading(pulse) if inner.is_monitored => pulse.clone(),
            _ => return inner.is_monitored,
        };
        if !pulse.is_beating() {
            // The stalled leader keeps its state; the next one starts with a
            // fresh one (invariant 4).
            self.wake_leader(&mut inner, S::default());
        }
        drop(inner);
        pulse.wake();
        true
    }
}

impl<S, L> Inner<S, L> {
    /// Wakes the first waiter that was not cancelled.
    fn wake_next(&mut self, mut wake: Wake<S, L>) -> Result<(), Wake<S, L>> {
        while let Some(next) = self.waiters.pop_front() {
            match next.send(wake) {
                Ok(()) => return Ok(()),
                Err(returned) => wake = returned,
            }
        }
        Err(wake)
    }

    fn is_led_by(&self, pulse: &Arc<Pulse>) -> bool {
        matches!(&self.leader, LeaderSlot::Leading(current) if Arc::ptr_eq(current, pulse))
    }

    /// Drops cancelled waiters before the queue grows: many tasks can come and
    /// go while one holds the lock.
    fn prune_cancelled(&mut self) {
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|wake| !wake.is_closed());
            self.waiters.reserve(self.waiters.len() + 1);
        }
    }
}

impl<S, L> Enqueued<S, L> {
    /// Waits until the task is woken. Dropping the future leaves the queue.
    pub(in crate::lease) async fn woken(self) -> Wake<S, L> {
        match self {
            Self::Woken(wake) => wake,
            Self::Waiting(woken) => match woken.await {
                Ok(wake) => wake,
                Err(_) => unreachable!("BUG: the queue forgot a waiter (invariant 1)"),
            },
        }
    }
}

impl<S, L> Leader<S, L> {
    fn new(queue: &Arc<LocalQueue<S, L>>, state: S, pulse: Arc<Pulse>) -> Self {
        Self {
            queue: queue.clone(),
            state: Some(state),
            pulse,
        }
    }

    /// Returns where the leader records its polls.
    pub(in crate::lease) fn pulse(&self) -> Arc<Pulse> {
        self.pulse.clone()
    }

    /// Parks the leader's state while this process holds the lock. Returns
    /// `false` if another leader was elected meanwhile.
    pub(in crate::lease) fn park(mut self) -> bool {
        let mut inner = self.queue.inner.lock();
        let is_leader = inner.is_led_by(&self.pulse);
        if is_leader && let Some(state) = self.state.take() {
            inner.leader = LeaderSlot::Parked(state);
        }
        is_leader
    }
}

impl<S, L> Deref for Leader<S, L> {
    type Target = S;

    fn deref(&self) -> &S {
        match &self.state {
            Some(state) => state,
            None => unreachable!("BUG: a leader has its state until it is dropped"),
        }
    }
}

impl<S, L> DerefMut for Leader<S, L> {
    fn deref_mut(&mut self) -> &mut S {
        match &mut self.state {
            Some(state) => state,
            None => unreachable!("BUG: a leader has its state until it is dropped"),
        }
    }
}

impl<S, L> Drop for Leader<S, L> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            let mut inner = self.queue.inner.lock();
            if inner.is_led_by(&self.pulse) {
                self.queue.wake_leader(&mut inner, state);
            } else {
                // The state may own resources that must not be dropped under
                // the mutex (invariant 3).
                drop(inner);
                drop(state);
            }
        }
    }
}

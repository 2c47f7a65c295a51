//! One caller that waits: what it was granted, and how it is woken.

use std::mem;
use std::task::Waker;
use std::time::Duration;

use crate::backend::RequestError;
use crate::lease::attempt::PATIENCE;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// The limit of a patience that doubles: a caller on a slow machine must not
/// starve.
pub(super) const MAX_PATIENCE: Duration = Duration::from_secs(2);

/// One caller that waits.
pub(crate) struct CallerSlot<T, L> {
    pub(crate) terms: T,
    /// When the caller began to wait.
    pub(super) start: BootInstant,
    pub(super) state: Mutex<SlotState<L>>,
}

pub(super) struct SlotState<L> {
    pub(super) phase: Phase<L>,
    pub(super) waker: Option<Waker>,
    granted_at: BootInstant,
    patience: Duration,
}

/// See the picture in [`lease`](crate::lease).
pub(super) enum Phase<L> {
    Waiting,
    Granted(L),
    /// The caller did not claim a grant, and was not polled since.
    Dormant,
    Failed(RequestError),
    /// The caller has claimed the lock, or has left.
    Gone,
}

/// The outcome of taking a grant back.
pub(super) enum TakeBack<L> {
    Claimed,
    NotDue(BootInstant),
    Taken(L),
}

impl<T, L> CallerSlot<T, L> {
    /// Returns the slot of a caller that begins to wait now.
    pub(super) fn new(terms: T) -> Self {
        Self {
            terms,
            start: BootInstant::now(),
            state: Mutex::new(SlotState {
                phase: Phase::Waiting,
                waker: None,
                granted_at: BootInstant::NEVER,
                patience: PATIENCE,
            }),
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Waiting)
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Granted(_))
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Gone | Phase::Failed(_))
    }

    /// Grants the lock and returns the waker of the caller's task, or returns
    /// the lock if the caller has left.
    pub(super) fn grant(&self, lock: L) -> Result<Option<Waker>, L> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Waiting => {
                state.phase = Phase::Granted(lock);
                state.granted_at = BootInstant::now();
                Ok(state.waker.take())
            }
            _ => Err(lock),
        }
    }

    /// Takes a grant back that is not claimed by `now`. The slot then waits
    /// twice as long the next time (invariant 4).
    pub(super) fn take_back(&self, now: BootInstant) -> TakeBack<L> {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Granted(_)) {
            return TakeBack::Claimed;
        }
        let due = state.granted_at + state.patience;
        if due > now {
            return TakeBack::NotDue(due);
        }
        state.patience = (state.patience * 2).min(MAX_PATIENCE);
        match mem::replace(&mut state.phase, Phase::Dormant) {
            Phase::Granted(lock) => TakeBack::Taken(lock),
            _ => TakeBack::Claimed,
        }
    }

    /// Ends the wait of this caller, unless it was granted the lock.
    pub(crate) fn fail(&self, error: RequestError) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Waiting | Phase::Dormant) {
            state.phase = Phase::Failed(error);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the wait of this caller, and returns what it was granted.
    pub(super) fn close(&self) -> Option<L> {
        let mut state = self.state.lock();
        let closed = Phase::Failed(RequestError::ShutDown);
        let left = match mem::replace(&mut state.phase, closed) {
            Phase::Granted(lock) => Some(lock),
            Phase::Gone => {
                state.phase = Phase::Gone;
                None
            }
            _ => None,
        };
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        left
    }
}

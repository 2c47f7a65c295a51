//! Where the tasks of one process that want the same lock stand behind each other.
//!
//! One of them at a time has the desk: it asks the server, for all of them. When it has the lock, nobody needs
//! to ask: each holder leaves the lock to the next in line, until it goes back to the server and the first
//! in line has the desk. What the lock is, and when it may be left to another, is not known here.
//!
//! # Invariants
//!
//! 1. While anybody stands in line, another task has the desk or the lock: nobody is forgotten.
//! 2. Desk and lock hand themselves on when they are dropped, so a task that goes away while it is called
//!    takes nothing with it.
//! 3. Nothing is dropped while the line is locked.
//! 4. A task at the desk that is not polled keeps the desk for at most two looks of the keeper.

use std::collections::VecDeque;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The line for one lock `L`; who has the desk also has the papers `P`.
pub(crate) struct Gate<P, L> {
    line: Mutex<Line<P, L>>,
}

struct Line<P, L> {
    /// Those who wait to be called, first come first served.
    waiting: VecDeque<oneshot::Sender<Turn<P, L>>>,
    papers: Papers<P>,
    /// Whether the keeper looks at it.
    is_watched: bool,
}

/// Where the papers are.
enum Papers<P> {
    /// Nobody asks the server and nobody stands in line.
    Unused(P),
    /// At the desk, with the task that asks the server.
    AtDesk(Arc<Pulse>),
    /// Put aside: a task that had the desk has the lock, or has left it to another.
    PutAside(P),
}

/// What a task is called for.
pub(crate) enum Turn<P, L> {
    Desk(Desk<P, L>),
    Lock(L),
}

/// A task's stand in line.
pub(crate) enum Standing<P, L> {
    Called(Turn<P, L>),
    Waiting(oneshot::Receiver<Turn<P, L>>),
}

/// The right to ask the server for all who stand in line; dropped, it goes to the next.
pub(crate) struct Desk<P, L> {
    gate: Arc<Gate<P, L>>,
    papers: Option<P>,
    pulse: Arc<Pulse>,
}

/// A line that the keeper looks at.
pub(crate) trait Watched: Send + Sync {
    /// Calls another task to the desk where the one that has it is not polled; returns false when nobody is in line.
    fn watch(self: Arc<Self>) -> bool;
}

/// Whether the task at the desk is polled.
#[derive(Default)]
pub(crate) struct Pulse {
    is_asked_for: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Pulse {
    /// Notes that the task is polled.
    pub(crate) fn beat(&self, context: &Context<'_>) {
        self.is_asked_for.store(false, Ordering::Release);
        let mut task = self.task.lock();
        match &mut *task {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Asks for a poll; returns false when there was none since the last time.
    fn is_felt(&self) -> bool {
        !self.is_asked_for.swap(true, Ordering::AcqRel)
    }

    /// Has the task polled.
    fn wake(&self) {
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<P, L> Gate<P, L> {
    pub(crate) fn new(papers: P) -> Self {
        Self {
            line: Mutex::new(Line {
                waiting: VecDeque::new(),
                papers: Papers::Unused(papers),
                is_watched: false,
            }),
        }
    }

    /// Gets in line behind all others.
    pub(crate) fn enter(self: &Arc<Self>) -> Standing<P, L> {
        self.stand(VecDeque::push_back)
    }

    /// Gets in line before all others: one who was called in vain.
    pub(crate) fn enter_again(self: &Arc<Self>) -> Standing<P, L> {
        self.stand(VecDeque::push_front)
    }

    fn stand(
        self: &Arc<Self>,
        place: impl FnOnce(&mut VecDeque<oneshot::Sender<Turn<P, L>>>, oneshot::Sender<Turn<P, L>>),
    ) -> Standing<P, L> {
        let mut line = self.line.lock();
        let pulse = Arc::<Pulse>::default();
        match mem::replace(&mut line.papers, Papers::AtDesk(pulse.clone())) {
            Papers::Unused(papers) => Standing::Called(Turn::Desk(Desk::new(self, papers, pulse))),
            elsewhere => {
                line.papers = elsewhere;
                line.forget_who_is_gone();
                let (call, called) = oneshot::channel();
                place(&mut line.waiting, call);
                Standing::Waiting(called)
            }
        }
    }

    /// Leaves the lock to the next in line; gives it back where nobody is.
    pub(crate) fn hand_on(&self, lock: L) -> Result<(), L> {
        let mut line = self.line.lock();
        match line.call(Turn::Lock(lock)) {
            Err(Turn::Lock(lock)) => Err(lock),
            _ => Ok(()),
        }
    }

    /// Says that the lock is no longer with this process: the next in line has the desk, with what `note` adds to the
    /// papers. To be said once for every [`Desk::has_the_lock`].
    pub(crate) fn lock_is_gone(self: &Arc<Self>, note: impl FnOnce(&mut P)) {
        let mut line = self.line.lock();
        let nobody = Papers::AtDesk(Arc::default());
        match mem::replace(&mut line.papers, nobody) {
            Papers::PutAside(mut papers) => {
                note(&mut papers);
                self.call_to_the_desk(&mut line, papers);
            }
            elsewhere => line.papers = elsewhere,
        }
    }

    fn call_to_the_desk(self: &Arc<Self>, line: &mut Line<P, L>, papers: P) {
        let pulse = Arc::<Pulse>::default();
        line.papers = Papers::AtDesk(pulse.clone());
        if let Err(Turn::Desk(mut desk)) = line.call(Turn::Desk(Desk::new(self, papers, pulse)))
            && let Some(papers) = desk.papers.take()
        {
            line.papers = Papers::Unused(papers);
        }
    }

    /// Returns whether the caller is to have the keeper look at the line, where tasks wait in it now.
    pub(crate) fn begin_watch(&self) -> bool {
        let mut line = self.line.lock();
        !line.waiting.is_empty() && !mem::replace(&mut line.is_watched, true)
    }
}

impl<P: Default + Send, L: Send> Watched for Gate<P, L> {
    fn watch(self: Arc<Self>) -> bool {
        let mut line = self.line.lock();
        line.waiting.retain(|call| !call.is_closed());
        line.is_watched = !line.waiting.is_empty();
        let pulse = match &line.papers {
            Papers::AtDesk(pulse) if line.is_watched => pulse.clone(),
            _ => return line.is_watched,
        };
        if !pulse.is_felt() {
            // With papers of its own: those of the silent task are with it (invariant 4).
            self.call_to_the_desk(&mut line, P::default());
        }
        drop(line);
        pulse.wake();
        true
    }
}

impl<P, L> Line<P, L> {
    /// Calls the first who is still there.
    fn call(&mut self, mut turn: Turn<P, L>) -> Result<(), Turn<P, L>> {
        while let Some(next) = self.waiting.pop_front() {
            match next.send(turn) {
                Ok(()) => return Ok(()),
                Err(returned) => turn = returned,
            }
        }
        Err(turn)
    }

    /// Whether the papers are where this pulse beats.
    fn is_at_desk(&self, pulse: &Arc<Pulse>) -> bool {
        matches!(&self.papers, Papers::AtDesk(current) if Arc::ptr_eq(current, pulse))
    }

    /// Before the line grows: many may come and go while one holds the lock for long.
    fn forget_who_is_gone(&mut self) {
        if self.waiting.len() == self.waiting.capacity() {
            self.waiting.retain(|call| !call.is_closed());
            self.waiting.reserve(self.waiting.len() + 1);
        }
    }
}

impl<P, L> Standing<P, L> {
    /// Waits to be called.
    ///
    /// Dropping the future leaves the line.
    pub(crate) async fn called(self) -> Turn<P, L> {
        match self {
            Self::Called(turn) => turn,
            Self::Waiting(called) => match called.await {
                Ok(turn) => turn,
                Err(_) => unreachable!("BUG: the line forgot somebody (invariant 1)"),
            },
        }
    }
}

impl<P, L> Desk<P, L> {
    fn new(gate: &Arc<Gate<P, L>>, papers: P, pulse: Arc<Pulse>) -> Self {
        Self {
            gate: gate.clone(),
            papers: Some(papers),
            pulse,
        }
    }

    /// Returns what the task at the desk notes its polls on.
    pub(crate) fn pulse(&self) -> Arc<Pulse> {
        self.pulse.clone()
    }

    /// Says that the lock is now with this process: until it is gone again nobody needs the desk. Returns false when
    /// another task was called to the desk meanwhile.
    pub(crate) fn has_the_lock(mut self) -> bool {
        let mut line = self.gate.line.lock();
        let is_ours = line.is_at_desk(&self.pulse);
        if is_ours && let Some(papers) = self.papers.take() {
            line.papers = Papers::PutAside(papers);
        }
        is_ours
    }
}

impl<P, L> Deref for Desk<P, L> {
    type Target = P;

    fn deref(&self) -> &P {
        match &self.papers {
            Some(papers) => papers,
            None => unreachable!("BUG: a desk has papers until it is given up"),
        }
    }
}

impl<P, L> DerefMut for Desk<P, L> {
    fn deref_mut(&mut self) -> &mut P {
        match &mut self.papers {
            Some(papers) => papers,
            None => unreachable!("BUG: a desk has papers until it is given up"),
        }
    }
}

impl<P, L> Drop for Desk<P, L> {
    fn drop(&mut self) {
        if let Some(papers) = self.papers.take() {
            let mut line = self.gate.line.lock();
            if line.is_at_desk(&self.pulse) {
                self.gate.call_to_the_desk(&mut line, papers);
            } else {
                // Papers may own what must not be dropped under the lock (invariant 3).
                drop(line);
                drop(papers);
            }
        }
    }
}

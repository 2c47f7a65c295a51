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

use std::collections::VecDeque;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

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
}

/// Where the papers are.
enum Papers<P> {
    /// Nobody asks the server and nobody stands in line.
    Unused(P),
    /// At the desk, with the task that asks the server.
    AtDesk,
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
}

impl<P, L> Gate<P, L> {
    pub(crate) fn new(papers: P) -> Self {
        Self {
            line: Mutex::new(Line {
                waiting: VecDeque::new(),
                papers: Papers::Unused(papers),
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
        match mem::replace(&mut line.papers, Papers::AtDesk) {
            Papers::Unused(papers) => Standing::Called(Turn::Desk(Desk::new(self, papers))),
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
        match mem::replace(&mut line.papers, Papers::AtDesk) {
            Papers::PutAside(mut papers) => {
                note(&mut papers);
                self.call_to_the_desk(&mut line, papers);
            }
            elsewhere => line.papers = elsewhere,
        }
    }

    fn call_to_the_desk(self: &Arc<Self>, line: &mut Line<P, L>, papers: P) {
        line.papers = Papers::AtDesk;
        if let Err(Turn::Desk(mut desk)) = line.call(Turn::Desk(Desk::new(self, papers)))
            && let Some(papers) = desk.papers.take()
        {
            line.papers = Papers::Unused(papers);
        }
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
    fn new(gate: &Arc<Gate<P, L>>, papers: P) -> Self {
        Self {
            gate: gate.clone(),
            papers: Some(papers),
        }
    }

    /// Says that the lock is now with this process: until it is gone again nobody needs the desk.
    pub(crate) fn has_the_lock(mut self) {
        if let Some(papers) = self.papers.take() {
            self.gate.line.lock().papers = Papers::PutAside(papers);
        }
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
            self.gate.call_to_the_desk(&mut line, papers);
        }
    }
}

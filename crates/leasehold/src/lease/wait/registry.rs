//! The locks that callers of this client wait for, or hold after a wait.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use tracing::Span;

use super::progress::Progress;
use super::slots::Place;
use super::terms::{LeaseQueue, Terms};
use crate::backend::RequestError;
use crate::lease::owned::OwnedLease;
use crate::sync::Mutex;

/// All locks that have a waiting task.
#[derive(Default)]
pub(crate) struct WaitRegistry {
    locks: Mutex<HashMap<Arc<[u8]>, Arc<LockEntry>>>,
}

/// What the callers that want one lock share.
pub(crate) struct LockEntry {
    key: Arc<[u8]>,
    pub(super) queue: Arc<LeaseQueue>,
    pub(crate) progress: Progress,
    pub(super) windows: Mutex<HandoffWindows>,
}

/// The hand-off windows of one lock.
#[derive(Default)]
pub(super) struct HandoffWindows {
    /// How many were opened.
    pub(super) opened: u64,
    /// How many other processes to yield to, because they waited when the last
    /// window was used up.
    pub(super) yields: u64,
    /// How often the lock was handed off in the last window.
    pub(super) handoffs: u64,
}

/// A caller's place at a lock.
pub(super) struct InLine {
    pub(super) entry: Arc<LockEntry>,
    place: Place<Terms, OwnedLease>,
    /// The span of the caller's wait. Not in the slot, which lives longer.
    span: Span,
}

impl WaitRegistry {
    /// Returns the lock at `key` if callers wait there.
    pub(super) fn get(&self, key: &[u8]) -> Option<Arc<LockEntry>> {
        self.locks.lock().get(key).cloned()
    }

    /// Adds a slot at `key`. Also returns the entry if it is new, and has no
    /// waiting task yet.
    pub(super) fn line_up(
        &self,
        key: &[u8],
        mut terms: Terms,
        span: &Span,
        max_outage: Duration,
    ) -> (InLine, Option<Arc<LockEntry>>) {
        let mut locks = self.locks.lock();
        if let Some(entry) = locks.get(key) {
            match entry.line_up(terms, span) {
                Ok(waiter) => return (waiter, None),
                Err(returned) => terms = returned,
            }
        }
        let key: Arc<[u8]> = key.into();
        let queue = Arc::<LeaseQueue>::default();
        let entry = Arc::new(LockEntry {
            key: key.clone(),
            progress: Progress::of_slots(max_outage, queue.clone()),
            queue,
            windows: Mutex::default(),
        });
        locks.insert(key, entry.clone());
        match entry.line_up(terms, span) {
            Ok(waiter) => (waiter, Some(entry)),
            Err(_) => unreachable!("BUG: a new queue is closed"),
        }
    }

    /// Removes a lock for which no caller waits. Returns `false` if one has
    /// arrived meanwhile.
    pub(super) fn remove_idle(&self, entry: &LockEntry) -> bool {
        // Under both mutexes: a caller either gets a slot before this, or
        // starts a new task.
        let mut locks = self.locks.lock();
        let is_idle = entry.queue.close_if_idle();
        if is_idle {
            locks.remove(&entry.key);
        }
        is_idle
    }

    /// Removes a lock whose waiting task has ended.
    pub(super) fn remove(&self, entry: &Arc<LockEntry>) {
        let mut locks = self.locks.lock();
        let current = locks.get(&entry.key);
        if current.is_some_and(|current| Arc::ptr_eq(current, entry)) {
            locks.remove(&entry.key);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.locks.lock().is_empty()
    }
}

impl LockEntry {
    /// Adds a slot, or returns the terms if the waiting task has ended.
    #[expect(
        clippy::result_large_err,
        reason = "the terms are used again, and the error is rare"
    )]
    pub(super) fn line_up(self: &Arc<Self>, terms: Terms, span: &Span) -> Result<InLine, Terms> {
        Ok(InLine {
            place: self.queue.enqueue(terms)?,
            entry: self.clone(),
            span: span.clone(),
        })
    }

    /// Returns how many waiters are served before the first caller that waits
    /// here.
    pub(crate) fn ahead(&self) -> Option<u64> {
        self.queue.test_first(|_| ())?;
        self.progress.ahead()
    }
}

impl InLine {
    /// Waits until the lock is granted, and claims it in one step. Returns
    /// `None` if that was lost before, and the waiting task has ended: then the
    /// caller must line up again.
    pub(super) async fn claimed(self) -> Result<Option<OwnedLease>, RequestError> {
        poll_fn(|context| {
            loop {
                match ready!(self.place.poll(context)) {
                    Ok(lease) if lease.is_valid() => return Poll::Ready(Ok(Some(lease))),
                    Ok(lost) => {
                        let waits = self.place.wait_again();
                        drop(lost);
                        if !waits {
                            return Poll::Ready(Ok(None));
                        }
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        })
        .await
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.place.terms().position.record(&self.span);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::lease::tests::scripted::{LEASE, kind};
    use crate::lease::wait::terms::Position;
    use crate::options::AcquireOptions;

    fn terms() -> Terms {
        Terms {
            kind: kind(),
            options: AcquireOptions::new(LEASE),
            position: Position::default(),
        }
    }

    fn line_up(registry: &WaitRegistry) -> (InLine, Option<Arc<LockEntry>>) {
        registry.line_up(b"job", terms(), &Span::none(), LEASE)
    }

    #[test]
    fn arrival_and_end_exclude_each_other() {
        let registry = WaitRegistry::default();
        let (waiter, new) = line_up(&registry);
        let entry = new.expect("the first caller starts a task");
        drop(waiter);
        let (arriving, begun) = (registry.locks.lock(), Barrier::new(2));
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                begun.wait();
                registry.remove_idle(&entry)
            });
            begun.wait();
            // A wrong end needs a moment to happen.
            std::thread::sleep(Duration::from_millis(20));
            let waiter = entry.line_up(terms(), &Span::none());
            assert!(waiter.is_ok(), "ended while a caller arrives");
            drop(arriving);
            assert!(!ending.join().unwrap(), "ended without its caller");
            assert!(!registry.is_empty());
        });
    }

    #[test]
    fn ended_task_leaves_a_newer_one_alone() {
        let registry = WaitRegistry::default();
        let (waiter, new) = line_up(&registry);
        let ended = new.expect("the first caller starts a task");
        drop(waiter);
        assert!(registry.remove_idle(&ended));
        assert!(ended.line_up(terms(), &Span::none()).is_err());
        let (_waiter, new) = line_up(&registry);
        let current = new.expect("the task has ended");
        registry.remove(&ended);
        assert!(Arc::ptr_eq(&registry.get(b"job").unwrap(), &current));
        registry.remove(&current);
        assert!(registry.is_empty());
    }
}

//! Waiting of a thread for a future.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Wakes the thread that created it.
pub(crate) struct Parker {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Parker {
    /// Creates a parker of the current thread, and its waker.
    pub(crate) fn current() -> (Arc<Self>, Waker) {
        let parker = Arc::new(Self {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        });
        (parker.clone(), Waker::from(parker))
    }

    /// Blocks the current thread until the waker is used, for at most `limit`.
    /// Spins for up to `spin` before it parks the thread.
    pub(crate) fn park(&self, spin: Duration, limit: Duration) {
        let start = Instant::now();
        while !self.is_woken.swap(false, Ordering::Acquire) {
            if start.elapsed() >= spin {
                return thread::park_timeout(limit);
            }
            thread::yield_now();
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

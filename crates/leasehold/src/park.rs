//! Waiting of a thread for a future.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

thread_local! {
    static IS_BLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `poll`, which polls the future of a blocking call.
pub(crate) fn polling<T>(poll: impl FnOnce() -> T) -> T {
    let before = IS_BLOCKING.replace(true);
    let polled = poll();
    IS_BLOCKING.set(before);
    polled
}

/// Returns whether this thread polls the future of a blocking call. It may be a
/// thread of a runtime, which runs no task until the call returns.
pub(crate) fn is_blocking() -> bool {
    IS_BLOCKING.get()
}

/// Wakes the thread that created it.
pub(crate) struct Parker {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Parker {
    /// Creates a parker of the current thread, and a waker.
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
                thread::park_timeout(limit);
                // The wake-up that ended the wait is used up.
                self.is_woken.store(false, Ordering::Release);
                return;
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

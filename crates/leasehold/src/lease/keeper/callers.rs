//! What callers have in flight on the server, for a shutdown to wait for.
//!
//! An acquire or a release belongs to the caller's task, which the keeper can
//! neither see nor poll. So each is counted, and a waiter in a server's queue
//! is registered, since its task may not be polled for long.
//!
//! # Invariants
//!
//! 1. A caller is counted before it ends a lease or sends an acquire, and sends
//!    the keeper what is left to do before it stops being counted. If none is
//!    counted and then the inbox is empty, nothing is left.
//! 2. Once the keeper has taken the waiters, no waiter is registered, and one
//!    that it took gets no lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::cancel::PendingAcquire;
use crate::protocol::LockValue;
use crate::sync::Mutex;

/// The requests of callers, and their waiters.
pub(super) struct Callers {
    /// Wakes the keeper.
    wake: Arc<Notify>,
    requests: AtomicUsize,
    /// Whether a shutdown waits for the requests. Only then do they wake the
    /// keeper.
    is_awaited: AtomicBool,
    /// `None` once the keeper has taken them.
    waiters: Mutex<Option<HashMap<LockValue, PendingAcquire>>>,
}

impl Callers {
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self {
            wake,
            requests: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            waiters: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Counts one request until the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> CallerRequest {
        self.requests.fetch_add(1, Ordering::SeqCst);
        CallerRequest(self.clone())
    }

    /// Returns whether a request is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0
    }

    /// Wakes the keeper after each request from now on.
    pub(super) fn begin_shutdown(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Registers a waiter. Returns `false` if the client is shut down.
    pub(super) fn add_waiter(&self, acquire: &PendingAcquire) -> bool {
        let mut waiters = self.waiters.lock();
        let waiters = waiters.as_mut();
        waiters
            .map(|waiters| waiters.insert(acquire.value.clone(), acquire.clone()))
            .is_some()
    }

    /// Removes a waiter. Returns `false` if the keeper took it.
    pub(super) fn remove_waiter(&self, value: &LockValue) -> bool {
        let mut waiters = self.waiters.lock();
        waiters
            .as_mut()
            .is_some_and(|waiters| waiters.remove(value).is_some())
    }

    /// Takes all waiters, to cancel them.
    pub(super) fn take_waiters(&self) -> impl Iterator<Item = PendingAcquire> + use<> {
        let waiters = self.waiters.lock().take();
        waiters.into_iter().flat_map(HashMap::into_values)
    }
}

/// One request of a caller, which a shutdown waits for.
pub(in crate::lease) struct CallerRequest(Arc<Callers>);

impl Drop for CallerRequest {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
        if self.0.is_awaited.load(Ordering::SeqCst) {
            self.0.wake.notify_one();
        }
    }
}

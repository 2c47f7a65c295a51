//! What callers have in flight on the server.
//!
//! An acquire or a release belongs to the caller's task, which the keeper can
//! neither see nor poll. So each acquire is registered here and each release is
//! counted. The keeper cancels an acquire whose caller is not polled, and a
//! shutdown waits for the others.
//!
//! # Invariants
//!
//! 1. A caller is registered or counted before it sends an acquire or ends a
//!    lease, and sends the keeper what is left to do before that ends. If none
//!    is left and then the inbox is empty, nothing is left.
//! 2. An acquire that the keeper has taken gives the caller no lock.
//! 3. Once the keeper has taken the waiters in the server's queues, no acquire
//!    enters one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::cancel::PendingAcquire;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// How long an acquire may be overdue when the keeper looks. If it is more, the
/// keeper itself was late, and so may be every caller.
const MAX_LATENESS: Duration = Duration::from_millis(25);

/// The acquires of callers, and the number of their other requests.
pub(super) struct Callers {
    /// Wakes the keeper.
    wake: Arc<Notify>,
    requests: AtomicUsize,
    /// Whether a shutdown waits for the callers. Only then do they wake the
    /// keeper when they are done.
    is_awaited: AtomicBool,
    acquires: Mutex<Acquires>,
}

struct Acquires {
    next_id: u64,
    by_id: HashMap<u64, Registered>,
    /// When the keeper looks for overdue acquires.
    next_look: BootInstant,
    is_closed: bool,
}

struct Registered {
    acquire: PendingAcquire,
    /// When the keeper cancels it.
    due: BootInstant,
    /// Whether it waits in the server's queue.
    is_queued: bool,
}

/// The registration of one acquire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcquireId(u64);

impl Callers {
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self {
            wake,
            requests: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            acquires: Mutex::new(Acquires {
                next_id: 0,
                by_id: HashMap::new(),
                next_look: BootInstant::NEVER,
                is_closed: false,
            }),
        }
    }

    /// Counts a request until the result is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> CallerRequest {
        self.requests.fetch_add(1, Ordering::SeqCst);
        CallerRequest(self.clone())
    }

    /// Registers an acquire, which the keeper cancels at `due`.
    pub(super) fn register(&self, acquire: PendingAcquire, due: BootInstant) -> AcquireId {
        let mut acquires = self.acquires.lock();
        let id = acquires.next_id;
        acquires.next_id += 1;
        let registered = Registered {
            acquire,
            due,
            is_queued: false,
        };
        acquires.by_id.insert(id, registered);
        let is_early = acquires.look_by(due);
        drop(acquires);
        if is_early {
            self.wake.notify_one();
        }
        AcquireId(id)
    }

    /// Sets when the keeper cancels an acquire that is not, or no longer, in
    /// the server's queue. Returns `false` if the keeper took it.
    pub(super) fn set_due(&self, id: AcquireId, due: BootInstant) -> bool {
        let mut acquires = self.acquires.lock();
        let Some(registered) = acquires.by_id.get_mut(&id.0) else {
            return false;
        };
        registered.due = due;
        registered.is_queued = false;
        if acquires.look_by(due) {
            drop(acquires);
            self.wake.notify_one();
        }
        true
    }

    /// Records that an acquire waits in the server's queue. Returns `false` if
    /// the keeper took it, or the client is shut down.
    pub(super) fn enter_queue(&self, id: AcquireId) -> bool {
        let mut acquires = self.acquires.lock();
        let is_closed = acquires.is_closed;
        match acquires.by_id.get_mut(&id.0) {
            Some(registered) if !is_closed => {
                registered.is_queued = true;
                registered.due = BootInstant::NEVER;
                true
            }
            _ => false,
        }
    }

    /// Ends a registration. Returns `false` if the keeper took the acquire.
    pub(super) fn remove(&self, id: AcquireId) -> bool {
        // Dropped after the mutex is unlocked.
        let removed = self.acquires.lock().by_id.remove(&id.0);
        self.wake_if_awaited();
        removed.is_some()
    }

    fn wake_if_awaited(&self) {
        if self.is_awaited.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Returns whether an acquire or another request is in flight.
    pub(super) fn is_busy(&self) -> bool {
        let is_acquiring = || {
            let acquires = self.acquires.lock();
            let mut each = acquires.by_id.values();
            each.any(|registered| !registered.is_queued)
        };
        // In this order: a claimed acquire first counts as a request.
        is_acquiring() || self.requests.load(Ordering::SeqCst) > 0
    }

    /// Wakes the keeper after each acquire and request from now on.
    pub(super) fn begin_shutdown(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Takes all acquires that wait in a server's queue, to cancel them.
    pub(super) fn take_waiters(&self) -> Vec<PendingAcquire> {
        let mut acquires = self.acquires.lock();
        acquires.is_closed = true;
        acquires.take(|registered| registered.is_queued)
    }

    /// Takes the acquires that are overdue, to cancel them. Returns them, and
    /// when to call this again.
    pub(super) fn take_overdue(&self, now: BootInstant) -> (Vec<PendingAcquire>, BootInstant) {
        let mut acquires = self.acquires.lock();
        if now < acquires.next_look {
            return (Vec::new(), acquires.next_look);
        }
        let is_late = acquires.next_look + MAX_LATENESS < now;
        if is_late {
            // Callers get the time that the keeper needed to wake up.
            let grace = now + MAX_LATENESS;
            for registered in acquires.by_id.values_mut() {
                registered.due = registered.due.max(grace);
            }
        }
        let overdue = acquires.take(|registered| registered.due <= now);
        let dues = acquires.by_id.values().map(|registered| registered.due);
        acquires.next_look = dues.min().unwrap_or(BootInstant::NEVER);
        (overdue, acquires.next_look)
    }
}

impl Acquires {
    /// Makes the keeper look by `due`. Returns whether it must be woken.
    fn look_by(&mut self, due: BootInstant) -> bool {
        let is_early = due < self.next_look;
        if is_early {
            self.next_look = due;
        }
        is_early
    }

    fn take(&mut self, test: impl Fn(&Registered) -> bool) -> Vec<PendingAcquire> {
        let taken = self.by_id.extract_if(|_, registered| test(registered));
        taken.map(|(_, registered)| registered.acquire).collect()
    }
}

/// One request of a caller, which a shutdown waits for.
pub(crate) struct CallerRequest(Arc<Callers>);

impl Drop for CallerRequest {
    fn drop(&mut self) {
        // In one total order with `begin_shutdown`: either this caller sees
        // that it is awaited, or the keeper sees the lower count.
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
        self.0.wake_if_awaited();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::scripted::Scripted;
    use crate::backend::{Backend, Purpose};
    use crate::lease::tests::scripted::{kind, yes};
    use crate::owner::Owner;
    use crate::protocol::Description;

    const SOON: Duration = Duration::from_millis(50);
    const LATER: Duration = Duration::from_secs(1);

    fn acquire() -> PendingAcquire {
        let kind = kind();
        PendingAcquire {
            value: kind.value(&Owner::random(), Description::default()),
            connection: Scripted::new(yes)
                .open_connection(Purpose::Requests, kind.slot())
                .expect("a scripted backend is connected"),
            kind,
        }
    }

    /// Returns the callers of a keeper, and whether they have woken it since
    /// the last call.
    fn callers() -> (Arc<Callers>, impl AsyncFn() -> bool) {
        crate::time::begin();
        let wake = Arc::new(Notify::new());
        let callers = Arc::new(Callers::new(wake.clone()));
        let is_woken = async move || {
            tokio::time::timeout(Duration::ZERO, wake.notified())
                .await
                .is_ok()
        };
        (callers, is_woken)
    }

    fn register(callers: &Callers, after: Duration) -> AcquireId {
        callers.register(acquire(), BootInstant::now() + after)
    }

    /// Returns how many acquires the keeper takes after `pause`, and how long
    /// it then sleeps.
    async fn taken_after(callers: &Callers, pause: Duration) -> (usize, Duration) {
        tokio::time::advance(pause).await;
        let now = BootInstant::now();
        let (taken, next) = callers.take_overdue(now);
        (taken.len(), next.since(now))
    }

    #[tokio::test(start_paused = true)]
    async fn overdue_acquire_is_taken_once() {
        let (callers, _) = callers();
        let first = register(&callers, SOON);
        let second = register(&callers, SOON + LATER);
        let before = taken_after(&callers, SOON - Duration::from_nanos(1)).await;
        assert_eq!(before, (0, Duration::from_nanos(1)));
        assert_eq!(
            taken_after(&callers, Duration::from_nanos(1)).await,
            (1, LATER)
        );
        assert_eq!(taken_after(&callers, Duration::ZERO).await, (0, LATER));
        assert!(!callers.remove(first), "taken, and claimed");
        assert!(!callers.set_due(first, BootInstant::NEVER));
        assert!(!callers.enter_queue(first));
        assert!(callers.remove(second));
    }

    #[tokio::test(start_paused = true)]
    async fn claimed_acquire_is_not_taken() {
        let (callers, _) = callers();
        let id = register(&callers, SOON);
        assert!(callers.is_busy());
        assert!(callers.remove(id));
        assert!(!callers.is_busy());
        assert_eq!(taken_after(&callers, SOON).await.0, 0);
        assert!(!callers.remove(id), "claimed twice");
    }

    #[tokio::test(start_paused = true)]
    async fn allowed_acquire_is_taken_later() {
        let (callers, _) = callers();
        let id = register(&callers, SOON);
        assert!(callers.set_due(id, BootInstant::now() + SOON + LATER));
        assert_eq!(taken_after(&callers, SOON).await, (0, LATER));
        assert_eq!(taken_after(&callers, LATER).await.0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn late_keeper_gives_callers_grace() {
        let (callers, _) = callers();
        register(&callers, SOON);
        let id = register(&callers, SOON);
        let slightly = taken_after(&callers, SOON + MAX_LATENESS + Duration::from_nanos(1));
        assert_eq!(slightly.await, (0, MAX_LATENESS));
        assert!(callers.remove(id), "not claimed in its grace");
        assert_eq!(taken_after(&callers, MAX_LATENESS).await.0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn keeper_that_is_hardly_late_gives_no_grace() {
        let (callers, _) = callers();
        register(&callers, SOON);
        assert_eq!(taken_after(&callers, SOON + MAX_LATENESS).await.0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn queued_acquire_is_due_once_granted() {
        let (callers, is_woken) = callers();
        let id = register(&callers, SOON);
        assert!(callers.enter_queue(id));
        assert!(!callers.is_busy(), "a shutdown waits for a queue");
        assert_eq!(taken_after(&callers, SOON).await.0, 0);
        assert_eq!(taken_after(&callers, LATER * 1000).await.0, 0);
        assert!(is_woken().await);
        assert!(callers.set_due(id, BootInstant::now() + SOON));
        assert!(is_woken().await, "the keeper sleeps");
        assert!(callers.is_busy());
        assert_eq!(taken_after(&callers, SOON).await.0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_takes_queued_acquires() {
        let (callers, _) = callers();
        let queued = register(&callers, SOON);
        let sent = register(&callers, SOON);
        assert!(callers.enter_queue(queued));
        assert_eq!(callers.take_waiters().len(), 1);
        assert!(!callers.remove(queued), "taken, and claimed");
        assert!(!callers.enter_queue(sent), "entered after the shutdown");
        assert!(callers.is_busy());
        assert!(callers.remove(sent));
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_earlier_acquire_wakes_the_keeper() {
        let (callers, is_woken) = callers();
        let first = register(&callers, LATER);
        assert!(is_woken().await);
        register(&callers, LATER);
        assert!(!is_woken().await);
        register(&callers, SOON);
        assert!(is_woken().await);
        callers.set_due(first, BootInstant::now() + SOON / 2);
        assert!(is_woken().await);
        callers.set_due(first, BootInstant::now() + LATER);
        assert!(!is_woken().await);
        callers.remove(first);
        assert!(!is_woken().await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_shutdown_is_woken_by_an_end() {
        let (callers, is_woken) = callers();
        drop(callers.begin_request());
        assert!(!is_woken().await);
        let id = register(&callers, SOON);
        assert!(is_woken().await);
        let request = callers.begin_request();
        callers.begin_shutdown();
        assert!(callers.remove(id));
        assert!(is_woken().await);
        assert!(callers.is_busy());
        drop(request);
        assert!(is_woken().await);
        assert!(!callers.is_busy());
    }
}

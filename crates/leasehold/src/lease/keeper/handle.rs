//! The handle by which callers send messages to the keeper.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::callers::{AcquireId, CallerRequest, Callers};
use super::cancel::PendingAcquire;
use super::inbox::{Inbox, InboxSlot};
use super::renew::Renewal;
use super::runtime::{KeeperRuntime, KeeperThread};
use super::timers::EXPIRY_SLACK;
use crate::lease::state::LeaseState;
use crate::process::HomeProcess;
use crate::time::BootInstant;

/// A handle to the keeper of one client.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(super) inbox: Arc<KeeperInbox>,
    pub(super) callers: Arc<Callers>,
    /// Runs the futures of blocking callers.
    pub(crate) runtime: KeeperRuntime,
}

pub(super) type KeeperInbox = Inbox<KeeperMsg, Arc<LeaseState>>;

/// A message to the keeper.
pub(super) enum KeeperMsg {
    Release(Arc<LeaseState>),
    Cancel(PendingAcquire),
    SetHoldCount(Arc<LeaseState>),
    /// Renew the lease with this lock value now: it may be revoked.
    Verify(Vec<u8>),
    /// Renew these leases again: the replies are overdue.
    Overdue(Vec<Renewal>),
    ShutDown(oneshot::Sender<()>),
}

impl Keeper {
    /// Creates the handle of a keeper that will work on this runtime.
    pub(crate) fn new(runtime: &tokio::runtime::Handle) -> Self {
        let inbox = Arc::<KeeperInbox>::default();
        Self {
            callers: Arc::new(Callers::new(inbox.waker())),
            inbox,
            runtime: KeeperRuntime::new(runtime),
        }
    }

    /// Marks the current thread as that of the keeper, until the result is
    /// dropped.
    pub(crate) fn mark_thread(&self) -> KeeperThread {
        self.runtime.mark_thread()
    }

    /// Renews and expires a lease, from the first renewal or the deadline on.
    pub(crate) fn keep(&self, state: Arc<LeaseState>) -> InboxSlot {
        // The keeper also announces the end (invariant 4).
        let end = state.deadline().saturating_sub(EXPIRY_SLACK);
        let due = state.first_renewal.min(end);
        let slow = state.slow_hold.map(|limit| BootInstant::now() + limit);
        let due = slow.map_or(due, |slow| slow.min(due));
        let due = state.or_next_look(due);
        self.inbox.add(state, due)
    }

    /// Returns the process in which the keeper's thread exists.
    pub(crate) fn process(&self) -> HomeProcess {
        self.runtime.process()
    }

    /// Sends a message. A forked child has no keeper, and the parent takes care
    /// of everything that the message is about.
    fn send(&self, message: KeeperMsg) {
        if self.process().is_current() {
            self.inbox.send(message);
        }
    }

    /// Forgets a lease that has ended.
    pub(crate) fn forget(&self, slot: InboxSlot) {
        self.inbox.remove(slot);
    }

    /// Releases a lease whose guard was dropped. Never blocks, fails or needs a
    /// runtime.
    pub(crate) fn release(&self, state: Arc<LeaseState>) {
        self.send(KeeperMsg::Release(state));
    }

    /// Cancels an acquire of unknown outcome.
    pub(crate) fn cancel(&self, acquire: PendingAcquire) {
        self.send(KeeperMsg::Cancel(acquire));
    }

    /// Counts a request of a caller, which a shutdown waits for, until the
    /// result is dropped.
    pub(crate) fn begin_request(&self) -> CallerRequest {
        self.callers.begin_request()
    }

    /// Registers an acquire that is about to be sent. The keeper cancels it at
    /// `due`, unless the caller has claimed the lock by then.
    pub(crate) fn watch(&self, acquire: PendingAcquire, due: BootInstant) -> AcquireId {
        self.callers.register(acquire, due)
    }

    /// Sets when the keeper cancels an acquire. Returns `false` if the keeper
    /// took it.
    pub(crate) fn set_due(&self, id: AcquireId, due: BootInstant) -> bool {
        self.callers.set_due(id, due)
    }

    /// Lets a shutdown cancel an acquire that waits in the server's queue,
    /// whether the task is polled or not. Returns `false` if the keeper took
    /// it, or the client is shut down.
    pub(crate) fn enter_queue(&self, id: AcquireId) -> bool {
        self.callers.enter_queue(id)
    }

    /// Ends the registration of an acquire. Returns `false` if the keeper took
    /// it.
    pub(crate) fn claim(&self, id: AcquireId) -> bool {
        self.callers.remove(id)
    }

    /// Writes the number of reentrant guards to the server, if the kind stores
    /// it there.
    pub(crate) fn set_hold_count(&self, state: Arc<LeaseState>) {
        // The keeper builds the call again, with the count by then.
        let is_stored = state.kind.set_hold_count(&state.value, 1).is_some();
        if is_stored && state.begin_hold_count() {
            self.send(KeeperMsg::SetHoldCount(state));
        }
    }

    /// Releases every lock and returns when that is done, and no request of a
    /// caller is in flight that could still acquire one.
    pub(crate) async fn shut_down(&self) {
        // Before the message: a caller that ends once the keeper has read it
        // must wake the keeper.
        self.callers.begin_shutdown();
        let (done, all_done) = oneshot::channel();
        self.send(KeeperMsg::ShutDown(done));
        // An error means that the keeper has ended and nothing is left to do.
        let _ = all_done.await;
    }

    /// Announces that no more messages follow.
    pub(crate) fn close(&self) {
        if self.process().is_current() {
            self.inbox.close();
        }
    }
}

#[cfg(test)]
impl Default for Keeper {
    /// Creates the handle of a keeper that works on the test's runtime.
    fn default() -> Self {
        Self::new(&tokio::runtime::Handle::current())
    }
}

//! The guard of a held lock.

use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use super::context::{Context, error_of};
use super::keeper::KeeperRuntime;
use super::lease::{Fenced, Lease, Shared, Unfenced};
use super::owned::{OwnedLease, ReleaseOutcome};
use super::report::report_loss;
use super::state::{EndReason, LeaseState};
use crate::backend::RequestError;
use crate::error::{Error, Loss};
use crate::options::validate_lease;
use crate::protocol::RenewReply;
use crate::time::BootInstant;

/// A held lock. Dropping it releases the lock in the background.
///
/// A guard is valid until its [deadline](Lease::deadline), which every
/// confirmed renewal moves. If renewals fail, [`lost`](Lease::lost) resolves
/// *before* the server can grant the lock to another client. No guard can stop
/// code that is suspended between a check and its effect: send the
/// [`token`](Lease::token) with every write, and let the resource reject
/// smaller ones.
///
/// A guard is `Send`, borrows nothing, and dereferences to its [`Lease`]. `F`
/// is [`Fenced`] if the lock is exclusive and has tokens, [`Shared`] for
/// permits and readers, and [`Unfenced`] for locks of
/// [`redisson`](crate::redisson) without tokens.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<F = Fenced> {
    owned: Arc<OwnedLease>,
    lease: Lease<F>,
    /// Present for a reentrant handle. Dropped after `owned`.
    _entry: Option<Entry>,
}

impl Guard {
    /// Creates the only guard of `owned`.
    pub(crate) fn new(owned: OwnedLease) -> Self {
        Self::of(Arc::new(owned), None)
    }

    /// Creates one of several guards that share `owned`.
    pub(crate) fn entering(owned: Arc<OwnedLease>) -> Self {
        let entry = Entry::new(&owned);
        Self::of(owned, Some(entry))
    }

    fn of(owned: Arc<OwnedLease>, entry: Option<Entry>) -> Self {
        Self {
            lease: owned.view(),
            owned,
            _entry: entry,
        }
    }

    /// Converts into the guard of a lock without tokens.
    pub(crate) fn unfenced(self) -> Guard<Unfenced> {
        self.marked()
    }

    /// Converts into the guard of a lock with several holders.
    pub(crate) fn shared(self) -> Guard<Shared> {
        self.marked()
    }

    /// Ends all views of this guard, and returns one that is shared. Views of
    /// a downgraded writer must not report that they exclude readers.
    pub(crate) fn shared_anew(mut self) -> Guard<Shared> {
        if let Some(owned) = Arc::get_mut(&mut self.owned) {
            owned.end_views();
            self.lease = owned.view();
        }
        self.marked()
    }

    /// Returns what the server stores for this acquisition.
    pub(crate) fn value(&self) -> &[u8] {
        &self.owned.state.value
    }

    /// Returns the lease if this is its only guard.
    pub(super) fn into_owned(self) -> Option<OwnedLease> {
        Arc::into_inner(self.owned)
    }

    /// Converts into the guard of a lock with this kind of fencing.
    pub(crate) fn marked<F>(self) -> Guard<F> {
        Guard {
            lease: self.lease.viewed_as(),
            owned: self.owned,
            _entry: self._entry,
        }
    }
}

impl<F> Guard<F> {
    /// Returns a view of this lease that can be cloned and passed on.
    #[must_use]
    pub fn lease(&self) -> &Lease<F> {
        &self.lease
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.owned.context.check_process()
    }

    /// Extends the lease to at least `lease` from now, whether it is renewed
    /// or fixed, but never beyond [`at_most`](crate::Acquire::at_most).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lease unchanged or extended.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if this owner no longer holds the lock. After any other
    /// error the lease is unchanged, and the call can be repeated.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let state = self.lease.state();
        validate_lease(lease, state.max_lease)?;
        self.check_process()?;
        self.check()?;
        let Some(lease) = state.clamp_to_max_hold(lease) else {
            return self.check();
        };
        state.request(BootInstant::now(), lease);
        let context = &self.owned.context;
        let renewal = context.renew(&*state.kind, &state.value, lease, state.replica_ack);
        match renewal.await {
            Ok((sent, RenewReply::Renewed | RenewReply::OnMajority)) => {
                state.confirm(sent, lease);
            }
            Ok((_, RenewReply::NotOwner)) => self.revoked(),
            Err(error) => {
                // Connecting took a while, and the request may be executed.
                state.request(BootInstant::now(), lease);
                return Err(error_of(error, state.kind.name()));
            }
        }
        self.check()
    }

    /// Returns the runtime for the requests of blocking callers.
    pub(crate) fn runtime(&self) -> &KeeperRuntime {
        &self.owned.context.keeper.runtime
    }

    /// Shares the lock with other holders, if its kind supports it.
    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        self.check_process()?;
        self.check()?;
        let reply = match self.send_downgrade().await {
            // A downgrade is idempotent, so an unnoticed disconnect costs one
            // more request.
            Err(error) if error.is_transient() => self.send_downgrade().await,
            reply => reply,
        };
        match reply {
            Ok(RenewReply::Renewed | RenewReply::OnMajority) => {}
            Ok(RenewReply::NotOwner) => self.revoked(),
            Err(error) => return Err(error_of(error, self.name())),
        }
        self.check()
    }

    /// Ends a lease that another client revoked.
    fn revoked(&self) {
        let (state, loss) = (self.lease.state(), Loss::Revoked);
        if state.end(EndReason::Lost(loss)) {
            report_loss(state, loss, &self.owned.context.observers);
        }
    }

    async fn send_downgrade(&self) -> Result<RenewReply, RequestError> {
        let state = self.lease.state();
        match state.kind.downgrade(&state.value) {
            Some(call) => self.owned.context.send(state.kind.slot(), call).await,
            None => Ok(RenewReply::Renewed),
        }
    }

    /// Releases the lock and returns the outcome.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future moves the release to the background, as dropping
    /// the guard does.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached. The client retries in the
    /// background; the lock is free at the latest when its lease expires.
    pub async fn release(self) -> Result<ReleaseOutcome, Error> {
        match Arc::into_inner(self.owned) {
            Some(owned) => owned.release().await,
            None => Ok(ReleaseOutcome::StillHeld),
        }
    }

    /// Runs `work` under this lock, drops it if the lease is lost, and
    /// releases the lock.
    pub(crate) async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Lease<F>) -> W,
        W: Future,
    {
        let lease = self.lease.clone();
        let span = tracing::debug_span!(
            target: "leasehold",
            "leasehold.hold",
            lock.name = lease.name(),
            lock.kind = lease.state().kind.label(),
            lock.token = self.owned.token().map(tracing::field::display),
            lock.outcome = tracing::field::Empty,
        );
        // The work is created inside the span too: it may start at once.
        let work = span
            .in_scope(|| work(lease.clone()))
            .instrument(span.clone());
        let output = until_lost(work, lease.ended()).await;
        let in_time = lease.check();
        span.record(
            "lock.outcome",
            if in_time.is_ok() { "released" } else { "lost" },
        );
        drop(span);
        let released = self.release().await;
        conclude(output, in_time, released)
    }
}

/// Runs `work` and catches a panic in it. Drops it and returns `None` if `lost`
/// completes first.
pub(crate) async fn until_lost<W: Future, L: Future>(
    work: W,
    lost: L,
) -> Option<std::thread::Result<W::Output>> {
    let mut work = Box::pin(work);
    let unwinding = poll_fn(|context| {
        let poll = || work.as_mut().poll(context);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    tokio::select! {
        biased;
        _ = lost => None,
        output = unwinding => Some(output),
    }
}

/// Returns the result of work under a lock, or resumes its panic. `output` is
/// `None` if the work was dropped, `in_time` whether the lease was valid at its
/// end.
pub(crate) fn conclude<T>(
    output: Option<std::thread::Result<T>>,
    in_time: Result<(), Error>,
    released: Result<ReleaseOutcome, Error>,
) -> Result<T, Error> {
    if let Err(error) = released {
        tracing::warn!(%error, "release continues in the background");
    }
    match output {
        Some(Err(panic)) => resume_unwind(panic),
        Some(Ok(value)) => in_time.map(|()| value),
        // The lease has ended, which `in_time` reports.
        None => in_time.and(Err(Error::ShutDown)),
    }
}

impl From<Guard> for Guard<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(guard: Guard) -> Self {
        guard.shared()
    }
}

impl<F> Deref for Guard<F> {
    type Target = Lease<F>;

    fn deref(&self) -> &Lease<F> {
        &self.lease
    }
}

impl<F> fmt::Debug for Guard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

/// One guard of a reentrant handle. Its creation and drop change the hold
/// count that the server stores.
struct Entry {
    state: Arc<LeaseState>,
    context: Arc<Context>,
}

impl Entry {
    fn new(owned: &OwnedLease) -> Self {
        let (state, context) = (owned.state.clone(), owned.context.clone());
        if state.enter() > 1 {
            context.keeper.set_hold_count(state.clone());
        }
        Self { state, context }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.state.leave() > 0 {
            self.context.keeper.set_hold_count(self.state.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only if guards can be sent, shared and stored.
    #[test]
    fn guards_are_send_sync_and_static() {
        fn check<T: Send + Sync + Unpin + 'static>() {}
        check::<Guard>();
        check::<Lease>();
        check::<ReleaseOutcome>();
        check::<Error>();
    }
}

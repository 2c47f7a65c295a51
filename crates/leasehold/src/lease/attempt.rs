//! One attempt to acquire a lock.
//!
//! An attempt is registered for cancellation before it is sent (invariant 7),
//! and the keeper cancels it if its caller is not polled (invariant 13). A
//! grant becomes an [`OwnedLease`] once the token is above the floor (invariant
//! 8) and the replicas have acknowledged it (invariant 10).

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::keeper::{AcquireId, CallerRequest, Keeper, PendingAcquire};
use super::owned::OwnedLease;
use super::state::{Granted, LeaseState};
use crate::backend::{Backoff, Connection, RequestError};
use crate::info::Holder;
use crate::options::{AcquireOptions, ReplicaAck};
use crate::owner::{Owner, Token};
use crate::protocol::{AcquireReply, Description, Kind, LockValue, RenewReply};
use crate::time::BootInstant;

/// How often an acquire that does not wait is repeated while no client gets a
/// majority.
const MAX_SPLIT_RETRIES: usize = 5;

/// How long a caller may take, beyond its requests' own limits, to notice that
/// it was granted the lock.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// The outcome of one attempt.
pub(super) enum Attempt {
    Acquired(OwnedLease),
    Busy(Holder),
    /// Some nodes granted the lock to this client and some to others. It is
    /// already withdrawn.
    Split,
}

/// Attempts once, as a new owner. If `poll` is set, a busy reply includes the
/// remaining lease.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn would store its arguments twice"
)]
pub(super) fn attempt(
    context: &Arc<Context>,
    kind: &Arc<dyn Kind>,
    options: &AcquireOptions,
    owner: Owner,
    poll: bool,
) -> impl Future<Output = Result<Attempt, RequestError>> + Send {
    async move {
        let request = request(context, kind, options, owner, poll);
        let (pending, token, granted) = match request.await? {
            Requested::Held(pending, token, granted) => (pending, token, granted),
            Requested::Other(attempt) => return Ok(attempt),
        };
        // A redirected acquire drew its token before it had the lock. Others
        // may have held the lock in between, with larger tokens. With replicas,
        // the first renewal draws another token anyway.
        let is_late = pending.connection().has_redirected() && options.replica_ack.is_none();
        let (token, granted) = match is_late {
            true => Box::pin(draw_again(context, &pending, token, options, granted)).await?,
            false => (token, granted),
        };
        let owned = establish(context, pending, token, options, granted).await?;
        Ok(Attempt::Acquired(owned))
    }
}

/// The server's answer to an acquire.
enum Requested<'a> {
    Held(CancelOnDrop<'a>, Token, Granted),
    Other(Attempt),
}

/// Sends an acquire. Apart from [`attempt`], whose future would keep what only
/// this needs.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn would store its arguments twice"
)]
fn request<'a>(
    context: &'a Context,
    kind: &Arc<dyn Kind>,
    options: &AcquireOptions,
    owner: Owner,
    poll: bool,
) -> impl Future<Output = Result<Requested<'a>, RequestError>> + Send {
    async move {
        context.check_open()?;
        let (connection, admitted) = context.admitted(kind.slot()).await?;
        // Before the request leaves, so the server's lease cannot begin earlier
        // (invariant 1).
        let sent = BootInstant::now();
        let description = description(context, options, &*connection, sent);
        let value = kind.value(&owner, description);
        // Before anything is sent, so dropping this future leaves nothing
        // behind (invariant 7).
        let pending = CancelOnDrop::new(context, kind, value, connection, sent)?;
        let call = kind.acquire(pending.value(), options.first_lease(), poll);
        let call = call.admitted(admitted);
        let limit = context.limits.request;
        // Each request of the call has its own time.
        let reply = call.send_steps(pending.connection(), limit, || pending.allow(limit));
        match reply.await {
            Ok(AcquireReply::Held { token }) => {
                let granted = Granted::new(sent, options.first_lease());
                Ok(Requested::Held(pending, token, granted))
            }
            Ok(AcquireReply::Busy { holder }) => {
                pending.disarm();
                Ok(Requested::Other(Attempt::Busy(holder)))
            }
            // Stays registered: the votes are cancelled in the background.
            Ok(AcquireReply::Outvoted { holder }) => Ok(Requested::Other(Attempt::Busy(holder))),
            // Stays registered: the lock was acquired, and is cancelled.
            Ok(AcquireReply::Unusable { refusal }) => Err(RequestError::Refused(refusal)),
            Ok(AcquireReply::Split) => {
                // Awaited, since these votes would split the next attempt too.
                // Boxed, since only a quorum gets here.
                Box::pin(withdraw(context, pending)).await;
                Ok(Requested::Other(Attempt::Split))
            }
            Err(error) => {
                // In all other cases, dropping `pending` cancels the acquire.
                if error.proves_unexecuted() {
                    pending.disarm();
                }
                Err(error)
            }
        }
    }
}

/// Describes a holder that requests a lock at `now`.
pub(super) fn description<'a>(
    context: &Context,
    options: &'a AcquireOptions,
    connection: &dyn Connection,
    now: BootInstant,
) -> Description<'a> {
    Description {
        pid: context.keeper.process().id(),
        since_micros: connection.facts().server_time_at(now),
        trace: options.trace.as_deref(),
        note: &options.note,
    }
}

/// Attempts once, or a few times while clients split the votes of a quorum.
pub(super) async fn attempt_through_splits(
    context: &Arc<Context>,
    kind: &Arc<dyn Kind>,
    options: &AcquireOptions,
    mut owner: Owner,
    poll: bool,
) -> Result<Attempt, RequestError> {
    let mut backoff = split_backoff();
    for _ in 0..MAX_SPLIT_RETRIES {
        match attempt(context, kind, options, owner, poll).await? {
            Attempt::Split => {
                tokio::time::sleep(backoff.pause()).await;
                owner = Owner::random();
            }
            outcome => return Ok(outcome),
        }
    }
    Ok(Attempt::Split)
}

/// Returns the backoff after a split vote. Clients that split the votes must
/// not repeat their attempts in step.
pub(super) fn split_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(4), Duration::from_millis(60))
}

/// Turns a grant into an owned lease, unless it arrived too late.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn would store its arguments twice"
)]
pub(super) fn establish(
    context: &Arc<Context>,
    pending: CancelOnDrop<'_>,
    token: Token,
    options: &AcquireOptions,
    granted: Granted,
) -> impl Future<Output = Result<OwnedLease, RequestError>> + Send {
    async move {
        // Boxed, since most acquires need neither.
        let (token, granted) = match options.replica_ack {
            None if token.as_u64() < pending.connection().facts().server_time => {
                Box::pin(draw_again(context, &pending, token, options, granted)).await?
            }
            None => (token, granted),
            Some(wanted) => {
                let lease = options.first_lease();
                // A connection and a request, which waits for the replicas once
                // more after an unknown script.
                pending.allow(2 * (context.limits.request + wanted.timeout))?;
                match Box::pin(replicate(context, &pending, token, lease, wanted)).await {
                    Ok(replicated) => replicated,
                    // The outcome is known, so the lock is released before the
                    // caller hears of it. Otherwise the next attempt would find
                    // the lock held, by ourselves.
                    Err(
                        error @ (RequestError::Unreachable(_)
                        | RequestError::NoReplicas(_)
                        | RequestError::CannotAcknowledge { .. }
                        | RequestError::Refused(_)
                        | RequestError::NotReplicated { .. }),
                    ) => {
                        Box::pin(withdraw(context, pending)).await;
                        return Err(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let (kind, value) = (pending.kind().clone(), pending.value().clone());
        let state = LeaseState::new(kind, value, token, options, granted);
        // `pending` is dropped unclaimed, so the lock is cancelled.
        if !state.is_valid() {
            return Err(RequestError::Unknown(
                "the grant arrived after its deadline".into(),
            ));
        }
        // Claimed before the lease exists: the keeper may have cancelled it.
        let claimed = pending.claim()?;
        let owned = OwnedLease::new(Arc::new(state), context.clone());
        // A shutdown that no longer waits for the acquire finds the lease.
        drop(claimed);
        Ok(owned)
    }
}

/// Releases a partial grant before the next attempt collides with it.
async fn withdraw(context: &Context, pending: CancelOnDrop<'_>) {
    let server = pending.connection().facts().capabilities;
    let cancel = pending.kind().cancel(pending.value(), server);
    if pending.allow(context.limits.request).is_err() {
        return;
    }
    let cancelled = cancel
        .await_all_nodes()
        .send(pending.connection(), context.limits.request)
        .await;
    // A failed withdrawal stays registered, and continues in the background.
    if cancelled.is_ok() {
        pending.disarm();
    }
}

/// Starts the lease with an acknowledged renewal (invariant 10), which also
/// draws the token. The renewal follows the grant, so a replica that has it has
/// the grant too.
async fn replicate(
    context: &Context,
    pending: &CancelOnDrop<'_>,
    token: Token,
    lease: Duration,
    wanted: ReplicaAck,
) -> Result<(Token, Granted), RequestError> {
    let kind = pending.kind();
    let connection = context.acknowledged(kind.slot(), Some(wanted)).await?;
    let renewal = kind.renew(pending.value(), lease);
    // The token drawn with the grant may be known only to a former master: it
    // issued the token after its replica was promoted with the grant.
    let renewal = match kind.raise_token(above(token, &*connection)) {
        Some(raise) => renewal.after(raise),
        None => renewal.map(move |reply| (token, reply)),
    };
    // Read once connected, or a reconnect would shorten the lease.
    let sent = BootInstant::now();
    let (token, reply) = renewal.send(&*connection, context.limits.request).await?;
    Ok((token, renewed(reply, sent, lease)?))
}

/// Draws a new token and renews the lock. Raises the counter if it is below the
/// server's clock (invariant 8): after a loss of data, the first client that
/// notices raises it for all.
async fn draw_again(
    context: &Context,
    pending: &CancelOnDrop<'_>,
    token: Token,
    options: &AcquireOptions,
    granted: Granted,
) -> Result<(Token, Granted), RequestError> {
    let (connection, limit) = (pending.connection(), context.limits.request);
    let Some(raise) = pending.kind().raise_token(above(token, connection)) else {
        return Ok((token, granted));
    };
    pending.allow(limit)?;
    let token = raise.send(connection, limit).await?;
    // Renewed afterwards: a caller that has lost the lock must not get a larger
    // token than its successor's.
    pending.allow(limit)?;
    let (sent, lease) = (BootInstant::now(), options.first_lease());
    let renewal = pending.kind().renew(pending.value(), lease);
    let reply = renewal.send_steps(connection, limit, || pending.allow(limit));
    Ok((token, renewed(reply.await?, sent, lease)?))
}

/// Returns the lease that a renewal sent at `sent` granted. Fails if the caller
/// has lost the lock.
fn renewed(reply: RenewReply, sent: BootInstant, lease: Duration) -> Result<Granted, RequestError> {
    match reply {
        RenewReply::Renewed | RenewReply::OnMajority => Ok(Granted::new(sent, lease)),
        RenewReply::NotOwner => Err(RequestError::Unknown(
            "the lock was lost before its lease began".into(),
        )),
    }
}

/// Returns the least token that may replace `token` (invariant 8).
fn above(token: Token, connection: &dyn Connection) -> u64 {
    connection.facts().server_time.max(token.as_u64() + 1)
}

/// An acquire that may have been executed. Dropping it without
/// [`disarm`](Self::disarm) cancels the acquire (invariants 6 and 7).
///
/// The keeper cancels it if it is not claimed in time (invariant 13). A
/// shutdown waits for either, unless the acquire waits in the server's queue:
/// then it cancels the acquire itself.
pub(super) struct CancelOnDrop<'a> {
    keeper: &'a Keeper,
    acquire: PendingAcquire,
    /// `None` once the acquire is claimed or disarmed.
    id: Option<AcquireId>,
    /// Whether all requests were executed.
    is_executed: bool,
}

impl<'a> CancelOnDrop<'a> {
    /// Registers an acquire that is about to be sent, as one request. `now` was
    /// read just before.
    ///
    /// # Errors
    ///
    /// [`RequestError::ShutDown`] once the client was shut down.
    pub(super) fn new(
        context: &'a Context,
        kind: &Arc<dyn Kind>,
        value: LockValue,
        connection: Arc<dyn Connection>,
        now: BootInstant,
    ) -> Result<Self, RequestError> {
        let keeper = &context.keeper;
        let acquire = PendingAcquire {
            kind: kind.clone(),
            value,
            connection,
        };
        let due = now + context.limits.request + PATIENCE;
        let registered = Self {
            keeper,
            id: Some(keeper.watch(acquire.clone(), due)),
            acquire,
            is_executed: false,
        };
        // Checked once the acquire is registered: a shutdown that began before
        // is noticed here, and a later shutdown waits for the acquire.
        match context.check_open() {
            Ok(()) => Ok(registered),
            Err(error) => {
                registered.disarm();
                Err(error)
            }
        }
    }

    fn kind(&self) -> &Arc<dyn Kind> {
        &self.acquire.kind
    }

    pub(super) fn value(&self) -> &LockValue {
        &self.acquire.value
    }

    pub(super) fn connection(&self) -> &dyn Connection {
        &*self.acquire.connection
    }

    /// Returns how the keeper knows the acquire, to set when it is cancelled.
    pub(super) fn id(&self) -> Option<AcquireId> {
        self.id
    }

    /// Allows the caller another `limit` for further requests.
    ///
    /// # Errors
    ///
    /// An error if the keeper already cancels the acquire.
    pub(super) fn allow(&self, limit: Duration) -> Result<(), RequestError> {
        let due = BootInstant::now() + limit + PATIENCE;
        match self.id.is_some_and(|id| self.keeper.set_due(id, due)) {
            true => Ok(()),
            false => Err(not_polled()),
        }
    }

    /// Records that the acquire waits in the server's queue. From now on, the
    /// keeper cancels it only if it is granted and not claimed.
    ///
    /// # Errors
    ///
    /// An error if the keeper already cancels the acquire. After a shutdown,
    /// the next request says so.
    pub(super) fn enter_queue(&mut self) -> Result<(), RequestError> {
        self.is_executed = self.id.is_some_and(|id| self.keeper.enter_queue(id));
        match self.is_executed {
            true => Ok(()),
            false => Err(not_polled()),
        }
    }

    /// Ends the registration: the lock is the caller's. A shutdown waits until
    /// the result is dropped.
    ///
    /// # Errors
    ///
    /// An error if the keeper already cancels the acquire.
    pub(super) fn claim(mut self) -> Result<CallerRequest, RequestError> {
        // Counted before the registration ends: a shutdown must find one of
        // them.
        let counted = self.keeper.begin_request();
        match self.end() {
            true => Ok(counted),
            false => {
                self.cancel_again();
                Err(not_polled())
            }
        }
    }

    /// Cancels an acquire that the keeper has cancelled before. A caller that
    /// was not polled in between may have sent the acquire's last request
    /// since: the second step of a call, or a script that the server lacked.
    fn cancel_again(&self) {
        if !self.is_executed {
            self.keeper.cancel(self.acquire.clone());
        }
    }

    /// Ends the registration: nothing is left to cancel.
    pub(super) fn disarm(mut self) {
        self.end();
    }

    /// Ends the registration. Returns `false` if the keeper took the acquire.
    fn end(&mut self) -> bool {
        self.id.take().is_some_and(|id| self.keeper.claim(id))
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        // A forked child has no part in its parent's acquire, and a thread that
        // it lacks may have locked what the keeper's handle refers to.
        if self.id.is_none() || !self.keeper.process().is_current() {
            return;
        }
        // A shutdown must not find the acquire gone before the cancel is sent.
        let _counted = self.keeper.begin_request();
        match self.end() {
            true => self.keeper.cancel(self.acquire.clone()),
            false => self.cancel_again(),
        }
    }
}

fn not_polled() -> RequestError {
    RequestError::Unknown("the caller did not poll its request in time".into())
}

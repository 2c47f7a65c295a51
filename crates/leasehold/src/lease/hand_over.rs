//! Handing a held lock over to another process, and adopting it there.
//!
//! The hand-over replaces the holder's owner by a new one, which only the
//! ticket names. The adoption replaces that owner by the adopter's own. So no
//! client can acquire the lock in between, and a ticket gives one holder
//! (invariant 12).

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{CancelOnDrop, description, establish};
use super::context::{Context, error_of};
use super::guard::Guard;
use super::owned::OwnedLease;
use super::pending::Pending;
use super::state::Granted;
use crate::backend::RequestError;
use crate::error::{Error, Loss};
use crate::options::{AcquireOptions, validate_within};
use crate::owner::Owner;
use crate::protocol::{AdoptReply, HandOver, HandOverReply, Kind, LockValue};
use crate::ticket::Ticket;
use crate::time::BootInstant;

impl Guard {
    /// Hands the lock over to the process that [adopts](crate::Client::adopt)
    /// the returned ticket, and ends this guard.
    ///
    /// The lock stays held for `within`, so no other client can acquire it in
    /// between. If no process adopts the ticket in that time, the lock is free,
    /// and waiters acquire it as usual. The adopter gets a larger
    /// [`token`](crate::Lease::token).
    ///
    /// The guard ends before the request is sent. All [leases](crate::Lease) of
    /// this guard fail their checks from then on, and
    /// [`lost`](crate::Lease::lost) resolves to `None`, as after a release.
    /// Tasks of this client that wait for the lock do not receive it by local
    /// hand-off.
    ///
    /// # Limitations
    ///
    /// - Only a [`Mutex`](crate::Mutex) and a [`FairMutex`](crate::FairMutex)
    ///   of one server, of a sentinel group or of a cluster can be handed over.
    ///   A quorum's mutex, a writer of an [`RwLock`](crate::RwLock), an elected
    ///   leader and Redisson's locks cannot.
    /// - A guard of a reentrant handle must be the only one.
    /// - A lock with [`at_least`](crate::Acquire::at_least) or
    ///   [`at_most`](crate::Acquire::at_most) cannot be handed over, because
    ///   neither would hold for the adopter.
    /// - The adopter's guard has the settings of the adopter's client. The
    ///   lease, `replicas`, `progress_within` and note of this acquire are not
    ///   passed on.
    /// - The ticket is a secret; see [`Ticket`].
    /// - **Every error ends the guard too.** The lock is then released in the
    ///   background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, also if the
    /// server has already executed the hand-over.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`] if the lock cannot be handed over, or if `within`
    ///   is shorter than 20 ms or longer than a year.
    /// - [`Error::Lost`] if the lease was lost before.
    /// - [`Error::OutcomeUnknown`] if no reply arrived. There is no ticket, and
    ///   the lock is released even if the hand-over still takes effect.
    /// - [`Error::Unavailable`], [`Error::Denied`], [`Error::OutOfMemory`] or
    ///   [`Error::ShutDown`] if the request was not executed. The lock is
    ///   released.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn send_to_worker(ticket: String) {}
    /// let guard = client.mutex("export:7").lock().await?;
    /// // … checks that belong to the request, then a worker continues.
    /// let ticket = guard.hand_over(Duration::from_secs(30)).await?;
    /// send_to_worker(ticket.to_string()).await;
    /// # Ok(()) }
    /// ```
    pub fn hand_over(self, within: Duration) -> Pending<'static, Ticket> {
        let runtime = self.runtime().clone();
        Pending::new(&runtime, self.hand_over_now(within))
    }

    async fn hand_over_now(self, within: Duration) -> Result<Ticket, Error> {
        validate_within(within)?;
        self.check_process()?;
        let refuse = |why| Err(Error::invalid("hand_over", why));
        let Some(owned) = self.into_owned() else {
            return refuse("another guard of the reentrant handle holds the lock");
        };
        let kind = owned.state.kind.clone();
        let Some(lock) = kind.hand_over() else {
            return refuse("this kind of lock cannot be handed over");
        };
        if owned.state.has_hold_limits() {
            return refuse("a lock with `at_least` or `at_most` cannot be handed over");
        }
        hand_over(owned, lock, within).await
    }
}

/// Hands `owned` over, or releases it.
async fn hand_over(
    mut owned: OwnedLease,
    lock: &dyn HandOver,
    within: Duration,
) -> Result<Ticket, Error> {
    let kind = owned.state.kind.clone();
    let lost = |loss| {
        let name = kind.name().to_owned();
        Error::Lost { name, loss }
    };
    // Before the request: no view is valid when another process can adopt.
    if let Err(ended) = owned.begin_release() {
        return Err(lost(ended.unwrap_or(Loss::Expired)));
    }
    let context = owned.context.clone();
    let owner = Owner::random();
    let pending = lock.pending_value(&owned.state.value, &owner, owned.own_token());
    let (first, mut reply) = send(&context, &owned, lock, &pending, within).await;
    let mut second = None;
    if reply.as_ref().is_err_and(RequestError::is_transient) {
        if let Some(first) = &first {
            let allowed = first.allow(2 * context.limits.request);
            allowed.map_err(|error| error_of(error, kind.name()))?;
        }
        // A hand-over is idempotent, so an unnoticed disconnect costs one more
        // request. The first one stays registered meanwhile.
        (second, reply) = send(&context, &owned, lock, &pending, within).await;
    }
    // With a reply, a request that arrives late changes nothing.
    let reply = reply.map_err(|error| error_of(error, kind.name()))?;
    for pending in [first, second].into_iter().flatten() {
        // Not just disarmed: if the keeper took it, a cancel ends the ticket's
        // owner, and the ticket would be worthless.
        let claimed = pending.claim();
        drop(claimed.map_err(|error| error_of(error, kind.name()))?);
    }
    match reply {
        HandOverReply::HandedOver => {
            owned.released(0);
            Ok(Ticket {
                kind: lock.ticket_kind(),
                key: String::from_utf8_lossy(kind.key()).into_owned(),
                owner,
            })
        }
        HandOverReply::NotOwner => Err(lost(owned.revoked())),
    }
}

/// Sends one hand-over. Returns it as registered for cancellation, if it was
/// sent, and the reply.
async fn send<'a>(
    context: &'a Context,
    owned: &OwnedLease,
    lock: &dyn HandOver,
    pending: &LockValue,
    within: Duration,
) -> (
    Option<CancelOnDrop<'a>>,
    Result<HandOverReply, RequestError>,
) {
    let state = &owned.state;
    let connection = match context.connection(state.kind.slot()).await {
        Ok(connection) => connection,
        Err(error) => return (None, Err(error)),
    };
    let now = BootInstant::now();
    let registered = CancelOnDrop::new(context, &state.kind, pending.clone(), connection, now);
    let registered = match registered {
        Ok(registered) => registered,
        Err(error) => return (None, Err(error)),
    };
    let call = lock.hand_over(&state.value, pending, owned.own_token(), within);
    let reply = call.send(registered.connection(), context.limits.request);
    let reply = reply.await;
    (Some(registered), reply)
}

/// The outcome of an adoption.
pub(super) enum Adoption {
    Adopted(OwnedLease),
    /// The ticket was adopted before, has expired, or was revoked.
    Spent,
}

/// Adopts a lock that was handed over to the owner `pending`.
pub(super) async fn adopt(
    context: &Arc<Context>,
    kind: &Arc<dyn Kind>,
    pending: &Owner,
    options: &AcquireOptions,
) -> Result<Adoption, RequestError> {
    context.check_open()?;
    let connection = context.connection(kind.slot()).await?;
    let Some(lock) = kind.hand_over() else {
        return Ok(Adoption::Spent);
    };
    let sent = BootInstant::now();
    let description = description(context, options, &*connection, sent);
    let value = kind.value(&Owner::random(), description);
    let registered = CancelOnDrop::new(context, kind, value, connection, sent)?;
    let call = lock.adopt(pending, registered.value(), options.first_lease());
    let reply = call.send(registered.connection(), context.limits.request);
    // After any error the request stays registered, and is cancelled.
    match reply.await? {
        AdoptReply::Adopted { token } => {
            let granted = Granted::new(sent, options.first_lease());
            let owned = establish(context, registered, token, options, granted).await?;
            Ok(Adoption::Adopted(owned))
        }
        AdoptReply::Spent => {
            registered.disarm();
            Ok(Adoption::Spent)
        }
    }
}

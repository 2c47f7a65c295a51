//! What every operation on a lease shares: the backend, the keeper, the
//! limits, and whether the client was shut down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::keeper::Keeper;
use crate::backend::{Admitted, Backend, Connection, Purpose, RequestError, ServerErrorKind, Slot};
use crate::error::Error;
use crate::observe::Observers;
use crate::options::ReplicaAck;
use crate::owner::Owner;
use crate::protocol::{Call, Kind, RenewReply};
use crate::time::BootInstant;

/// Time limits of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The limit for the reply to one request.
    pub(crate) request: Duration,
    /// How long waiters retry through an outage.
    pub(crate) outage: Duration,
}

/// The parts of a client that guards and waiters keep alive. Dropping the last
/// reference ends the keeper.
pub(super) struct Context {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) keeper: Keeper,
    pub(super) limits: Limits,
    pub(super) observers: Observers,
    is_closed: AtomicBool,
    on_close: Notify,
}

impl Context {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        keeper: Keeper,
        limits: Limits,
        observers: Observers,
    ) -> Self {
        Self {
            backend,
            keeper,
            limits,
            observers,
            is_closed: AtomicBool::new(false),
            on_close: Notify::new(),
        }
    }

    /// Sends one call from the caller's own task.
    pub(super) async fn send<R>(&self, slot: Slot, call: Call<R>) -> Result<R, RequestError> {
        self.send_acknowledged(slot, call, None).await
    }

    /// Sends one call from the caller's own task. Replicas acknowledge it, if
    /// they must.
    pub(super) async fn send_acknowledged<R>(
        &self,
        slot: Slot,
        call: Call<R>,
        replica_ack: Option<ReplicaAck>,
    ) -> Result<R, RequestError> {
        let connection = self.acknowledged(slot, replica_ack).await?;
        call.send(&*connection, self.limits.request).await
    }

    /// Renews from the caller's own task. Returns when the request was sent,
    /// and the reply.
    pub(super) async fn renew(
        &self,
        kind: &dyn Kind,
        value: &[u8],
        lease: Duration,
        replica_ack: Option<ReplicaAck>,
    ) -> Result<(BootInstant, RenewReply), RequestError> {
        let connection = self.acknowledged(kind.slot(), replica_ack).await?;
        // Read once connected, or a reconnect would shorten the lease.
        let sent = BootInstant::now();
        let renewal = kind.renew(value, lease);
        let reply = renewal.send(&*connection, self.limits.request);
        Ok((sent, reply.await?))
    }

    /// Returns a callers' connection on which replicas acknowledge each
    /// request, if they must.
    pub(super) async fn acknowledged(
        &self,
        slot: Slot,
        replica_ack: Option<ReplicaAck>,
    ) -> Result<Arc<dyn Connection>, RequestError> {
        let Some(wanted) = replica_ack else {
            return self.connection(slot).await;
        };
        let timeout = self.limits.request;
        let acknowledged = self
            .backend
            .acknowledged(Purpose::Requests, slot, wanted, timeout);
        acknowledged.await
    }

    /// Returns the callers' connection to the node of `slot`, without delay if
    /// it is open.
    pub(super) async fn connection(&self, slot: Slot) -> Result<Arc<dyn Connection>, RequestError> {
        match self.backend.open_connection(Purpose::Requests, slot) {
            Some(connection) => Ok(connection),
            None => self.backend.connection(Purpose::Requests, slot).await,
        }
    }

    /// Returns the callers' connection to the node of `slot` once an acquire
    /// may be sent on it.
    pub(super) async fn admitted(
        &self,
        slot: Slot,
    ) -> Result<(Arc<dyn Connection>, Option<Admitted>), RequestError> {
        let connection = self.connection(slot).await?;
        match self.admit(&*connection).await {
            // One lost connection is no reason to fail.
            Err(RequestError::Unreachable(_)) if connection.has_ended() => {}
            admitted => return Ok((connection, admitted?)),
        }
        let connection = self.connection(slot).await?;
        let admitted = self.admit(&*connection).await?;
        Ok((connection, admitted))
    }

    /// Waits until an acquire may be sent on `connection`, for up to the
    /// request timeout: connecting has a limit of its own.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unreachable`] after the timeout, and if the connection
    /// has ended meanwhile: a request on it would be lost.
    pub(super) async fn admit(
        &self,
        connection: &dyn Connection,
    ) -> Result<Option<Admitted>, RequestError> {
        let Some(admission) = connection.admission() else {
            return Ok(None);
        };
        let admitted = tokio::select! {
            biased;
            admitted = admission.admit(self.limits.request) => admitted,
            () = self.closed() => return Err(RequestError::ShutDown),
        };
        // If the callers of all acquires in flight are gone, no other request
        // times out and finds the connection silent.
        let admitted =
            admitted.inspect_err(|_| connection.retire_if_silent(self.limits.request))?;
        match connection.has_ended() {
            // A shutdown closes connections too.
            true => self.check_open().and(Err(RequestError::Unreachable(
                "the connection ended before the acquire was sent".into(),
            ))),
            false => Ok(Some(admitted)),
        }
    }

    /// Fails in a forked child, where nothing of this client may be used.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        let process = self.keeper.process();
        process
            .check()
            .map_err(|why| Error::invalid("process", why))
    }

    /// Returns a new owner. Fails in a forked child: one system call serves
    /// both.
    pub(super) fn new_owner(&self) -> Result<Owner, Error> {
        self.check_process()?;
        Ok(Owner::random_in(self.keeper.process()))
    }

    /// Refuses new acquires from now on.
    pub(super) fn shut_down(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.on_close.notify_waiters();
    }

    /// Returns an error once the client was shut down.
    pub(super) fn check_open(&self) -> Result<(), RequestError> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(RequestError::ShutDown),
            false => Ok(()),
        }
    }

    /// Completes when the client is shut down.
    pub(super) async fn closed(&self) {
        // Registered before the check, or a shutdown in between would be
        // missed.
        let mut closed = std::pin::pin!(self.on_close.notified());
        closed.as_mut().enable();
        if self.check_open().is_ok() {
            closed.await;
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.keeper.close();
    }
}

/// Sends an idempotent request, and once more if its reply is lost: an
/// unnoticed disconnect costs one more request. Returns the reply, and whether
/// the first request may have been executed.
pub(super) async fn send_twice<R, S>(send: impl Fn() -> S) -> (Result<R, RequestError>, bool)
where
    S: Future<Output = Result<R, RequestError>>,
{
    let first = match send().await {
        Err(error) if error.is_transient() => error,
        reply => return (reply, false),
    };
    let may_be_executed = first.may_be_executed();
    // What may have been executed stays so, whatever happens to the second.
    let reply = send().await.map_err(|second| match may_be_executed {
        true if !second.may_be_executed() => first,
        _ => second,
    });
    (reply, may_be_executed)
}

/// Converts a failed request that concerns the lock `name` into the public
/// error.
pub(super) fn error_of(error: RequestError, name: &str) -> Error {
    match error {
        RequestError::Unreachable(cause) => Error::Unavailable(cause),
        RequestError::Unknown(cause) => Error::OutcomeUnknown(cause),
        RequestError::Malformed(what) => Error::Unexpected(what.into()),
        RequestError::ShutDown => Error::ShutDown,
        error @ (RequestError::NoReplicas(_) | RequestError::CannotAcknowledge { .. }) => {
            Error::invalid("replicas", error.to_string())
        }
        RequestError::NotReplicated {
            acknowledged,
            wanted,
        } => Error::NotReplicated {
            acknowledged,
            wanted,
        },
        RequestError::Refused(error) => match error.kind {
            ServerErrorKind::Temporary => Error::Unavailable(error.into()),
            ServerErrorKind::OutOfMemory => Error::OutOfMemory(error.into()),
            ServerErrorKind::Denied => Error::Denied(error.into()),
            ServerErrorKind::NoScript | ServerErrorKind::Other => Error::Unexpected(error.into()),
            ServerErrorKind::NoMajority => Error::NoQuorum(error.into()),
            ServerErrorKind::OutOfRange => Error::invalid("permits", error.message),
            ServerErrorKind::SameServer => Error::invalid("url", error.message),
            ServerErrorKind::Unsupported => Error::invalid("server", error.message),
            ServerErrorKind::WrongType => Error::WrongType {
                name: name.to_owned(),
            },
        },
    }
}

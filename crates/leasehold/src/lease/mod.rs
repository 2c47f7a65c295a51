//! When: a lock is taken, waited for, kept, given back or lost; knows no kind.
//!
//! The [`Engine`] drives any [`Kind`] through its life. Callers take and release on their own task;
//! all that must happen whether or not the application is well happens on the keeper's thread.
//!
//! # Invariants
//!
//! Of time:
//!
//! 1. The deadline is the moment *before* the request was sent + lease − margin, on a clock that
//!    counts suspend.
//! 2. Only a confirmed renewal moves the deadline. A failed one loses nothing; it is tried again until
//!    the deadline.
//! 3. Lost is absorbing: a lease that was lost is never valid again, whatever a later answer says.
//! 4. `lost()` fires at the deadline, before the server can give the lock to another.
//! 5. Waiting is push first with a bounded poll behind it: a lost message costs at most a second, and
//!    after every new connection all waiters look for themselves.
//!
//! Of outcomes:
//!
//! 6. One owner is sent in one acquire only; heartbeats never make one. Whatever is not known to have failed or succeeded is
//!    cancelled, and the cancel is repeated until that owner can no longer appear.
//! 7. An acquire is armed before it is sent: however its future ends, nothing stays behind.
//! 8. A token below the server's clock at connection time is never used; the counter is raised first.
//! 9. A grant that is pushed counts from the heartbeat before it, by what the server's clock says was between
//!    the two; where the connection has changed since, it is confirmed first.
//! 10. Where replicas must acknowledge, a holding begins with a renewal that they acknowledged, and only such
//!     renewals move its deadline.
//! 11. A lock that one task leaves to another stays one owner's lease; it is valid for one holder at a time, each
//!     with a larger token than the one before.

mod acquire;
mod admission;
mod agenda;
mod by_force;
mod gate;
mod give_back;
mod guard;
mod held;
mod hold;
mod inbox;
mod keeper;
mod line;
#[cfg(test)]
mod line_tests;
mod reentry;
mod renewal;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub(crate) use admission::Admission;
pub(crate) use guard::until_lost;
pub use guard::{Fenced, Guard, Lease, ReleaseOutcome, Unfenced};
pub(crate) use keeper::Keeper;
pub(crate) use reentry::Reentry;

use crate::backend::{
    Backend, Connection, Purpose, RequestError, ServerErrorKind, ServerFacts, Slot,
};
use crate::error::Error;
use crate::options::ReplicaAck;
use crate::protocol::{Call, Kind, RenewReply};
use crate::time::BootInstant;
use line::Grants;
use waiting::WaitingRoom;

/// The outcome of [`Client::shutdown`](crate::Client::shutdown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownOutcome {
    /// Every lock was released.
    Released,
    /// The timeout elapsed first. Locks that were not released expire with
    /// their leases.
    TimedOut,
}

/// Drives kinds through their lives on one backend.
pub(crate) struct Engine {
    backend: Arc<dyn Backend>,
    keeper: Keeper,
    room: Arc<WaitingRoom>,
    grants: Grants,
    limits: Limits,
    closed: watch::Sender<bool>,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For the answer to one request.
    pub(crate) request: Duration,
    /// For an outage, before one who waits is told of it.
    pub(crate) outage: Duration,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>, keeper: Keeper, limits: Limits) -> Self {
        Self {
            backend,
            keeper,
            room: Arc::default(),
            grants: Grants::default(),
            limits,
            closed: watch::Sender::new(false),
        }
    }

    /// Sends one call that concerns the lock `name` from the caller's own task.
    pub(crate) async fn ask<R>(&self, slot: Slot, name: &str, call: Call<R>) -> Result<R, Error> {
        let asked = async {
            if *self.closed.borrow() {
                return Err(RequestError::ShutDown);
            }
            let connection = self.connection(slot).await?;
            call.send(&*connection, self.limits.request).await
        };
        asked.await.map_err(|failure| error_of(failure, name))
    }

    /// Sends many calls, those to one node as one pipeline; each outcome stands for itself.
    pub(crate) async fn ask_all<R>(
        &self,
        calls: Vec<(Slot, Call<R>)>,
    ) -> Result<Vec<Result<R, Error>>, Error> {
        let mut nodes: BTreeMap<usize, (Slot, Vec<_>)> = BTreeMap::new();
        let count = calls.len();
        for (at, (slot, call)) in calls.into_iter().enumerate() {
            let node = nodes.entry(self.backend.node(slot));
            node.or_insert_with(|| (slot, Vec::new()))
                .1
                .push((at, call));
        }
        let mut outcomes: Vec<_> = std::iter::repeat_with(|| None).take(count).collect();
        for (slot, calls) in nodes.into_values() {
            let (places, calls): (Vec<_>, _) = calls.into_iter().unzip();
            let answered = async {
                let connection = self.connection(slot).await?;
                Call::send_all(calls, &*connection, self.limits.request).await
            };
            let answers = answered.await.map_err(|failure| error_of(failure, ""))?;
            for (at, answer) in places.into_iter().zip(answers) {
                outcomes[at] = Some(answer.map_err(|failure| error_of(failure, "")));
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// A slot of each node that has any.
    pub(crate) async fn shards(&self) -> Result<Vec<Slot>, Error> {
        let shards = self.backend.shards().await;
        shards.map_err(|failure| error_of(failure, ""))
    }

    /// What the server of `slot` said of itself.
    pub(crate) async fn facts(&self, slot: Slot) -> Result<Arc<ServerFacts>, Error> {
        let connection = self.connection(slot).await;
        connection
            .map(|connection| connection.facts())
            .map_err(|failure| error_of(failure, ""))
    }

    /// How many are served before the task of this process that waits at `gate`, when last heard of.
    pub(crate) fn ahead(&self, gate: &[u8]) -> Option<u64> {
        self.room.last_seen(gate)?.ahead
    }

    /// Renews from the caller's own task; when it was sent, and what the server says.
    async fn renew(
        &self,
        kind: &dyn Kind,
        value: &[u8],
        lease: Duration,
        acknowledged: Option<ReplicaAck>,
    ) -> Result<(BootInstant, RenewReply), RequestError> {
        let (purpose, slot) = (Purpose::Requests, kind.slot());
        let connection = match acknowledged {
            Some(wanted) => {
                let timeout = self.limits.request;
                self.backend
                    .acknowledged(purpose, slot, wanted, timeout)
                    .await?
            }
            None => self.connection(slot).await?,
        };
        let sent = BootInstant::now();
        let renewed = kind
            .renew(value, lease)
            .send(&*connection, self.limits.request);
        Ok((sent, renewed.await?))
    }

    /// The callers' connection to the node of `slot`; without delay where there is one.
    async fn connection(&self, slot: Slot) -> Result<Arc<dyn Connection>, RequestError> {
        match self.backend.open_connection(Purpose::Requests, slot) {
            Some(connection) => Ok(connection),
            None => self.backend.connection(Purpose::Requests, slot).await,
        }
    }

    /// Makes sure that a server answers.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        let connection = self.connection(0).await;
        connection
            .map(drop)
            .map_err(|failure| error_of(failure, ""))
    }

    /// Refuses new work, releases every lock, and waits at most `limit`.
    pub(crate) async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        self.closed.send_replace(true);
        match tokio::time::timeout(limit, self.keeper.shutdown()).await {
            Ok(()) => ShutdownOutcome::Released,
            Err(_) => ShutdownOutcome::TimedOut,
        }
    }

    /// Completes when the client is shut down.
    async fn closed(&self) {
        // An error means that the engine is gone, which its own borrow excludes.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.keeper.close();
    }
}

/// What a caller is told about a failure that concerns the lock `name`.
pub(crate) fn error_of(failure: RequestError, name: &str) -> Error {
    match failure {
        RequestError::Unreachable(cause) => Error::Unavailable(cause),
        RequestError::Unknown(cause) => Error::OutcomeUnknown(cause),
        RequestError::Malformed(what) => Error::Unexpected(what.into()),
        RequestError::ShutDown => Error::ShutDown,
        RequestError::NotReplicated {
            acknowledged,
            wanted,
        } => Error::NotReplicated {
            acknowledged,
            wanted,
        },
        RequestError::Refused(refusal) => match refusal.kind {
            ServerErrorKind::Temporary => Error::Unavailable(refusal.into()),
            ServerErrorKind::OutOfMemory => Error::OutOfMemory(refusal.into()),
            ServerErrorKind::Denied => Error::Denied(refusal.into()),
            ServerErrorKind::NoScript | ServerErrorKind::Other => Error::Unexpected(refusal.into()),
            ServerErrorKind::TooFewVote => Error::NoQuorum(refusal.into()),
            ServerErrorKind::TooMuch => Error::invalid("permits", refusal.message),
            ServerErrorKind::SameServer => Error::invalid("url", refusal.message),
            ServerErrorKind::WrongType => Error::WrongType {
                name: name.to_owned(),
            },
        },
    }
}

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
//! 6. One owner is sent in one acquire only. Whatever is not known to have failed or succeeded is
//!    cancelled, and the cancel is repeated until that owner can no longer appear.
//! 7. An acquire is armed before it is sent: however its future ends, nothing stays behind.
//! 8. A token below the server's clock at connection time is never used; the counter is raised first.

mod acquire;
mod agenda;
mod give_back;
mod guard;
mod held;
mod keeper;
mod reentry;
mod renewal;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use guard::{Guard, Lease, Release};
pub(crate) use keeper::Keeper;
pub(crate) use reentry::Reentry;

use crate::backend::{Backend, Capabilities, Failure, Lane, Link, RefusalKind, Slot};
use crate::error::Error;
use crate::holder::Holder;
use crate::owner::{Owner, Token};
use crate::protocol::{Acquired, Call, Freed, Glance, Mark, Renewed};
use waiting::WaitingRoom;

/// What tells one kind of lock from another: the calls of its life.
pub(crate) trait Kind: Send + Sync + 'static {
    /// The lock's name, for people.
    fn name(&self) -> &str;
    /// Where its requests are routed.
    fn slot(&self) -> Slot;
    /// Where its releases are announced; also its identity within this process.
    fn channel(&self) -> &[u8];
    /// What stands on the server in the name of `owner`.
    fn mark(&self, owner: &Owner, since_micros: u64, note: &str) -> Mark;
    /// Takes the lock if it can; with `look`, a busy answer says how long it stays so.
    fn acquire(&self, mark: &Mark, lease: Duration, look: bool) -> Call<Acquired>;
    /// Makes the lease last at least `lease` from now.
    fn renew(&self, mark: &[u8], lease: Duration) -> Call<Renewed>;
    /// Gives the lock back, at once or when `keep` is over.
    fn release(&self, mark: &[u8], keep: Option<Duration>, server: Capabilities) -> Call<Freed>;
    /// Takes a token that is below neither the server's clock nor `floor`.
    fn raise_token(&self, floor: u64) -> Call<Token>;
    /// Looks whether trying again is worth it.
    fn glance(&self) -> Call<Glance>;
    /// Asks who holds it.
    fn holder(&self) -> Call<Option<Holder>>;
}

/// Drives kinds through their lives on one backend.
pub(crate) struct Engine {
    backend: Arc<dyn Backend>,
    keeper: Keeper,
    room: WaitingRoom,
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
            room: WaitingRoom::default(),
            limits,
            closed: watch::Sender::new(false),
        }
    }

    /// Asks who holds the lock.
    pub(crate) async fn holder(&self, kind: &dyn Kind) -> Result<Option<Holder>, Error> {
        let asked = async {
            let link = self.link(kind.slot()).await?;
            kind.holder().send(&*link, self.limits.request).await
        };
        asked
            .await
            .map_err(|failure| error_of(failure, kind.name()))
    }

    /// The callers' connection to the node of `slot`; without delay where there is one.
    async fn link(&self, slot: Slot) -> Result<Arc<dyn Link>, Failure> {
        match self.backend.open_link(Lane::Requests, slot) {
            Some(link) => Ok(link),
            None => self.backend.link(Lane::Requests, slot).await,
        }
    }

    /// Makes sure that a server answers.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        let link = self.link(0).await;
        link.map(drop).map_err(|failure| error_of(failure, ""))
    }

    /// Refuses new work, gives everything back, and waits at most `limit` for it; true when all is done.
    pub(crate) async fn shutdown(&self, limit: Duration) -> bool {
        self.closed.send_replace(true);
        tokio::time::timeout(limit, self.keeper.shutdown())
            .await
            .is_ok()
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
pub(crate) fn error_of(failure: Failure, name: &str) -> Error {
    match failure {
        Failure::Unreachable(cause) => Error::Unavailable(cause),
        Failure::Unknown(cause) => Error::Unknown(cause),
        Failure::Malformed(what) => Error::Unexpected(what.into()),
        Failure::Closed => Error::Closed,
        Failure::Refused(refusal) => match refusal.kind {
            RefusalKind::Temporary => Error::Unavailable(refusal.into()),
            RefusalKind::OutOfMemory => Error::OutOfMemory(refusal.into()),
            RefusalKind::Denied => Error::Denied(refusal.into()),
            RefusalKind::NoScript | RefusalKind::Other => Error::Unexpected(refusal.into()),
            RefusalKind::WrongType => Error::WrongType {
                name: name.to_owned(),
            },
        },
    }
}

//! What a holder has in hand: the guard, and views of its lease.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::held::{Ending, Held, State};
use super::hold::Hold;
use super::{Engine, error_of};
use crate::backend::RequestError;
use crate::error::{Error, Loss};
use crate::options::validate_lease;
use crate::owner::Token;
use crate::protocol::RenewReply;
use crate::time::BootInstant;

/// A lock that is held. Dropping it gives the lock back in the background.
///
/// A guard is valid until its [deadline](Lease::deadline), which moves on as long as renewals are
/// confirmed. When they are not, [`lost`](Lease::lost) fires *before* the server could give the lock to
/// another. What no guard can do is stop code that is paused between a check and its effect: for that
/// send the [`token`](Lease::token) along and let the resource refuse older ones.
///
/// A guard is `Send` and borrows nothing. It dereferences to its [`Lease`]. `F` says whether the lock gives out
/// tokens; all do but some of [`redisson`](crate::redisson).
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct Guard<F = Fenced> {
    hold: Arc<Hold>,
    lease: Lease<F>,
    /// Of a reentrant handle; told after the hold is gone.
    _entry: Option<Entry>,
}

/// A view of a lease that is held: who may ask about it, but not give it back.
///
/// Cheap to clone; hand it to whatever does the protected work.
pub struct Lease<F = Fenced> {
    held: Arc<Held>,
    /// Which holder it is a view of, of those who left the lock to each other.
    tenure: u64,
    token: Token,
    fencing: PhantomData<fn() -> F>,
}

/// Says of a [`Guard`] or [`Lease`] that it has a [`token`](Lease::token).
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

/// Says of a [`Guard`] or [`Lease`] that it has no token: what it protects cannot refuse one who comes late.
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}

/// What became of a lock that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// It was held to the end. It is free now, or when its `at_least` is over; or another task of this process that
    /// waited for it has it.
    Released,
    /// Another guard of the same reentrant handle still holds it.
    StillHeld,
    /// It had been lost before. Others are not affected by this release.
    AlreadyLost {
        /// How it came about.
        loss: Loss,
    },
}

impl Guard {
    /// One of its own.
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self::of(hold, None)
    }

    /// One of several that share `hold`.
    pub(crate) fn entering(hold: Arc<Hold>) -> Self {
        let entry = Entry::new(&hold);
        Self::of(hold, Some(entry))
    }

    fn of(hold: Arc<Hold>, entry: Option<Entry>) -> Self {
        Self {
            lease: hold.lease(),
            hold,
            _entry: entry,
        }
    }

    /// The same, of a lock that gives out no tokens.
    pub(crate) fn unfenced(self) -> Guard<Unfenced> {
        Guard {
            lease: self.lease.viewed_as(),
            hold: self.hold,
            _entry: self._entry,
        }
    }
}

impl<F> Guard<F> {
    /// A view of this lease that can be cloned and passed on.
    #[must_use]
    pub fn lease(&self) -> &Lease<F> {
        &self.lease
    }

    /// Makes the lease last at least `lease` from now, whether it is renewed by itself or fixed; never
    /// beyond the limit set with [`at_most`](crate::Acquire::at_most).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lease as it was or extended.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock is not ours any more. After any other error the lease is still
    /// what it was before, and the call can be repeated.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        validate_lease(lease, self.lease.held.max_lease)?;
        self.check()?;
        let (held, engine) = (&self.lease.held, &self.hold.engine);
        let Some((lease, capped)) = held.bounded(lease) else {
            return Ok(());
        };
        let extended = engine.renew(&*held.kind, &held.value, lease, held.replica_ack);
        match extended.await {
            Ok((sent, RenewReply::Renewed | RenewReply::OnMajority)) => {
                held.confirm(sent, lease, capped);
            }
            Ok((_, RenewReply::NotOwner)) => {
                held.end(Ending::Lost(Loss::Revoked));
            }
            Err(failure) => return Err(error_of(failure, held.kind.name())),
        }
        self.check()
    }

    /// Lets others in beside this holder, where the kind of lock can be shared.
    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        self.check()?;
        let outcome = match self.send_downgrade().await {
            // Sharing is idempotent, so a connection that broke unnoticed costs one more try.
            Err(failure) if failure.is_transient() => self.send_downgrade().await,
            outcome => outcome,
        };
        match outcome {
            Ok(RenewReply::Renewed | RenewReply::OnMajority) => {}
            Ok(RenewReply::NotOwner) => {
                self.lease.held.end(Ending::Lost(Loss::Revoked));
            }
            Err(failure) => return Err(error_of(failure, self.name())),
        }
        self.check()
    }

    async fn send_downgrade(&self) -> Result<RenewReply, RequestError> {
        let (held, engine) = (&self.lease.held, &self.hold.engine);
        let connection = engine.connection(held.kind.slot()).await?;
        match held.kind.downgrade() {
            Some(kind) => {
                let call = kind.downgrade(&held.value);
                call.send(&*connection, engine.limits.request).await
            }
            None => Ok(RenewReply::Renewed),
        }
    }

    /// Gives the lock back and says what became of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future hands the release to the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. The background goes on trying; the lock is free at the latest
    /// when its lease ends.
    pub async fn release(self) -> Result<ReleaseOutcome, Error> {
        match Arc::into_inner(self.hold) {
            Some(hold) => hold.give_back().await,
            None => Ok(ReleaseOutcome::StillHeld),
        }
    }

    /// Does `work` under this lock, drops it when the lease is lost, and gives the lock back.
    pub(crate) async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Lease<F>) -> W,
        W: Future,
    {
        let lease = self.lease.clone();
        let outcome = until_lost(work(lease.clone()), lease.held.ended(lease.tenure)).await;
        let in_time = lease.check();
        if let Err(error) = self.release().await {
            tracing::warn!(lock = lease.name(), %error, "release goes on in the background");
        }
        match outcome {
            Some(Err(panic)) => resume_unwind(panic),
            Some(Ok(value)) => in_time.map(|()| value),
            None => Err(in_time.err().unwrap_or_else(|| lease.error(Loss::Expired))),
        }
    }
}

/// Does `work` and drops it when `lost` is over first (`None`); a panic in it is caught.
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
        outcome = unwinding => Some(outcome),
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

impl Lease {
    /// The fencing token: larger than that of every earlier holder of this lock.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The same, as those see it who may know whether there is a token.
    pub(crate) fn viewed_as<F>(self) -> Lease<F> {
        Lease::new(self.held, self.tenure, self.token)
    }
}

impl<F> Lease<F> {
    pub(super) fn new(held: Arc<Held>, tenure: u64, token: Token) -> Self {
        Self {
            held,
            tenure,
            token,
            fencing: PhantomData,
        }
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.held.kind.name()
    }

    /// Until when the lock is certainly held if nothing more is heard from the server.
    ///
    /// Renewals move it. It is in the past when the lease has ended. `Instant` does not count the time a
    /// machine sleeps; [`check`](Self::check) does.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// How long the lock is certainly held still; zero when the lease has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.held.state_of(self.tenure) {
            State::Valid { deadline } => deadline.since(BootInstant::now()),
            State::Ended(_) => Duration::ZERO,
        }
    }

    /// Checks, by the clock alone, that the lease is still valid. Costs a few nanoseconds; call it
    /// before every effect that must not happen twice.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] once the lease was lost, for ever. A lease that was given back by its own guard
    /// counts as lost to those who still have a view of it.
    pub fn check(&self) -> Result<(), Error> {
        match self.held.state_of(self.tenure) {
            State::Valid { .. } => Ok(()),
            State::Ended(Ending::Lost(loss)) => Err(self.error(loss)),
            State::Ended(Ending::Released) => Err(self.error(Loss::Expired)),
        }
    }

    /// Waits until the lease is lost or given back, and says how it was lost.
    ///
    /// Fires at the deadline at the latest, driven by the client's own thread: it needs the caller's
    /// runtime only to be woken. `None` means that the guard gave the lock back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Option<Loss> {
        match self.held.ended(self.tenure).await {
            Ending::Lost(loss) => Some(loss),
            Ending::Released => None,
        }
    }

    fn error(&self, loss: Loss) -> Error {
        let name = self.name().to_owned();
        Error::Lost { name, loss }
    }
}

impl<F> Clone for Lease<F> {
    fn clone(&self) -> Self {
        Self::new(self.held.clone(), self.tenure, self.token)
    }
}

impl<F> fmt::Debug for Lease<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("state", &self.held.state_of(self.tenure))
            .finish_non_exhaustive()
    }
}

/// One of the guards of a reentrant handle, as others may see it; told when it comes and when it goes.
struct Entry {
    held: Arc<Held>,
    engine: Arc<Engine>,
}

impl Entry {
    fn new(hold: &Hold) -> Self {
        let (held, engine) = (hold.held.clone(), hold.engine.clone());
        if held.enter() > 1 {
            engine.keeper.recount(held.clone());
        }
        Self { held, engine }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.held.leave() > 0 {
            self.engine.keeper.recount(self.held.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only if guards can be sent, shared and stored.
    #[test]
    fn bounds() {
        fn check<T: Send + Sync + Unpin + 'static>() {}
        check::<Guard>();
        check::<Lease>();
        check::<ReleaseOutcome>();
        check::<Error>();
    }
}

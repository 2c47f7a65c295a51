//! The public view of a lease.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::{EndReason, LeaseState, Validity};
use crate::error::{Error, Loss};
use crate::owner::Token;
use crate::time::BootInstant;

/// A view of a held lease. It can check the lease, but not release it.
///
/// A view is cheap to clone. Pass it to the code that does the protected work.
pub struct Lease<F = Fenced> {
    state: Arc<LeaseState>,
    /// The holder that this is a view of; see `LeaseState::validity_of`.
    generation: u64,
    token: Token,
    fencing: PhantomData<fn() -> F>,
}

/// Marks a [`Guard`](crate::Guard) or [`Lease`] of an exclusive lock with a
/// [`token`](Lease::token).
///
/// No other holder of the lock is valid at the same time. A resource that
/// rejects tokens below the largest it has seen therefore rejects stale holders
/// only.
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

/// Marks a [`Guard`](crate::Guard) or [`Lease`] with a [`token`](Lease::token),
/// whose lock other holders may hold at the same time: a permit of a
/// [`Semaphore`](crate::Semaphore), or a reader of an
/// [`RwLock`](crate::RwLock).
///
/// A resource must not reject the smaller of two such tokens, because both
/// holders can be valid. The guard of an exclusive lock converts into this one
/// with `.into()`, for code that accepts both.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// Marks a [`Guard`](crate::Guard) or [`Lease`] without a token. The protected
/// resource cannot reject the late write of an earlier holder.
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}

/// A marker of a lease that has a token: [`Fenced`] or [`Shared`].
///
/// The trait is sealed.
pub trait HasToken: sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Fenced {}
impl sealed::Sealed for Shared {}
impl HasToken for Fenced {}
impl HasToken for Shared {}

impl Lease {
    /// Returns the same view with another marker.
    pub(crate) fn viewed_as<F>(self) -> Lease<F> {
        Lease::new(self.state, self.generation, self.token)
    }
}

impl<F: HasToken> Lease<F> {
    /// Returns the fencing token. It is larger than the token of every earlier
    /// holder of this lock.
    ///
    /// The tokens of several [`Shared`] leases can be valid at the same time.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }
}

impl From<Lease> for Lease<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(lease: Lease) -> Self {
        lease.viewed_as()
    }
}

impl<F> Lease<F> {
    pub(super) fn new(state: Arc<LeaseState>, generation: u64, token: Token) -> Self {
        Self {
            state,
            generation,
            token,
            fencing: PhantomData,
        }
    }

    /// Returns the same view for code that needs no token.
    pub(crate) fn unfenced(&self) -> Lease<Unfenced> {
        Lease::new(self.state.clone(), self.generation, self.token)
    }

    pub(super) fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.state.kind.name()
    }

    /// Returns the lock's key on the server: the client's
    /// [prefix](crate::ClientBuilder::prefix) followed by the name.
    ///
    /// It identifies the lock among those of all applications that use the
    /// server, where the name alone does not.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("coupon:42").lock().await?;
    /// assert_eq!(guard.name(), "coupon:42");
    /// assert_eq!(guard.key(), "lock:coupon:42");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn key(&self) -> &str {
        let key = std::str::from_utf8(self.state.kind.key());
        key.expect("a prefix and a name, which are text")
    }

    /// Returns the instant until which the lock is held if no further renewal
    /// is confirmed.
    ///
    /// Every confirmed renewal moves it. It is in the past once the lease has
    /// ended. On Linux and macOS, `Instant` does not advance while the machine
    /// is suspended; [`check`](Self::check) uses a clock that does.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Returns the time until the deadline; zero once the lease has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.state.validity_of(self.generation) {
            Validity::Valid { deadline } => deadline.since(BootInstant::now()),
            Validity::Ended(_) => Duration::ZERO,
        }
    }

    /// Checks, by the local clock alone, that the lease is still valid.
    ///
    /// It costs a few nanoseconds. Call it before every effect that must not
    /// happen twice.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] once the lease is lost; loss is permanent. A lease that
    /// its own guard released is lost for every remaining view.
    pub fn check(&self) -> Result<(), Error> {
        match self.state.validity_of(self.generation) {
            Validity::Valid { .. } => Ok(()),
            Validity::Ended(EndReason::Lost(loss)) => Err(self.error(loss)),
            Validity::Ended(EndReason::Released) => Err(self.error(Loss::Expired)),
        }
    }

    /// Waits until the lease is lost or released, and returns how it was lost.
    ///
    /// `None` means that the guard released the lock. The future resolves no
    /// later than the deadline. The client's own thread wakes it, so it needs
    /// the caller's runtime only to be polled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Option<Loss> {
        match self.ended().await {
            EndReason::Lost(loss) => Some(loss),
            EndReason::Released => None,
        }
    }

    pub(super) async fn ended(&self) -> EndReason {
        self.state.ended(self.generation).await
    }

    pub(super) fn error(&self, loss: Loss) -> Error {
        let name = self.name().to_owned();
        Error::Lost { name, loss }
    }
}

impl<F> Clone for Lease<F> {
    fn clone(&self) -> Self {
        Self::new(self.state.clone(), self.generation, self.token)
    }
}

impl<F> fmt::Debug for Lease<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("validity", &self.state.validity_of(self.generation))
            .finish_non_exhaustive()
    }
}

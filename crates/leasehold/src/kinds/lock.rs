//! The terms of an acquisition, set one by one and then awaited.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::rw_lock::WriteGuard;
use crate::error::Error;
use crate::lease::{Engine, Guard, Lease, Reentry};
use crate::options::{Acknowledgement, Replicas, Terms};
use crate::protocol::Kind;

/// An acquisition that waits; made by `lock()`, started by `.await`.
///
/// Without further terms it waits for ever and the lease is renewed until the guard is gone.
///
/// # Cancel safety
///
/// The future can be dropped at any time. Whatever was won, or will be by a request that is still on
/// its way, is given back in the background; the place among those who wait is lost.
///
/// # Errors
///
/// [`Error::Timeout`] when the wait is over. An outage of the server is borne while waiting, for the
/// time set with [`outage_limit`](crate::ClientBuilder::outage_limit).
#[must_use = "nothing is acquired until it is awaited"]
pub struct Lock<G = Guard> {
    pub(super) ask: Ask,
    /// Makes the guard that this kind hands out.
    wrap: fn(Guard) -> G,
}

/// An acquisition that does not wait; made by `try_lock()`, started by `.await`.
///
/// Answers `Ok(None)` when somebody else holds the lock.
///
/// # Cancel safety
///
/// As for [`Lock`].
#[must_use = "nothing is acquired until it is awaited"]
pub struct TryLock<G = Guard> {
    ask: Ask,
    wrap: fn(Guard) -> G,
}

/// Which lock to acquire, and how.
pub(super) struct Ask {
    pub(super) engine: Arc<Engine>,
    /// An error in the name is told when it is awaited.
    pub(super) kind: Result<Arc<dyn Kind>, Error>,
    pub(super) terms: Terms,
    /// The acquisition to share, for a reentrant handle.
    pub(super) reentry: Option<Arc<Reentry>>,
}

impl<G> Lock<G> {
    /// Waits at most this long, all traffic included. Zero tries once.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.ask.terms.wait = Some(limit);
        self
    }

    /// Acquires, does `work`, and gives the lock back on every way out; see [`Mutex::run`].
    ///
    /// [`Mutex::run`]: crate::Mutex::run
    ///
    /// # Errors
    ///
    /// Those of acquiring, and [`Error::Lost`] when the lease was lost before the work was done.
    pub async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        G: Handed,
        R: FnOnce(G::Lease) -> W,
        W: Future,
    {
        let guard = self.ask.take().await?;
        guard.run(|lease| work(G::view(lease))).await
    }
}

/// What an acquisition hands out.
pub trait Handed {
    /// The view of it that work is given.
    type Lease;

    #[doc(hidden)]
    fn view(lease: Lease) -> Self::Lease;
}

impl<F> Handed for Guard<F> {
    type Lease = Lease<F>;

    fn view(lease: Lease) -> Lease<F> {
        lease.seen_as()
    }
}

impl<F> Handed for WriteGuard<F> {
    type Lease = Lease<F>;

    fn view(lease: Lease) -> Lease<F> {
        lease.seen_as()
    }
}

impl From<Lock<WriteGuard>> for Lock {
    /// The same acquisition, whose guard cannot be downgraded.
    fn from(writing: Lock<WriteGuard>) -> Self {
        Self::new(writing.ask)
    }
}

impl From<TryLock<WriteGuard>> for TryLock {
    /// The same acquisition, whose guard cannot be downgraded.
    fn from(writing: TryLock<WriteGuard>) -> Self {
        Self::new(writing.ask)
    }
}

/// The terms that both ways of acquiring share.
macro_rules! terms {
    ($type:ident) => {
        impl $type {
            pub(super) fn new(ask: Ask) -> Self {
                Self::guarded_by(ask, |guard| guard)
            }
        }

        impl<G> $type<G> {
            pub(super) fn guarded_by(ask: Ask, wrap: fn(Guard) -> G) -> Self {
                Self { ask, wrap }
            }

            /// Fixes the length of the lease: it is not renewed, and ends by itself unless it is
            /// [extended](Guard::extend) or released before.
            pub fn lease(mut self, length: Duration) -> Self {
                self.ask.terms.lease = length;
                self.ask.terms.renewed = false;
                self
            }

            /// Keeps others out until this long after the start, even when released earlier.
            ///
            /// For a job that must run once although the clocks of its hosts differ. A holder that
            /// crashes is not covered: its lock ends with its lease. A [fixed](Self::lease) lease must be at
            /// least as long.
            pub fn at_least(mut self, length: Duration) -> Self {
                self.ask.terms.at_least = length;
                self
            }

            /// Bounds how long a lease that is renewed may be held: then it is lost, whatever its
            /// holder does.
            pub fn at_most(mut self, length: Duration) -> Self {
                self.ask.terms.at_most = Some(length);
                self
            }

            /// Counts the lock as held, and renewed, only when so many replicas have it too; waits at most
            /// `timeout` for them each time. Without it a failover can grant the lock twice.
            ///
            /// What is not acknowledged in time is given back, with
            /// [`Error::NotReplicated`](crate::Error::NotReplicated); a renewal that is not leaves the
            /// deadline where it was. It costs one more round trip and an own connection.
            pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
                let replicas = count.into();
                self.ask.terms.acknowledged = Some(Acknowledgement { replicas, timeout });
                self
            }

            /// Whether tasks of this process that want the same lock may leave it to each other without asking the
            /// server, each with a token of its own; they may unless this is set to false. Only
            /// a [`Mutex`](crate::Mutex) or [`FairMutex`](crate::FairMutex) that was waited for is left to others.
            pub fn hand_on(mut self, allowed: bool) -> Self {
                self.ask.terms.hand_on = allowed;
                self
            }

            /// Says what the lock is held for, for people who ask who holds it; at most 256 bytes.
            pub fn note(mut self, text: impl Into<String>) -> Self {
                self.ask.terms.note = text.into();
                self
            }
        }

        impl<G> std::fmt::Debug for $type<G> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($type))
                    .field(&self.ask.terms)
                    .finish()
            }
        }
    };
}
terms!(Lock);
terms!(TryLock);

impl<G: 'static> IntoFuture for Lock<G> {
    type Output = Result<G, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask.take_as(self.wrap))
    }
}

impl<G: 'static> IntoFuture for TryLock<G> {
    type Output = Result<Option<G>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask.try_take_as(self.wrap))
    }
}

// Blocks over what they use, instead of `async fn`, which would keep each argument twice: a pair of acquire and release
// allocates one future, and a small one is cheap.
impl Ask {
    pub(super) fn take(self) -> impl Future<Output = Result<Guard, Error>> + Send {
        self.take_as(|guard| guard)
    }

    fn take_as<G>(self, wrap: fn(Guard) -> G) -> impl Future<Output = Result<G, Error>> + Send {
        let Self {
            engine,
            kind,
            terms,
            reentry,
        } = self;
        async move {
            let kind = kind?;
            let guard = match reentry {
                Some(reentry) => {
                    let entering = engine.enter(&reentry, &kind, &terms);
                    Guard::entering(Box::pin(entering).await?)
                }
                None => Guard::new(Arc::new(engine.take(&kind, &terms).await?)),
            };
            Ok(wrap(guard))
        }
    }

    fn try_take_as<G>(
        self,
        wrap: fn(Guard) -> G,
    ) -> impl Future<Output = Result<Option<G>, Error>> + Send {
        let Self {
            engine,
            kind,
            terms,
            reentry,
        } = self;
        async move {
            let kind = kind?;
            let guard = match reentry {
                Some(reentry) => {
                    let entering = engine.try_enter(&reentry, &kind, &terms);
                    Box::pin(entering).await?.map(Guard::entering)
                }
                None => {
                    let taken = engine.try_take(&kind, &terms).await?;
                    taken.map(|hold| Guard::new(Arc::new(hold)))
                }
            };
            Ok(guard.map(wrap))
        }
    }
}

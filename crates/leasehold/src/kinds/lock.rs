//! The terms of an acquisition, set one by one and then awaited.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::{Engine, Guard, Kind, Lease, Reentry};
use crate::options::Terms;

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
pub struct Lock {
    ask: Ask,
}

/// An acquisition that does not wait; made by `try_lock()`, started by `.await`.
///
/// Answers `Ok(None)` when somebody else holds the lock.
///
/// # Cancel safety
///
/// As for [`Lock`].
#[must_use = "nothing is acquired until it is awaited"]
pub struct TryLock {
    ask: Ask,
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

impl Lock {
    pub(super) fn new(ask: Ask) -> Self {
        Self { ask }
    }

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
    pub async fn run<F, W>(self, work: F) -> Result<W::Output, Error>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        self.await?.run(work).await
    }
}

impl TryLock {
    pub(super) fn new(ask: Ask) -> Self {
        Self { ask }
    }
}

/// The terms that both ways of acquiring share.
macro_rules! terms {
    ($type:ident) => {
        impl $type {
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
            /// crashes is not covered: its lock ends with its lease.
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

            /// Says what the lock is held for, for people who ask who holds it; at most 256 bytes.
            pub fn note(mut self, text: impl Into<String>) -> Self {
                self.ask.terms.note = text.into();
                self
            }
        }

        impl std::fmt::Debug for $type {
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

impl IntoFuture for Lock {
    type Output = Result<Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Ask {
                engine,
                kind,
                terms,
                reentry,
            } = self.ask;
            let kind = kind?;
            let hold = match reentry {
                Some(reentry) => engine.enter(&reentry, &kind, &terms).await?,
                None => Arc::new(engine.take(&kind, &terms).await?),
            };
            Ok(Guard::new(hold))
        })
    }
}

impl IntoFuture for TryLock {
    type Output = Result<Option<Guard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Ask {
                engine,
                kind,
                terms,
                reentry,
            } = self.ask;
            let kind = kind?;
            let hold = match reentry {
                Some(reentry) => engine.try_enter(&reentry, &kind, &terms).await?,
                None => engine.try_take(&kind, &terms).await?.map(Arc::new),
            };
            Ok(hold.map(Guard::new))
        })
    }
}

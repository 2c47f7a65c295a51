//! The builders that every lock kind returns: options first, then `.await`.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::{Engine, Guard, Lease, Reentry};
use crate::options::{AcquireOptions, ReplicaAck, Replicas};
use crate::protocol::Kind;

/// A pending acquire that waits for the lock; awaiting it starts the acquire.
///
/// By default it waits without a timeout, and the lease is renewed until the
/// guard is dropped.
///
/// A future that is kept but not polled blocks no other waiter. If it is
/// granted the lock and is not polled within 50 ms, the next waiter gets the
/// lock; the future keeps its place. For the first request, this time is 50 ms
/// more than [`request_timeout`](crate::ClientBuilder::request_timeout). Once
/// you have the guard, the lease is renewed whether or not your task is polled.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let guard = client
///     .mutex("report")
///     .lock()
///     .timeout(Duration::from_millis(500))
///     .at_most(Duration::from_secs(60))
///     .note("monthly report")
///     .await?;
/// # drop(guard); Ok(()) }
/// ```
///
/// # Cancel safety
///
/// Dropping the future at any point is safe. A lock that was granted, or that
/// a request in flight still acquires, is released in the background. The
/// waiter loses its position in the queue.
///
/// # Errors
///
/// [`Error::Timeout`] if [`timeout`](Self::timeout) elapses, and
/// [`Error::Invalid`] if an option or the name is invalid. While it waits, the
/// client retries through an outage of the server for up to
/// [`max_outage`](crate::ClientBuilder::max_outage). After that, it fails with
/// [`Error::Unavailable`] or [`Error::OutcomeUnknown`].
#[must_use = "nothing is acquired until it is awaited"]
pub struct Acquire<G = Guard> {
    pub(crate) request: AcquireRequest,
    /// Makes the guard that this kind returns.
    pub(crate) wrap: fn(Guard) -> G,
}

/// A pending acquire that does not wait; awaiting it starts the acquire.
///
/// It resolves to `Ok(None)` if another owner holds the lock.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let nightly = client.mutex("nightly-import");
/// let minute = Duration::from_secs(60);
/// // The first of ten hosts runs the job. The others are kept out for a
/// // minute, even if the job takes less.
/// if let Some(guard) = nightly.try_lock().at_least(minute).await? {
///     // …
///     let _ = guard.release().await?;
/// }
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// As for [`Acquire`].
///
/// # Errors
///
/// [`Error::Invalid`] if an option or the name is invalid, and
/// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does not
/// reply. The latter also if the future is not polled in time for the reply, as
/// on a blocked runtime: 50 ms after
/// [`request_timeout`](crate::ClientBuilder::request_timeout), the client
/// releases a lock that was acquired without the caller noticing.
#[must_use = "nothing is acquired until it is awaited"]
pub struct TryAcquire<G = Guard> {
    pub(crate) request: AcquireRequest,
    /// Makes the guard that this kind returns.
    pub(crate) wrap: fn(Guard) -> G,
}

/// Which lock to acquire, and with which options.
pub(crate) struct AcquireRequest {
    pub(crate) engine: Arc<Engine>,
    /// An invalid name is reported when the acquire is awaited.
    pub(super) kind: Result<Arc<dyn Kind>, Error>,
    pub(crate) options: AcquireOptions,
    /// The acquisition to share, for a reentrant handle.
    pub(super) reentry: Option<Arc<Reentry>>,
}

/// A guard with a lease that the options of an acquire apply to.
///
/// Implemented by [`Guard`] and [`WriteGuard`](crate::WriteGuard), also those
/// of [`blocking`](crate::blocking). The trait is sealed.
pub trait GuardType: sealed::Sealed {
    /// [`Fenced`](crate::Fenced) or [`Shared`](crate::Shared) if the lease has a token,
    /// [`Unfenced`](crate::Unfenced) otherwise.
    type Fencing;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<F> sealed::Sealed for Guard<F> {}

impl<F> GuardType for Guard<F> {
    type Fencing = F;
}

impl<G> Acquire<G> {
    /// Waits at most `limit`, all requests included. Zero tries once.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.options.timeout = Some(limit);
        self
    }
}

impl<G: GuardType> Acquire<G> {
    /// Acquires the lock, runs `work`, and releases the lock on every exit
    /// path; see [`Mutex::run`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock in the
    /// background.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if the lease is lost
    /// before the work completes.
    ///
    /// [`Mutex::run`]: crate::Mutex::run
    pub async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Lease<G::Fencing>) -> W,
        W: Future,
    {
        let guard = self.request.acquire().await?;
        guard.run(|lease| work(lease.viewed_as())).await
    }
}

/// The methods that all builders share.
macro_rules! options {
    ($type:ident) => {
        impl<G> $type<G> {
            pub(crate) fn guarded_by(
                request: AcquireRequest,
                wrap: fn($crate::Guard) -> G,
            ) -> Self {
                Self { request, wrap }
            }
        }

        impl<G: GuardType> $type<G> {
            /// Sets the length of the renewed lease; by default that of
            /// [`ClientBuilder::lease`](crate::ClientBuilder::lease).
            ///
            /// The lease is renewed every third of its length. If the holder
            /// crashes, other clients wait at most this long.
            pub fn lease(mut self, length: Duration) -> Self {
                self.request.options.lease = length;
                self.request.options.renewed = true;
                self
            }

            /// Sets the length of the lease and disables renewal. The lease
            /// expires after `length` unless it is
            /// [extended](Guard::extend) or released before.
            pub fn fixed_lease(mut self, length: Duration) -> Self {
                self.request.options.lease = length;
                self.request.options.renewed = false;
                self
            }

            /// Keeps other clients out until `length` after the acquire, even
            /// if the lock is released earlier.
            ///
            /// Use it for a job that must run once although the clocks of its
            /// hosts differ. It does not cover a holder that crashes: the lock
            /// is free when its lease expires. A
            /// [`fixed_lease`](Self::fixed_lease) must be at least as long.
            pub fn at_least(mut self, length: Duration) -> Self {
                self.request.options.at_least = length;
                self
            }

            /// Limits how long a renewed lease can be held. When `length` has
            /// passed, the lease is lost.
            pub fn at_most(mut self, length: Duration) -> Self {
                self.request.options.at_most = Some(length);
                self
            }

            /// Requires `count` replicas to acknowledge the acquire and every
            /// renewal, each within `timeout`.
            ///
            /// Without it, a failover can grant the lock twice. With
            /// [`Replicas::All`](crate::Replicas::All), no lock can be
            /// acquired while a replica is down. The clocks of master and
            /// replicas must agree within a hundredth of the lease plus 2 ms,
            /// because the end of a lease replicates as a point in time: a
            /// promoted replica that is ahead frees the lock early.
            ///
            /// An acquire that is not acknowledged in time is released and
            /// fails with
            /// [`Error::NotReplicated`](crate::Error::NotReplicated). A
            /// renewal that is not acknowledged leaves the deadline unchanged.
            /// If the server has no replicas at all, the acquire fails at once
            /// with [`Error::Invalid`](crate::Error::Invalid).
            ///
            /// The option costs one more round trip and a separate connection.
            pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
                let replicas = count.into();
                self.request.options.replica_ack = Some(ReplicaAck { replicas, timeout });
                self
            }

            /// Allows or forbids local hand-off; allowed by default.
            ///
            /// With local hand-off, tasks of one client that wait for the same
            /// lock pass it to each other without a request, each with its own
            /// token. It applies to a [`Mutex`](crate::Mutex) and to a
            /// [`FairMutex`](crate::FairMutex).
            pub fn local_handoff(mut self, allowed: bool) -> Self {
                self.request.options.local_handoff = allowed;
                self
            }

            /// Stores a note with the lock that [`Client::inspect`] and the
            /// CLI show; at most 256 bytes.
            ///
            /// [`Client::inspect`]: crate::Client::inspect
            pub fn note(mut self, text: impl Into<String>) -> Self {
                self.request.options.note = text.into();
                self
            }
        }

        impl<G> std::fmt::Debug for $type<G> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($type))
                    .field(&self.request.options)
                    .finish()
            }
        }
    };
}
pub(crate) use options;
options!(Acquire);
options!(TryAcquire);

/// Conversions between acquires of the same lock with different guards.
macro_rules! conversions {
    ($type:ident) => {
        impl From<$type> for $type<Guard<Shared>> {
            /// Forgets that the lock is exclusive.
            fn from(exclusive: $type) -> Self {
                Self::guarded_by(exclusive.request, Guard::marked)
            }
        }

        impl From<$type<WriteGuard>> for $type {
            /// Converts into an acquire whose guard cannot be downgraded.
            fn from(writer: $type<WriteGuard>) -> Self {
                Self::guarded_by(writer.request, Guard::marked)
            }
        }

        impl From<$type<WriteGuard>> for $type<Guard<Shared>> {
            /// Forgets that the lock is exclusive.
            fn from(writer: $type<WriteGuard>) -> Self {
                Self::guarded_by(writer.request, Guard::marked)
            }
        }
    };
}
pub(crate) use conversions;

impl<G: 'static> IntoFuture for Acquire<G> {
    type Output = Result<G, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.request.acquire_as(self.wrap))
    }
}

impl<G: 'static> IntoFuture for TryAcquire<G> {
    type Output = Result<Option<G>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.request.try_acquire_as(self.wrap))
    }
}

// Blocks over destructured fields instead of `async fn`: an `async fn` would
// store each argument twice. An acquire allocates one future, and a small one
// is cheap.
impl AcquireRequest {
    pub(crate) fn acquire(self) -> impl Future<Output = Result<Guard, Error>> + Send {
        self.acquire_as(|guard| guard)
    }

    pub(crate) fn acquire_as<G>(
        self,
        wrap: fn(Guard) -> G,
    ) -> impl Future<Output = Result<G, Error>> + Send {
        let Self {
            engine,
            kind,
            mut options,
            reentry,
        } = self;
        async move {
            let kind = kind?;
            options.add_trace_parent();
            let guard = match reentry {
                Some(reentry) => {
                    let entering = reentry.enter(&engine, &kind, &options);
                    Guard::entering(Box::pin(entering).await?)
                }
                None => Guard::new(engine.acquire(&kind, &options).await?),
            };
            Ok(wrap(guard))
        }
    }

    pub(super) fn try_acquire(self) -> impl Future<Output = Result<Option<Guard>, Error>> + Send {
        self.try_acquire_as(|guard| guard)
    }

    pub(crate) fn try_acquire_as<G>(
        self,
        wrap: fn(Guard) -> G,
    ) -> impl Future<Output = Result<Option<G>, Error>> + Send {
        let Self {
            engine,
            kind,
            mut options,
            reentry,
        } = self;
        async move {
            let kind = kind?;
            options.add_trace_parent();
            let guard = match reentry {
                Some(reentry) => {
                    let entering = reentry.try_enter(&engine, &kind, &options);
                    Box::pin(entering).await?.map(Guard::entering)
                }
                None => {
                    let acquired = engine.try_acquire(&kind, &options).await?;
                    acquired.map(Guard::new)
                }
            };
            Ok(guard.map(wrap))
        }
    }
}

//! The multi-lock: several locks of any kind under one guard.

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::acquire::{Acquire, AcquireRequest};
use crate::error::{Error, Loss};
use crate::lease::{
    Engine, Fenced, Guard, HasToken, Lease, Reentry, ReleaseOutcome, conclude, until_lost,
};
use crate::options::AcquireOptions;
use crate::owner::Token;
use crate::protocol::Kind;

/// A pending acquire of several locks; awaiting it starts the acquire.
///
/// It acquires all locks or none, and the result is lost when one lease is
/// lost. The locks are acquired one after another in the order of their keys,
/// so that two clients that acquire the same locks cannot deadlock.
///
/// `F` is [`Fenced`] if all locks are exclusive. To combine them with permits
/// or readers, convert the acquires of the exclusive locks with `.into()`; `F`
/// is then [`Shared`](crate::Shared).
///
/// # Limitations
///
/// - All locks must belong to one client, and no lock can be listed twice.
/// - While it waits for one lock, it holds and renews the earlier ones. A
///   [`fixed_lease`](Acquire::fixed_lease) that expires meanwhile fails the
///   whole acquire.
/// - A future that is not polled acquires its locks all the same. While it
///   waits for one, it holds the earlier ones. If it is not polled within 50 ms
///   after it has acquired all, it releases them, and starts again when it is
///   polled.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// use leasehold::MultiLock;
///
/// let from = client.mutex("account:1");
/// let to = client.fair_mutex("account:2");
/// let both = MultiLock::new([from.lock(), to.lock()])
///     .timeout(Duration::from_secs(5))
///     .await?;
/// for (name, token) in both.tokens() {
///     println!("{name} has token {token}");
/// }
/// let _ = both.release().await?;
///
/// let downloads = client.semaphore("downloads", 10);
/// let parts = [from.lock().into(), downloads.acquire()];
/// let mixed = MultiLock::new(parts).await?;
/// # drop(mixed); Ok(()) }
/// ```
///
/// # Cancel safety
///
/// As for [`Acquire`]. Locks that were acquired are released.
///
/// # Errors
///
/// The first error of an acquire; the locks that were acquired before it are
/// released. [`Error::Invalid`] if the locks belong to different clients, or if
/// one is listed twice.
#[derive(Debug)]
#[must_use = "nothing is acquired until it is awaited"]
pub struct MultiLock<F = Fenced> {
    parts: Vec<Acquire<Guard<F>>>,
    timeout: Option<Duration>,
}

/// The guard of a [`MultiLock`].
///
/// Dropping it releases all locks in the background.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard<F = Fenced> {
    guards: Vec<Guard<F>>,
}

impl<F: HasToken + 'static> MultiLock<F> {
    /// Combines several acquires, each with its own options.
    ///
    /// The acquire of a writer is converted with `.into()`.
    pub fn new(parts: impl IntoIterator<Item = Acquire<Guard<F>>>) -> Self {
        Self {
            parts: parts.into_iter().collect(),
            timeout: None,
        }
    }

    /// Waits at most `limit` for all locks together. The timeouts of the single
    /// acquires also apply.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Acquires all locks, runs `work`, and releases the locks on every exit
    /// path; see [`Mutex::run`](crate::Mutex::run). The work is dropped if one
    /// lease is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the locks in the
    /// background.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if a lease is lost before
    /// the work completes.
    pub async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Vec<Lease<F>>) -> W,
        W: Future,
    {
        let guard = self.await?;
        let work = work(guard.leases().cloned().collect());
        let output = until_lost(work, guard.ended()).await;
        let in_time = guard.check();
        let released = guard.release().await;
        conclude(output, in_time, released)
    }

    /// Returns the acquires in the order of their keys.
    fn sorted_parts(self) -> Result<Vec<Member<F>>, Error> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for Acquire { request, wrap } in self.parts {
            let mut options = request.options;
            // The trace is the caller's.
            options.add_trace_parent();
            options.trace_parent = None;
            parts.push(Member {
                engine: request.engine,
                kind: request.kind?,
                options,
                reentry: request.reentry,
                wrap,
            });
        }
        parts.sort_by(|one, other| one.kind.key().cmp(other.kind.key()));
        for pair in parts.windows(2) {
            if !Arc::ptr_eq(&pair[0].engine, &pair[1].engine) {
                return Err(Error::invalid(
                    "locks",
                    "two of them belong to different clients",
                ));
            }
            if pair[0].kind.key() == pair[1].kind.key() {
                let why = format!("`{}` is listed twice", pair[0].kind.name());
                return Err(Error::invalid("locks", why));
            }
        }
        Ok(parts)
    }

    async fn acquire(self) -> Result<MultiGuard<F>, Error> {
        let (limit, start) = (self.timeout, Instant::now());
        let parts: Arc<[Member<F>]> = self.sorted_parts()?.into();
        let Some(first) = parts.first() else {
            return Ok(MultiGuard { guards: Vec::new() });
        };
        // Not on the caller's task: while that is not polled, we would keep the
        // locks that we have.
        let engine = first.engine.clone();
        let acquiring = engine.deliver(move || acquire_all(parts.clone(), limit, start));
        acquiring.await
    }
}

/// One acquire, which can be repeated.
struct Member<F> {
    engine: Arc<Engine>,
    kind: Arc<dyn Kind>,
    options: AcquireOptions,
    reentry: Option<Arc<Reentry>>,
    wrap: fn(Guard) -> Guard<F>,
}

impl<F> Member<F> {
    /// Returns the acquire, which waits at most `limit`.
    fn request(&self, limit: Option<Duration>) -> AcquireRequest {
        let mut options = self.options.clone();
        options.timeout = limit.into_iter().chain(options.timeout).min();
        AcquireRequest {
            engine: self.engine.clone(),
            kind: Ok(self.kind.clone()),
            options,
            reentry: self.reentry.clone(),
        }
    }
}

/// Acquires all locks, or none.
async fn acquire_all<F: HasToken + 'static>(
    parts: Arc<[Member<F>]>,
    limit: Option<Duration>,
    start: Instant,
) -> Result<MultiGuard<F>, Error> {
    let mut acquired = MultiGuard {
        guards: Vec::with_capacity(parts.len()),
    };
    for part in parts.iter() {
        let remaining = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        match part.request(remaining).acquire_as(part.wrap).await {
            Ok(guard) => acquired.guards.push(guard),
            Err(error) => return acquired.fail(error).await,
        }
    }
    match acquired.check() {
        Ok(()) => Ok(acquired),
        Err(error) => acquired.fail(error).await,
    }
}

impl<F: HasToken + 'static> IntoFuture for MultiLock<F> {
    type Output = Result<MultiGuard<F>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

impl<F: HasToken> MultiGuard<F> {
    /// Returns the name and fencing token of each lock, in the order in which
    /// they were acquired.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, Token)> {
        self.leases().map(|lease| (lease.name(), lease.token()))
    }
}

impl<F> MultiGuard<F> {
    /// Returns the leases, in the order in which they were acquired.
    pub fn leases(&self) -> impl Iterator<Item = &Lease<F>> {
        self.guards.iter().map(Guard::lease)
    }

    /// Returns the remaining time of the lease that ends first; zero if one has
    /// ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases().map(Lease::remaining);
        remaining.min().unwrap_or(Duration::MAX)
    }

    /// Checks, by the clock alone, that all leases are valid.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] for the first lease that was lost.
    pub fn check(&self) -> Result<(), Error> {
        self.leases().try_for_each(Lease::check)
    }

    /// Waits until one lease is lost, and returns its name and the reason.
    /// Resolves to `None` as the reason if a lock was released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> (&str, Option<Loss>) {
        let mut each: Vec<_> = self
            .leases()
            .map(|lease| Box::pin(async { (lease.name(), lease.lost().await) }))
            .collect();
        poll_fn(|context| {
            let polls = each.iter_mut().map(|lost| lost.as_mut().poll(context));
            polls
                .into_iter()
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Extends every lease to at least `lease` from now; see [`Guard::extend`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves each lease unchanged or extended.
    ///
    /// # Errors
    ///
    /// The first error of a lease. Other leases may have been extended.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extensions = self.guards.iter().map(|guard| guard.extend(lease));
        join_all(extensions).await.into_iter().collect()
    }

    /// Releases all locks concurrently.
    ///
    /// Returns [`ReleaseOutcome::Released`] only if every lease was valid until
    /// its release.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future lets the releases complete in the background.
    ///
    /// # Errors
    ///
    /// The first error of a release. The client keeps releasing in the
    /// background.
    pub async fn release(self) -> Result<ReleaseOutcome, Error> {
        let mut worst = ReleaseOutcome::Released;
        for outcome in join_all(self.guards.into_iter().map(Guard::release)).await {
            match outcome? {
                ReleaseOutcome::Released => {}
                other => worst = other,
            }
        }
        Ok(worst)
    }

    /// Releases the acquired locks before it returns `error`, so that a retry
    /// finds them free.
    async fn fail(self, error: Error) -> Result<Self, Error> {
        conclude(None, Err(error), self.release().await)
    }

    async fn ended(&self) {
        self.lost().await;
    }
}

/// Polls futures concurrently in one task until all have completed.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut done = true;
        for (future, output) in &mut running {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => done = false,
                }
            }
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}

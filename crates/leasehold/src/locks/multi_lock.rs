//! The multi-lock: several locks of any kind under one guard.

use std::future::{IntoFuture, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::acquire::{Acquire, AcquireRequest};
use crate::error::Error;
use crate::lease::{Engine, Exclusive, Guard, Lease, Lost, Pending, Reentry, conclude, until_lost};
use crate::options::{AcquireOptions, ONE_MILLISECOND};
use crate::owner::Token;
use crate::protocol::{Call, Kind};

/// An acquire of several locks that has not started: `.await` it in a task, or
/// call [`wait`](Self::wait) on a thread.
///
/// It acquires all locks or none, and the result is lost when one lease is
/// lost. The locks are acquired one after another in the order of their keys,
/// so two clients that acquire the same locks cannot deadlock.
///
/// `M` is [`Exclusive`] if all locks are exclusive. To combine them with
/// permits or readers, convert the acquires of the exclusive locks with
/// `.into()`; `M` is then [`Shared`](crate::Shared).
///
/// # Limitations
///
/// - All locks must belong to one client, and no lock can be listed twice. Only
///   [`moving`](Self::moving) combines two clients.
/// - While it waits for one lock, it holds and renews the earlier ones. If one
///   of them is lost meanwhile, such as a
///   [`fixed_lease`](Acquire::fixed_lease), the whole acquire fails.
/// - A future that is not polled acquires the locks all the same. While it
///   waits for one, it holds the earlier ones. If it is not polled within 50 ms
///   after it has acquired all, it releases them, and starts again when it is
///   polled.
///
/// # Cancel safety
///
/// As for [`Acquire`]. Locks that were acquired are released.
///
/// # Errors
///
/// The first error of an acquire; the locks that were acquired before it are
/// released. A `try_lock` fails with [`Error::Busy`] if that lock is busy.
/// [`Error::Invalid`] if there are no locks, if they belong to different
/// clients, or if one is listed twice.
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
/// for lease in both.leases() {
///     println!("{} has token {}", lease.name(), lease.token());
/// }
/// both.release().await?;
///
/// let downloads = client.semaphore("downloads", 10);
/// let parts = [from.lock().into(), downloads.acquire()];
/// let mixed = MultiLock::new(parts).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "nothing is acquired until it is awaited"]
pub struct MultiLock<M = Exclusive> {
    parts: Vec<Acquire<M>>,
    /// Whether the parts are one lock on two servers, the old one first.
    is_move: bool,
    timeout: Option<Duration>,
}

/// Several locks that are held together, from a [`MultiLock`].
///
/// Dropping it releases all locks in the background.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard<M = Exclusive> {
    /// At least one.
    guards: Vec<Guard<M>>,
}

impl<M: 'static> MultiLock<M> {
    /// Combines several acquires, each with options of its own.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let rooms = ["room:1", "room:2"].map(|room| client.mutex(room));
    /// let booking = MultiLock::new(rooms.iter().map(|room| room.lock())).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn new(parts: impl IntoIterator<Item = Acquire<M>>) -> Self {
        Self {
            parts: parts.into_iter().collect(),
            is_move: false,
            timeout: None,
        }
    }

    /// Combines acquires of the same lock on two servers, while a fleet moves
    /// from the `old` server to the `new` one.
    ///
    /// The guard excludes clients that know only one of the servers. It is lost
    /// when either lease is lost. Both leases have the same token: the larger
    /// of the two, which both servers have recorded, so each later holder on
    /// either server has a larger one. The guide's page "Moving to another
    /// server" describes the whole rollout.
    ///
    /// # Limitations
    ///
    /// - It is held only while both servers are reachable.
    /// - Every client must name the servers in the same order, or two of them
    ///   can wait for each other. Clients of only the old server and clients of
    ///   only the new one must never run at the same time.
    /// - Both acquires must have the same key and kind, and belong to different
    ///   clients. If both clients reach the same server, the acquire waits for
    ///   itself: set a [`timeout`](Self::timeout).
    /// - Tasks of one client don't pass the lock to each other without a
    ///   request ([`local_handoff`](Acquire::local_handoff) is off).
    /// - Observers see each server's own token.
    /// - Redisson's locks cannot take part.
    ///
    /// # Errors
    ///
    /// Those of [`MultiLock`]. [`Error::Invalid`] if the two acquires don't
    /// match. If a server does not confirm the larger token, the error says
    /// why, and both locks are released: [`Error::Unavailable`],
    /// [`Error::OutcomeUnknown`], or for a quorum [`Error::NoQuorum`], for
    /// example if its clocks are a minute behind the other server's.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Lease, MultiLock};
    /// # async fn bill(lease: &Lease) {}
    /// # async fn example(old: Client, new: Client) -> Result<(), Error> {
    /// let name = "invoice:42";
    /// let [old, new] = [&old, &new].map(|client| client.mutex(name).lock());
    /// let both = MultiLock::moving(old, new);
    /// // For a fence, either will do: they have the same key and token.
    /// both.run(|leases| async move { bill(&leases[0]).await }).await?;
    /// # Ok(()) }
    /// ```
    pub fn moving(old: Acquire<M>, new: Acquire<M>) -> Self {
        Self {
            is_move: true,
            ..Self::new([old, new])
        }
    }

    /// Waits at most `limit` for all locks together. The single acquires'
    /// timeouts also apply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, MultiLock};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let limit = Duration::from_secs(5);
    /// let both = MultiLock::new(parts).timeout(limit).await?;
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Acquires all locks, runs `work`, and releases the locks on every exit
    /// path; see [`Mutex::run`](crate::Mutex::run). The work is dropped if one
    /// lease is lost.
    ///
    /// The work receives the leases in the order in which they were acquired.
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Lease, MultiLock};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn transfer(leases: Vec<Lease>) {}
    /// let accounts = ["account:1", "account:2"];
    /// let parts = accounts.map(|account| client.mutex(account).lock());
    /// MultiLock::new(parts).run(transfer).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Vec<Lease<M>>) -> W,
        W: Future,
    {
        let guard = self.await?;
        let leases = guard.leases().cloned().collect();
        // A panic of the closure is caught like one of the work.
        let work = async move { work(leases).await };
        let output = until_lost(work, guard.lost()).await;
        let in_time = guard.check();
        let released = guard.release().await;
        conclude(output, in_time, released)
    }

    /// Acquires all locks, and blocks this thread until they are granted or the
    /// acquire fails.
    ///
    /// # Errors
    ///
    /// Those of [`MultiLock`], and those of
    /// [`Pending::wait`](crate::Pending::wait).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).wait()?;
    /// both.release().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<MultiGuard<M>, Error> {
        self.into_future().wait()
    }

    /// Acquires all locks, runs `work` on this thread, and releases the locks
    /// on every exit path; see [`Acquire::run_blocking`].
    ///
    /// **The work is not cancelled if a lease is lost.** It must call
    /// [`Lease::check`] itself before every effect.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait), and [`Error::Lost`] if a lease is lost
    /// before the work returns.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let accounts = ["account:1", "account:2"].map(|name| client.mutex(name).lock());
    /// let tokens = MultiLock::new(accounts).run_blocking(|leases| {
    ///     // Send each account's token with the write to it.
    ///     leases.iter().map(|lease| lease.token()).collect::<Vec<_>>()
    /// })?;
    /// # drop(tokens); Ok(()) }
    /// ```
    pub fn run_blocking<T>(self, work: impl FnOnce(&[Lease<M>]) -> T) -> Result<T, Error> {
        let guard = self.wait()?;
        let leases: Vec<_> = guard.leases().cloned().collect();
        let output = catch_unwind(AssertUnwindSafe(|| work(&leases)));
        let in_time = guard.check();
        conclude(Some(output), in_time, guard.release().wait())
    }
}

/// Checks the acquires, and returns them in the order in which all clients make
/// them.
fn members(requests: Vec<AcquireRequest>, is_move: bool) -> Result<Vec<Member>, Error> {
    let mut parts = Vec::with_capacity(requests.len());
    for request in requests {
        let (kind, mut options) = (request.kind?, request.options);
        options.validate()?;
        options.add_trace_parent();
        parts.push(Member {
            engine: request.engine,
            kind,
            options,
            reentry: request.reentry,
        });
    }
    if is_move {
        check_move(&mut parts)?;
        return Ok(parts);
    }
    // One order for all clients, so that waiters cannot form a cycle.
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

/// Checks that the parts are one lock on two servers.
fn check_move(parts: &mut [Member]) -> Result<(), Error> {
    let [old, new] = parts else {
        unreachable!("BUG: a move has two parts");
    };
    let mismatch = |why: String| Err(Error::invalid("locks", why));
    if Arc::ptr_eq(&old.engine, &new.engine) {
        return mismatch("old and new belong to the same client".to_owned());
    }
    let key = |part: &Member| String::from_utf8_lossy(part.kind.key()).into_owned();
    if key(old) != key(new) {
        return mismatch(format!("the keys `{}` and `{}` differ", key(old), key(new)));
    }
    let kind = |part: &Member| (part.kind.label(), part.kind.variant());
    if kind(old) != kind(new) {
        return mismatch(format!("`{}` is of different kinds", old.kind.name()));
    }
    for part in parts {
        part.recording(b"", Token::new(0))?;
        // A later holder by local hand-off would have a token that was reserved
        // before this holder's token was recorded.
        part.options.local_handoff = false;
    }
    Ok(())
}

/// One acquire, which can be repeated.
struct Member {
    engine: Arc<Engine>,
    kind: Arc<dyn Kind>,
    options: AcquireOptions,
    reentry: Option<Arc<Reentry>>,
}

impl Member {
    /// Returns the acquire, which waits at most `limit`.
    fn request(&self, limit: Option<Duration>) -> AcquireRequest {
        let mut options = self.options.clone();
        options.is_part = true;
        options.timeout = limit.into_iter().chain(options.timeout).min();
        AcquireRequest {
            engine: self.engine.clone(),
            kind: Ok(self.kind.clone()),
            options,
            reentry: self.reentry.clone(),
        }
    }

    /// Returns the call after which the server issues only tokens above
    /// `token`. `value` is what the holder stored.
    fn recording(&self, value: &[u8], token: Token) -> Result<Call<()>, Error> {
        let call = self.kind.record_token(value, token);
        call.ok_or_else(|| {
            let why = format!("a `{}` cannot take part in a move", self.kind.label());
            Error::invalid("locks", why)
        })
    }

    /// Records the token of another server, while `guard` is held on this one.
    /// The multi-lock's `limit` counts from `start`.
    async fn record<M>(
        &self,
        token: Token,
        guard: &Guard<M>,
        limit: Option<Duration>,
        start: Instant,
    ) -> Result<(), Error> {
        let recording = async {
            match self.try_record(token, guard).await {
                // Recording is idempotent, so an unnoticed disconnect costs one
                // more request.
                Err(Error::Unavailable(_) | Error::OutcomeUnknown(_)) => {
                    self.try_record(token, guard).await
                }
                outcome => outcome,
            }
        };
        // Zero tries once, and does not limit the requests.
        let limits = [remaining(limit, start), self.options.timeout];
        let limits = limits.into_iter().flatten();
        let limit = limits.filter(|limit| !limit.is_zero()).min();
        let name = self.kind.name();
        self.engine
            .finish_within(limit, start, name, recording)
            .await
    }

    async fn try_record<M>(&self, token: Token, guard: &Guard<M>) -> Result<(), Error> {
        let call = self.recording(guard.value(), token)?;
        // Acknowledged like the lock: a replica that is promoted before the
        // renewal must know the token.
        guard.send_acknowledged(call).await?;
        // A server that has lost the lock since may have granted it to another
        // client, under a smaller token.
        guard.renew_now().await
    }
}

/// Returns what is left of `limit`, which counts from `start`.
fn remaining(limit: Option<Duration>, start: Instant) -> Option<Duration> {
    limit.map(|limit| match limit.is_zero() {
        true => limit,
        false => limit.saturating_sub(start.elapsed()).max(ONE_MILLISECOND),
    })
}

/// Acquires all locks, or none.
async fn acquire_all<M: 'static>(
    parts: Arc<[Member]>,
    is_move: bool,
    limit: Option<Duration>,
    start: Instant,
) -> Result<MultiGuard<M>, Error> {
    let mut acquired = MultiGuard {
        guards: Vec::with_capacity(parts.len()),
    };
    match acquired.acquire(&parts, is_move, limit, start).await {
        Ok(()) => Ok(acquired),
        Err(error) => acquired.fail(error).await,
    }
}

impl<M: 'static> IntoFuture for MultiLock<M> {
    type Output = Result<MultiGuard<M>, Error>;
    type IntoFuture = Pending<'static, MultiGuard<M>>;

    fn into_future(self) -> Self::IntoFuture {
        let (is_move, limit) = (self.is_move, self.timeout);
        // All are started, so none logs that it was forgotten.
        let requests: Vec<_> = self.parts.into_iter().map(Acquire::into_request).collect();
        let Some(first) = requests.first() else {
            return Pending::failed(Error::invalid("locks", "0 is below the minimum of 1"));
        };
        let engine = first.engine.clone();
        // Not on the caller's task: while that is not polled, we would keep the
        // locks that we have.
        let acquiring = {
            let engine = engine.clone();
            async move {
                let start = Instant::now();
                let parts: Arc<[Member]> = members(requests, is_move)?.into();
                let all = parts.clone();
                let acquire = move || acquire_all(all.clone(), is_move, limit, start);
                let acquired: MultiGuard<M> = engine.deliver(acquire).await?;
                // The caller has the locks only now.
                for (guard, part) in acquired.guards.iter().zip(&*parts) {
                    guard.progress();
                    guard.begin_at_least(part.options.at_least);
                }
                Ok(acquired)
            }
        };
        Pending::new(engine.runtime(), acquiring)
    }
}

impl<M: 'static> MultiGuard<M> {
    /// Returns the leases, in the order in which they were acquired.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).await?;
    /// let tokens: Vec<_> = both.leases().map(|lease| lease.token()).collect();
    /// # Ok(()) }
    /// ```
    pub fn leases(&self) -> impl Iterator<Item = &Lease<M>> {
        self.guards.iter().map(AsRef::as_ref)
    }

    /// Returns the time until the first deadline; zero if one lease has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).await?;
    /// println!("both are ours for {:?} without a renewal", both.remaining());
    /// # Ok(()) }
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn transfer() {}
    /// # let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).wait()?;
    /// both.check()?;
    /// transfer();
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.leases().try_for_each(Lease::check)
    }

    /// Reports that the protected work makes progress, for all leases; see
    /// [`Lease::progress`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, MultiLock};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn transfer(amount: u32) {}
    /// let limit = Duration::from_secs(60);
    /// let accounts = ["account:1", "account:2"].map(|name| client.mutex(name));
    /// let parts = accounts.map(|account| account.lock().progress_within(limit));
    /// let both = MultiLock::new(parts).wait()?;
    /// for amount in 1..=10 {
    ///     transfer(amount);
    ///     both.progress();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn progress(&self) {
        self.leases().for_each(Lease::progress);
    }

    /// Returns a future that resolves when one lease is lost or released; see
    /// [`Lease::lost`].
    ///
    /// The output is how that lease was lost. [`check`](Self::check) names it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn transfer() {}
    /// # let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).await?;
    /// tokio::select! {
    ///     _ = both.lost() => both.check()?,
    ///     () = transfer() => both.release().await?,
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> Lost {
        Lost::first(self.leases().map(Lease::lost))
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, MultiLock};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).await?;
    /// both.extend(Duration::from_secs(600)).await?;
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, lease: Duration) -> Pending<'_, ()> {
        Pending::new(self.guards[0].runtime(), async move {
            let extensions = self.guards.iter().map(|guard| guard.extend(lease));
            join_all(extensions).await.into_iter().collect()
        })
    }

    /// Releases all locks concurrently, and fails if one lease was lost before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future lets the releases complete in the background.
    ///
    /// # Errors
    ///
    /// The first error of a release, among them [`Error::Lost`]. The client
    /// keeps releasing in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, MultiLock};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # let parts = [client.mutex("a").lock(), client.mutex("b").lock()];
    /// let both = MultiLock::new(parts).wait()?;
    /// // …
    /// both.release().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn release(self) -> Pending<'static, ()> {
        let runtime = self.guards[0].runtime().clone();
        Pending::new(&runtime, self.release_now())
    }

    async fn release_now(self) -> Result<(), Error> {
        // All at once: a release that fails must not delay the others.
        let releases = self.guards.into_iter().map(Guard::release_now);
        join_all(releases).await.into_iter().collect()
    }

    async fn acquire(
        &mut self,
        parts: &[Member],
        is_move: bool,
        limit: Option<Duration>,
        start: Instant,
    ) -> Result<(), Error> {
        // The caller cannot report progress before it has the guard. Dropped
        // before a release: the next holder by local hand-off is not exempt.
        let mut exemptions = Vec::with_capacity(parts.len());
        for part in parts {
            let acquiring = part.request(remaining(limit, start)).acquire()?;
            let guard: Guard<M> = tokio::select! {
                biased;
                guard = acquiring => guard?,
                // The others are of no use without it.
                _ = self.lost(), if !self.guards.is_empty() => return self.check(),
            };
            exemptions.push(guard.lease().exempt_from_progress());
            self.guards.push(guard);
        }
        if is_move {
            self.share_token(parts, limit, start).await?;
        }
        // Last: the first ones may have been lost meanwhile, and a holder that
        // came before the recording has a smaller token.
        self.check()
    }

    /// Gives both leases the larger of their tokens.
    ///
    /// The next holder may know only the server of the smaller one. That server
    /// must issue larger tokens before any resource sees this one.
    async fn share_token(
        &mut self,
        parts: &[Member],
        limit: Option<Duration>,
        start: Instant,
    ) -> Result<(), Error> {
        let Some(largest) = self.leases().map(Lease::any_token).max() else {
            return Ok(());
        };
        for (guard, part) in self.guards.iter_mut().zip(parts) {
            if guard.lease().any_token() < largest {
                part.record(largest, guard, limit, start).await?;
            }
            guard.set_token(largest);
        }
        Ok(())
    }

    /// Releases the acquired locks before it returns `error`, so a retry finds
    /// them free.
    async fn fail(self, error: Error) -> Result<Self, Error> {
        conclude(None, Err(error), self.release_now().await)
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

//! The builder that every lock kind returns: options first, then `.await` or
//! `.wait()`.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::Pending;
use crate::lease::{Engine, Exclusive, Guard, Lease, Reentry, Shared, conclude};
use crate::options::{AcquireOptions, ReplicaAck, Replicas};
use crate::protocol::Kind;

/// An acquire that has not started: set options, then `.await` it in a task or
/// call [`wait`](Self::wait) on a thread.
///
/// Both give a [`Guard`]. The client renews the lease until you drop the guard,
/// unless an option says otherwise. [`run`](Self::run),
/// [`run_or_skip`](Self::run_or_skip) and [`run_blocking`](Self::run_blocking)
/// acquire the lock, do the work and release the lock in one call.
///
/// An acquire has one of two forms:
///
/// - **It waits**: `lock`, `acquire`, `read` and `write`. It waits until the
///   lock is granted, without a limit unless you set a
///   [`timeout`](Self::timeout).
/// - **It doesn't wait**: `try_lock`, `try_acquire`, `try_read` and
///   `try_write`. If the lock is busy, it fails with [`Error::Busy`], which
///   names the holder. A `timeout` then limits the request.
///
/// An acquire that is never started acquires nothing. Dropping it logs a
/// warning with the line that created it, because the code that follows
/// probably believes that it holds the lock.
///
/// A future that you keep but don't poll blocks no other waiter. If it is
/// granted the lock and is not polled within 50 ms, the next waiter gets the
/// lock; the future keeps its place. For the first request, this time is 50 ms
/// more than [`request_timeout`](crate::Connect::request_timeout). Once you
/// have the guard, the lease is renewed whether or not your task is polled.
///
/// # Cancel safety
///
/// Dropping the future at any point is safe. A lock that was granted, or that a
/// request in flight still acquires, is released in the background. The waiter
/// loses its position in the queue.
///
/// A thread cannot interrupt [`wait`](Self::wait): set a `timeout`, or end it
/// with [`Client::shutdown`](crate::Client::shutdown).
///
/// # Errors
///
/// - [`Error::Busy`] if the lock is busy and the acquire doesn't wait.
/// - [`Error::Timeout`] if [`timeout`](Self::timeout) elapses, unless the
///   server is unreachable at that time.
/// - [`Error::Invalid`] if the name or an option is invalid, or if
///   [`replicas`](Self::replicas) are required of a server that has none.
/// - [`Error::Unavailable`], [`Error::OutcomeUnknown`],
///   [`Error::NotReplicated`] or [`Error::NoQuorum`] if the server does not
///   grant the lock. A waiting acquire first retries through the outage for up
///   to [`max_outage`](crate::Connect::max_outage). A `try_` acquire makes a
///   single attempt. It also fails with [`Error::OutcomeUnknown`] if the
///   future is not polled in time for the reply, as on a blocked runtime: 50 ms
///   after [`request_timeout`](crate::Connect::request_timeout), the client
///   releases a lock that was acquired without the caller noticing.
/// - [`Error::WrongType`], [`Error::Denied`], [`Error::OutOfMemory`] or
///   [`Error::Unexpected`] if the server rejects the request.
/// - [`Error::ShutDown`] once the client is shut down.
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
/// # Ok(()) }
/// ```
///
/// A job that the first of ten hosts runs. The others are kept out for a
/// minute, even if the job takes less:
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn import() {}
/// let minute = Duration::from_secs(60);
/// match client.mutex("import").try_lock().at_least(minute).await {
///     Ok(guard) => {
///         import().await;
///         guard.release().await?;
///     }
///     Err(Error::Busy { holder: Some(holder), .. }) => {
///         println!("{holder} runs it");
///     }
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is acquired until it is awaited, or waited for with `wait`"]
pub struct Acquire<M = Exclusive> {
    /// `None` once the acquire was started.
    request: Option<AcquireRequest>,
    mode: PhantomData<fn() -> M>,
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

impl<M> Acquire<M> {
    pub(crate) fn new(request: AcquireRequest) -> Self {
        Self {
            request: Some(request),
            mode: PhantomData,
        }
    }

    /// Starts an acquire that does not wait.
    pub(crate) fn without_waiting(mut request: AcquireRequest) -> Self {
        request.options.waits = false;
        Self::new(request)
    }

    pub(crate) fn into_request(mut self) -> AcquireRequest {
        self.request.take().expect("an acquire is started once")
    }

    pub(crate) fn request(&mut self) -> &mut AcquireRequest {
        self.request.as_mut().expect("an acquire is started once")
    }

    fn options(&mut self) -> &mut AcquireOptions {
        &mut self.request().options
    }

    /// Limits how long the acquire can take, all requests included.
    ///
    /// - A waiting acquire gives up after `limit` and fails with
    ///   [`Error::Timeout`]. Zero tries once, as the `try_` methods do.
    ///   Without a limit, it waits until the lock is granted.
    /// - An acquire that doesn't wait still fails at once with [`Error::Busy`].
    ///   If the server has not replied after `limit`, it fails with
    ///   [`Error::Timeout`]. Zero sets no limit.
    ///
    /// The default is
    /// [`Connect::acquire_timeout`](crate::Connect::acquire_timeout).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let limit = Duration::from_secs(5);
    /// match client.mutex("report").lock().timeout(limit).wait() {
    ///     Ok(guard) => println!("acquired with token {}", guard.token()),
    ///     Err(Error::Timeout { waited, holder, .. }) => {
    ///         println!("gave up after {waited:?}, held by {holder:?}");
    ///     }
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options().timeout = Some(limit);
        self
    }

    /// Sets how long the renewed lease lasts; the default is
    /// [`Connect::lease`](crate::Connect::lease).
    ///
    /// The client renews the lease every third of this time. If the holder
    /// crashes, other clients wait at most this long.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // A crash of this worker blocks the others for five seconds at most.
    /// let short = Duration::from_secs(5);
    /// let guard = client.mutex("queue:7").lock().lease(short).await?;
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, length: Duration) -> Self {
        self.options().lease = length;
        self.options().renewed = true;
        self
    }

    /// Sets how long the lease lasts, and disables renewal. The lease expires
    /// after `length` unless you [extend](Guard::extend) or release it before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let limit = Duration::from_secs(120);
    /// let guard = client.mutex("backup").lock().fixed_lease(limit).await?;
    /// // The backup is larger than usual: an hour from now, then.
    /// guard.extend(Duration::from_secs(3600)).await?;
    /// # Ok(()) }
    /// ```
    pub fn fixed_lease(mut self, length: Duration) -> Self {
        self.options().lease = length;
        self.options().renewed = false;
        self
    }

    /// Keeps other clients out until `length` after the acquire, even if the
    /// lock is released earlier.
    ///
    /// Use it for a job that must run once although the hosts' clocks differ.
    /// It covers neither a holder that crashes nor a release that is lost in an
    /// outage or failover: the lock is then free when the lease expires. A
    /// [`fixed_lease`](Self::fixed_lease) must be at least as long.
    ///
    /// A [`MultiLock`](crate::MultiLock) counts from when it has all locks, and a
    /// reentrant handle for each caller that asks for it. A fixed lease and
    /// [`at_most`](Self::at_most) count from the request that was granted, so
    /// after a wait they may end a little earlier.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn send_newsletter() {}
    /// let hour = Duration::from_secs(3600);
    /// let newsletter = client.mutex("newsletter").try_lock().at_least(hour);
    /// // Other hosts skip it for an hour, however soon we are done.
    /// newsletter.run_or_skip(|_lease| send_newsletter()).await?;
    /// # Ok(()) }
    /// ```
    pub fn at_least(mut self, length: Duration) -> Self {
        self.options().at_least = length;
        self
    }

    /// Limits how long a renewed lease can be held. When `length` has passed,
    /// the lease is lost.
    ///
    /// Without it, a holder that hangs keeps the lock for as long as the
    /// process lives. If you cannot know how long the work takes, use
    /// [`progress_within`](Self::progress_within).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn render() {}
    /// let minute = Duration::from_secs(60);
    /// let report = client.mutex("report").lock().at_most(minute);
    /// // Dropped after a minute, with `Error::Lost`.
    /// report.run(|_lease| render()).await?;
    /// # Ok(()) }
    /// ```
    pub fn at_most(mut self, length: Duration) -> Self {
        self.options().at_most = Some(length);
        self
    }

    /// Renews the lease only while the work reports progress: calls
    /// [`Lease::progress`] or [`Guard::progress`] again within `limit`.
    ///
    /// Renewal alone keeps a lock for a holder that is alive but stuck: a
    /// deadlocked thread, a call that hangs, a task that is never polled. With
    /// this option, the client stops renewing the lease, logs a warning with
    /// the line that acquired the lock, and reports
    /// [`Event::Stuck`](crate::observe::Event::Stuck). The lease then runs out,
    /// and is lost with [`Loss::Stuck`](crate::Loss::Stuck).
    ///
    /// - A holder that stops reporting loses the lock within `limit` plus one
    ///   lease after its last report. The acquire counts as the first report.
    /// - A holder that reports within `limit` is always renewed. Choose a
    ///   `limit` well above the longest step between two reports: a machine
    ///   that stalls delays reports too.
    /// - A report after the limit, while the lease is still valid, resumes the
    ///   renewals.
    /// - Reports from all views and threads count alike. To watch several
    ///   threads, report from the thread that waits for the others.
    /// - Reports cost no request, and renewals as many as without this option.
    ///
    /// A [`fixed_lease`](Self::fixed_lease) is not renewed, so the two options
    /// exclude each other. A guard of a [`Reentrant`](crate::Reentrant) handle
    /// has the limit of the handle's first guard. While a
    /// [`MultiLock`](crate::MultiLock) waits for further locks, it need not
    /// report. With [local hand-off](Self::local_handoff), each holder has the
    /// limit of its own acquire.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn copy(table: &str) {}
    /// let backup = client.mutex("backup").lock();
    /// backup
    ///     .progress_within(Duration::from_secs(300))
    ///     .run(|lease| async move {
    ///         for table in ["users", "orders"] {
    ///             copy(table).await;
    ///             lease.progress();
    ///         }
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn progress_within(mut self, limit: Duration) -> Self {
        self.options().progress_within = Some(limit);
        self
    }

    /// Requires `count` replicas to acknowledge the acquire and every renewal,
    /// each within `timeout`.
    ///
    /// Without it, a failover can grant the lock twice. With [`Replicas::All`],
    /// no lock can be acquired while a replica is down. The clocks of master
    /// and replicas must agree within a hundredth of the lease plus 2 ms,
    /// because the end of a lease replicates as a point in time: a promoted
    /// replica with a clock that is ahead frees the lock early.
    ///
    /// An acquire that is not acknowledged in time is released and fails with
    /// [`Error::NotReplicated`]. A renewal that is not acknowledged leaves the
    /// deadline unchanged. If the server has no replicas at all, the acquire
    /// fails at once with [`Error::Invalid`].
    ///
    /// The option costs one more round trip and a separate connection.
    /// `timeout` must be shorter than the lease and `at_most`. The mutex of a
    /// [`Quorum`](crate::Quorum) does not have this option.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// use leasehold::Replicas;
    ///
    /// let limit = Duration::from_millis(200);
    /// let payment = client.mutex("payment:42").lock();
    /// let guard = payment.replicas(Replicas::All, limit).await?;
    /// # Ok(()) }
    /// ```
    pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
        let replicas = count.into();
        self.options().replica_ack = Some(ReplicaAck { replicas, timeout });
        self
    }

    /// Allows or forbids local hand-off; allowed by default.
    ///
    /// With local hand-off, tasks of one client that wait for the same lock
    /// pass it to each other without a request, each with its own token. It
    /// applies to a [`Mutex`](crate::Mutex#local-hand-off) and to a
    /// [`FairMutex`](crate::FairMutex).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // Every holder is granted the lock by the server, as an audit requires.
    /// let guard = client.mutex("ledger").lock().local_handoff(false).await?;
    /// # Ok(()) }
    /// ```
    pub fn local_handoff(mut self, allowed: bool) -> Self {
        self.options().local_handoff = allowed;
        self
    }

    /// Stores a note with the lock that [`Client::inspect`] and the CLI show,
    /// and that a waiter finds in [`Error::Timeout`]; at most 256 bytes.
    ///
    /// Every client of the server can read it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let build = client.mutex("build").lock().note("release 1.4");
    /// let guard = build.await?;
    /// # Ok(()) }
    /// ```
    ///
    /// [`Client::inspect`]: crate::Client::inspect
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.options().note = text.into();
        self
    }

    /// Acquires the lock, and blocks this thread until it is granted or the
    /// acquire fails; see [`Pending::wait`].
    ///
    /// # Errors
    ///
    /// Those of [`Acquire`], and those of [`Pending::wait`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let report = client.mutex("report");
    /// std::thread::spawn(move || {
    ///     let guard = report.lock().wait()?;
    ///     println!("this thread has token {}", guard.token());
    ///     guard.release().wait()
    /// });
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<Guard<M>, Error>
    where
        M: 'static,
    {
        self.into_future().wait()
    }

    /// Acquires the lock, runs `work`, and releases the lock on every exit
    /// path.
    ///
    /// If the lease is lost, the work is dropped at the next await point, where
    /// only destructors clean up, and the call fails. If `work` panics, the
    /// lock is released before the panic resumes. A thread uses
    /// [`run_blocking`](Self::run_blocking).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock in the
    /// background.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if the lease is lost
    /// before the work completes. The work may have taken effect then; the
    /// output is dropped. A release that fails continues in the background, and
    /// is no error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Token};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn sell_one(token: Token) -> u32 { 0 }
    /// let coupon = client.mutex("coupon:42").lock();
    /// let left = coupon
    ///     .timeout(Duration::from_secs(1))
    ///     .run(|lease| async move { sell_one(lease.token()).await })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Lease<M>) -> W,
        W: Future,
        M: 'static,
    {
        let guard = self.await?;
        guard.run(work).await
    }

    /// Runs `work` as [`run`](Self::run) does, or returns `None` if the lock is
    /// busy and this acquire doesn't wait.
    ///
    /// Use it with `try_lock` for work that only one process should do. Any
    /// other error remains an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock in the
    /// background.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run), except for [`Error::Busy`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn rebuild() {}
    /// let cache = client.mutex("cache").try_lock();
    /// match cache.run_or_skip(|_lease| rebuild()).await? {
    ///     Some(()) => println!("rebuilt"),
    ///     None => println!("another process rebuilds it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run_or_skip<R, W>(self, work: R) -> Result<Option<W::Output>, Error>
    where
        R: FnOnce(Lease<M>) -> W,
        W: Future,
        M: 'static,
    {
        match self.run(work).await {
            Err(Error::Busy { .. }) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Acquires the lock, runs `work` on this thread, and releases the lock on
    /// every exit path.
    ///
    /// **The work is not cancelled if the lease is lost.** It must call
    /// [`Lease::check`] itself before every effect. The call fails once the
    /// work has returned. If `work` panics, the lock is released before the
    /// panic resumes.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait), and [`Error::Lost`] if the lease is lost
    /// before the work returns.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Token};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn write(page: u32, token: Token) {}
    /// client.mutex("report").lock().run_blocking(|lease| {
    ///     for page in 1..=10 {
    ///         lease.check()?;
    ///         write(page, lease.token());
    ///     }
    ///     Ok::<_, Error>(())
    /// })??;
    /// # Ok(()) }
    /// ```
    pub fn run_blocking<T>(self, work: impl FnOnce(&Lease<M>) -> T) -> Result<T, Error>
    where
        M: 'static,
    {
        let guard = self.wait()?;
        let lease = guard.lease();
        let output = catch_unwind(AssertUnwindSafe(|| work(&lease)));
        let in_time = lease.check();
        conclude(Some(output), in_time, guard.release().wait())
    }
}

impl<M> Drop for Acquire<M> {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            let name = request.kind.as_ref().map_or("", |kind| kind.name());
            tracing::warn!(
                lock = name,
                caller = %request.options.caller,
                "nothing was acquired: the acquire was neither awaited nor waited for"
            );
        }
    }
}

impl<M> std::fmt::Debug for Acquire<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let options = self.request.as_ref().map(|request| &request.options);
        f.debug_tuple("Acquire").field(&options).finish()
    }
}

impl From<Acquire> for Acquire<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(exclusive: Acquire) -> Self {
        Self::new(exclusive.into_request())
    }
}

impl<M: 'static> IntoFuture for Acquire<M> {
    type Output = Result<Guard<M>, Error>;
    type IntoFuture = Pending<'static, Guard<M>>;

    fn into_future(self) -> Self::IntoFuture {
        let request = self.into_request();
        let runtime = request.engine.runtime().clone();
        match request.acquire() {
            Ok(acquire) => Pending::new(&runtime, acquire),
            Err(error) => Pending::failed(error),
        }
    }
}

impl AcquireRequest {
    /// Returns the future that acquires the lock.
    ///
    /// # Errors
    ///
    /// The reason why the name is invalid.
    // A block over destructured fields instead of an `async fn`, which would
    // store each argument twice. An acquire allocates one future, and one below
    // 1 KiB is cheap: glibc caches such blocks per thread.
    pub(super) fn acquire<M>(
        self,
    ) -> Result<impl Future<Output = Result<Guard<M>, Error>> + Send, Error> {
        let Self {
            engine,
            kind,
            mut options,
            reentry,
        } = self;
        let kind = kind?;
        Ok(async move {
            options.add_trace_parent();
            Ok(match reentry {
                Some(reentry) => {
                    let entering = reentry.enter(&engine, &kind, &options);
                    Guard::entering(Box::pin(entering).await?)
                }
                None => Guard::new(engine.acquire(&kind, &options).await?),
            })
        })
    }
}

//! The guard of a held lock.

use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use super::context::{Context, error_of};
use super::keeper::KeeperRuntime;
use super::lease::{Exclusive, Lease, Shared};
use super::lost::Lost;
use super::owned::OwnedLease;
use super::pending::Pending;
use super::report::report_loss;
use super::state::{EndReason, LeaseState};
use crate::backend::RequestError;
use crate::error::{Error, Loss};
use crate::options::validate_lease;
use crate::owner::Token;
use crate::protocol::{Call, RenewReply};

/// A held lock. Dropping it releases the lock in the background.
///
/// A guard is valid until the [deadline](Lease::deadline), which every
/// confirmed renewal moves. If renewals fail, [`lost`](Self::lost) resolves
/// *before* the server can grant the lock to another client. No guard can stop
/// code that is suspended between a check and an effect: send the
/// [`token`](Lease::token) with every write, and let the resource reject
/// smaller ones.
///
/// Bind a guard to a name such as `_guard`. `let _ =` drops it at once, and
/// rustc says so only with `#![warn(let_underscore_drop)]`.
///
/// A guard is `Send`, borrows nothing and cannot be cloned. Pass a
/// [`lease`](Self::lease) to the code that does the work.
///
/// `M` says who else can hold the lock: [`Exclusive`], which you need not
/// write, or [`Shared`] for permits and readers. Guards of Redisson's locks
/// without tokens are `Unfenced`, with the feature `redisson`.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error, Token};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn ship(order: u32, token: Token) {}
/// let guard = client.mutex("orders").lock().await?;
/// for order in 1..=3 {
///     guard.check()?; // by the clock alone, without a request
///     ship(order, guard.token()).await;
/// }
/// guard.release().await?; // fails if the lock was lost before
/// # Ok(()) }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped: bind it to a name such as `_guard`; `let _ =` drops it at once"]
pub struct Guard<M = Exclusive> {
    owned: GuardLease,
    lease: Lease<M>,
    /// Present for a reentrant handle. Dropped after `owned`.
    _entry: Option<Entry>,
}

impl<M> Guard<M> {
    /// Creates the only guard of `owned`.
    pub(crate) fn new(owned: OwnedLease) -> Self {
        Self::of(GuardLease::Sole(owned), None)
    }

    /// Creates one of several guards that share `owned`.
    pub(crate) fn entering(owned: Arc<OwnedLease>) -> Self {
        let entry = Entry::new(&owned);
        Self::of(GuardLease::Reentrant(owned), Some(entry))
    }

    fn of(owned: GuardLease, entry: Option<Entry>) -> Self {
        Self {
            lease: owned.view(),
            owned,
            _entry: entry,
        }
    }

    /// Ends all views of this guard, and returns one that is shared. Views of
    /// a downgraded writer must not report that they exclude readers. `None` if
    /// there is another guard, which would still do so.
    fn shared_anew<N>(self) -> Option<Guard<N>> {
        // From now on, a reentrant handle no longer finds it.
        let mut owned = self.owned.into_sole()?;
        owned.end_views();
        Some(Guard::of(GuardLease::Sole(owned), self._entry))
    }

    /// Returns what the server stores for this acquisition.
    pub(crate) fn value(&self) -> &[u8] {
        &self.owned.state.value
    }

    /// Gives the views of this guard, and those of later guards of the same
    /// handle, the larger token of another server. All later holders must have
    /// a larger one.
    pub(crate) fn set_token(&mut self, token: Token) {
        self.lease.state().record_token(token);
        self.lease.set_token(token);
    }

    /// Returns the lease if there is no other guard.
    pub(super) fn into_owned(self) -> Option<OwnedLease> {
        self.owned.into_sole()
    }

    /// Returns the same guard with another marker.
    fn marked<N>(self) -> Guard<N> {
        Guard {
            lease: self.lease.marked(),
            owned: self.owned,
            _entry: self._entry,
        }
    }
}

impl<M> Guard<M> {
    /// Returns a view of this lease, to be passed to the protected work.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn write(page: u32) {}
    /// let guard = client.mutex("report").lock().await?;
    /// let lease = guard.lease();
    /// let writer = tokio::spawn(async move {
    ///     for page in 1..=10 {
    ///         lease.check()?;
    ///         write(page).await;
    ///     }
    ///     Ok::<_, Error>(())
    /// });
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn lease(&self) -> Lease<M> {
        self.lease.clone()
    }

    /// Checks, by the local clock alone, that the lease is still valid; see
    /// [`Lease::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] once the lease is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn delete(file: &str) {}
    /// let guard = client.mutex("cleanup").lock().wait()?;
    /// for file in ["a.tmp", "b.tmp"] {
    ///     guard.check()?;
    ///     delete(file);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.lease.check()
    }

    /// Reports that the protected work makes progress; see
    /// [`Lease::progress`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn delete(file: &str) {}
    /// let limit = Duration::from_secs(60);
    /// let lock = client.mutex("cleanup").lock().progress_within(limit);
    /// let guard = lock.await?;
    /// for file in ["a.tmp", "b.tmp"] {
    ///     delete(file).await;
    ///     guard.progress();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn progress(&self) {
        self.lease.progress();
    }

    /// Returns the time until the deadline; zero once the lease has ended.
    /// Every confirmed renewal moves the deadline.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("report").lock().await?;
    /// if guard.remaining() < Duration::from_secs(5) {
    ///     eprintln!("renewals are late");
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// Returns a future that resolves when the lease is lost or released. A
    /// thread [waits](Lost::wait_timeout) for it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # let mut child = std::process::Command::new("x").spawn().unwrap();
    /// let guard = client.mutex("import").lock().await?;
    /// let lost = guard.lost();
    /// tokio::spawn(async move {
    ///     if let Some(loss) = lost.await {
    ///         eprintln!("stopping the import: {loss}");
    ///         child.kill().expect("it runs");
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> Lost {
        self.lease.lost()
    }

    /// Returns how long the caller waited for another holder; `None` if the
    /// lock was free. All guards of a [`Reentrant`](crate::Reentrant) handle
    /// return what the first one waited.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("report").lock().await?;
    /// if let Some(waited) = guard.waited() {
    ///     println!("waited {waited:?} for `{}`", guard.name());
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.owned.waited()
    }

    /// Calls `callback` once if this lease is lost, immediately if it is lost
    /// already.
    ///
    /// The callback is not called if the lock is released before, or if the
    /// client's last handle is dropped. It runs on a thread of its own, where
    /// it can block and call every method of this crate. A panic in it has no
    /// other effect. Up to 64 callbacks of a client run at the same time;
    /// others wait.
    ///
    /// # Limitations
    ///
    /// - A callback that is not called is dropped on the client's own thread.
    ///   The destructors of captured values must not block.
    /// - A callback can be late: only [`check`](Self::check) reports a loss
    ///   without delay.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # let mut child = std::process::Command::new("x").spawn().unwrap();
    /// let guard = client.mutex("import").lock().wait()?;
    /// guard.on_lost(move |loss| {
    ///     eprintln!("stopping the import: {loss}");
    ///     let _ = child.kill();
    /// });
    /// # Ok(()) }
    /// ```
    pub fn on_lost(&self, callback: impl FnOnce(Loss) + Send + 'static) {
        let lost = self.lost();
        self.runtime().call_back(async move {
            let loss = lost.await?;
            Some(move || callback(loss))
        });
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.owned.context.check_process()
    }

    /// Extends the lease to at least `lease` from now, whether it is renewed or
    /// fixed, but never beyond [`at_most`](crate::Acquire::at_most).
    ///
    /// A holder that is [stuck](crate::Acquire::progress_within) keeps the
    /// extended lease to its end. Extending it is no report of progress.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lease unchanged or extended.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if this owner no longer holds the lock, and
    /// [`Error::Invalid`] if `lease` is out of range. After any other error the
    /// lease is unchanged, and the call can be repeated.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("migration").lock().await?;
    /// // Survives an outage of ten minutes while the tables are rewritten.
    /// guard.extend(Duration::from_secs(600)).await?;
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, lease: Duration) -> Pending<'_, ()> {
        Pending::new(self.runtime(), self.extend_now(lease))
    }

    async fn extend_now(&self, lease: Duration) -> Result<(), Error> {
        let state = self.lease.state();
        validate_lease(lease, state.max_lease)?;
        self.check_process()?;
        self.check()?;
        let Some(lease) = state.clamp_to_max_hold(lease) else {
            return self.check();
        };
        self.request_lease(lease).await
    }

    /// Sends a call, which replicas acknowledge if they must acknowledge the
    /// lock.
    pub(crate) async fn send_acknowledged<R>(&self, call: Call<R>) -> Result<R, Error> {
        self.check_process()?;
        let (state, context) = (self.lease.state(), &self.owned.context);
        let sending = async {
            context.check_open()?;
            let sent = context.send_acknowledged(state.kind.slot(), call, state.replica_ack);
            sent.await
        };
        let sent = sending.await;
        sent.map_err(|error| error_of(error, state.kind.name()))
    }

    /// Renews the lease as the keeper does, and fails if the server no longer
    /// holds the lock for this owner.
    pub(crate) async fn renew_now(&self) -> Result<(), Error> {
        self.check_process()?;
        self.check()?;
        match self.lease.state().renewal_length() {
            Some(lease) => self.request_lease(lease).await,
            None => self.check(),
        }
    }

    async fn request_lease(&self, lease: Duration) -> Result<(), Error> {
        let replica_ack = self.lease.state().replica_ack;
        match self.owned.request_lease(lease, replica_ack).await {
            Ok(RenewReply::Renewed | RenewReply::OnMajority) => {}
            Ok(RenewReply::NotOwner) => self.revoked(),
            Err(error) => return Err(error_of(error, self.name())),
        }
        self.check()
    }

    /// Lets `at_least` begin, for a lock that was acquired as a part.
    pub(crate) fn begin_at_least(&self, at_least: Duration) {
        self.owned.state.begin_at_least(at_least);
    }

    /// Returns the runtime for the requests of blocking callers.
    pub(crate) fn runtime(&self) -> &KeeperRuntime {
        &self.owned.context.keeper.runtime
    }

    /// Shares the lock with other holders, if this is a writer's guard.
    pub(crate) async fn downgrade_as<N>(self) -> Result<Guard<N>, Error> {
        self.check_process()?;
        self.check()?;
        // First: no view may seem exclusive once the server lets readers in.
        let Some(guard) = self.shared_anew() else {
            let why = "another guard of the reentrant handle holds the lock";
            return Err(Error::invalid("downgrade", why));
        };
        let reply = match guard.send(guard.downgrade_call()?).await {
            // A downgrade is idempotent, so an unnoticed disconnect costs one
            // more request.
            Err(error) if error.is_transient() => guard.send(guard.downgrade_call()?).await,
            reply => reply,
        };
        match reply {
            Ok(RenewReply::Renewed | RenewReply::OnMajority) => {}
            Ok(RenewReply::NotOwner) => guard.revoked(),
            Err(error) => return Err(error_of(error, guard.name())),
        }
        guard.check()?;
        Ok(guard)
    }

    fn downgrade_call(&self) -> Result<Call<RenewReply>, Error> {
        let state = self.lease.state();
        let call = state.kind.downgrade(&state.value);
        call.ok_or_else(|| Error::invalid("downgrade", "only a writer can become a reader"))
    }

    async fn send<R>(&self, call: Call<R>) -> Result<R, RequestError> {
        let slot = self.lease.state().kind.slot();
        self.owned.context.send(slot, call).await
    }

    /// Ends a lease that another client revoked.
    fn revoked(&self) {
        let (state, loss) = (self.lease.state(), Loss::Revoked);
        if state.end(EndReason::Lost(loss)) {
            report_loss(state, loss, &self.owned.context.observers);
        }
    }

    /// Releases the lock, and fails if the lease was lost before: the protected
    /// work must then start over.
    ///
    /// A guard of a [`Reentrant`](crate::Reentrant) handle that is not the last
    /// one only ends; the other guards keep the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future moves the release to the background, as dropping the
    /// guard does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost before. [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply; the client then
    /// retries in the background, and the lock is free at the latest when the
    /// lease expires.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("transfer").lock().await?;
    /// // …
    /// match guard.release().await {
    ///     Err(Error::Lost { loss, .. }) => println!("start over: {loss}"),
    ///     outcome => outcome?,
    /// }
    /// # Ok(()) }
    /// ```
    pub fn release(self) -> Pending<'static, ()>
    where
        M: 'static,
    {
        let runtime = self.runtime().clone();
        Pending::new(&runtime, self.release_now())
    }

    pub(crate) async fn release_now(self) -> Result<(), Error> {
        match self.owned.into_sole() {
            Some(owned) => owned.release().await,
            // Other guards of the handle keep the lock, unless it is lost.
            None => self.lease.check(),
        }
    }

    /// Runs `work` under this lock, drops it if the lease is lost, and
    /// releases the lock.
    pub(crate) async fn run<R, W>(self, work: R) -> Result<W::Output, Error>
    where
        R: FnOnce(Lease<M>) -> W,
        W: Future,
    {
        let (output, in_time) = self.hold_for(work).await;
        let runtime = self.runtime().clone();
        let released = Pending::new(&runtime, self.release_now()).await;
        conclude(output, in_time, released)
    }

    /// Runs `work` while the lease is valid. Returns its output, or the panic,
    /// unless the lease ended first, and whether the lease is still valid.
    pub(crate) async fn hold_for<R, W>(
        &self,
        work: R,
    ) -> (Option<std::thread::Result<W::Output>>, Result<(), Error>)
    where
        R: FnOnce(Lease<M>) -> W,
        W: Future,
    {
        let lease = self.lease.clone();
        let span = tracing::debug_span!(
            target: "leasehold",
            "leasehold.hold",
            lock.name = lease.name(),
            lock.kind = lease.state().kind.label(),
            lock.token = self.owned.token().map(tracing::field::display),
            lock.outcome = tracing::field::Empty,
        );
        let passed_on = lease.clone();
        // The work is created inside the span too: it may start at once. A
        // panic of the closure is caught like one of the work.
        let work = async move { work(passed_on).await }.instrument(span.clone());
        let output = until_lost(work, lease.ended()).await;
        let in_time = lease.check();
        span.record(
            "lock.outcome",
            if in_time.is_ok() { "released" } else { "lost" },
        );
        (output, in_time)
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lease.name()
    }
}

/// Runs `work` and catches a panic in it. Drops it and returns `None` if `lost`
/// completes first.
pub(crate) async fn until_lost<W: Future, L: Future>(
    work: W,
    lost: L,
) -> Option<std::thread::Result<W::Output>> {
    let mut work = Box::pin(work);
    let unwinding = poll_fn(|context| {
        let poll = || work.as_mut().poll(context);
        // Caught, so that the lock is released before the panic continues.
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    tokio::select! {
        biased;
        // The loss first: work that is ready at the same time came too late.
        _ = lost => None,
        output = unwinding => Some(output),
    }
}

/// Returns the result of work under a lock, or resumes the panic. `output` is
/// `None` if the work was dropped, `in_time` whether the lease was valid when
/// the work ended.
pub(crate) fn conclude<T>(
    output: Option<std::thread::Result<T>>,
    in_time: Result<(), Error>,
    released: Result<(), Error>,
) -> Result<T, Error> {
    // A loss is what `in_time` reports, or happened after the work.
    if let Err(error) = released
        && !matches!(error, Error::Lost { .. })
    {
        tracing::warn!(%error, "release continues in the background");
    }
    match output {
        Some(Err(panic)) => resume_unwind(panic),
        Some(Ok(value)) => in_time.map(|()| value),
        // The lease has ended, which `in_time` reports.
        None => in_time.and(Err(Error::ShutDown)),
    }
}

impl From<Guard> for Guard<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(guard: Guard) -> Self {
        guard.marked()
    }
}

impl Guard {
    /// Returns the fencing token, for the resource that must reject stale
    /// writes; see [`Lease::token`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn write(report: &str, token: leasehold::Token) {}
    /// let guard = client.mutex("report").lock().await?;
    /// write("42 pages", guard.token()).await;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.lease.token()
    }

    /// Converts a writer's guard into a reader's, without letting another
    /// writer in.
    ///
    /// Readers at the head of the queue are granted the lock. The guard keeps
    /// its token; those readers have larger ones. Leases that were cloned from
    /// this guard report that it was released, because they no longer exclude
    /// readers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if this is not a guard from
    /// [`RwLock::write`](crate::RwLock::write), and [`Error::Lost`] if the
    /// lease was lost. After any error, the lock is released in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn publish() {}
    /// let writer = client.rw_lock("catalogue").write().await?;
    /// // … change the catalogue, then let readers see it while we publish.
    /// let reader = writer.downgrade().await?;
    /// publish().await;
    /// reader.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn downgrade(self) -> Pending<'static, Guard<Shared>> {
        let runtime = self.runtime().clone();
        Pending::new(&runtime, self.downgrade_as())
    }
}

impl Guard<Shared> {
    /// Returns the fencing token; see [`Shared`] for what a resource can do
    /// with it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let permit = client.semaphore("uploads", 3).acquire().await?;
    /// // For a log. A resource must not reject the smaller token.
    /// println!("uploading with token {}", permit.token());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.lease.token()
    }
}

impl<M> AsRef<Lease<M>> for Guard<M> {
    fn as_ref(&self) -> &Lease<M> {
        &self.lease
    }
}

impl<M> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

/// The lease behind a guard.
enum GuardLease {
    Sole(OwnedLease),
    /// Shared by all guards of a reentrant handle.
    Reentrant(Arc<OwnedLease>),
}

impl GuardLease {
    /// Returns the lease if there is no other guard.
    fn into_sole(self) -> Option<OwnedLease> {
        match self {
            Self::Sole(owned) => Some(owned),
            Self::Reentrant(shared) => Arc::into_inner(shared),
        }
    }
}

impl Deref for GuardLease {
    type Target = OwnedLease;

    fn deref(&self) -> &OwnedLease {
        match self {
            Self::Sole(owned) => owned,
            Self::Reentrant(shared) => shared,
        }
    }
}

/// One guard of a reentrant handle. Creating and dropping it changes the hold
/// count that the server stores.
struct Entry {
    state: Arc<LeaseState>,
    context: Arc<Context>,
}

impl Entry {
    fn new(owned: &OwnedLease) -> Self {
        let (state, context) = (owned.state.clone(), owned.context.clone());
        if state.enter() > 1 {
            context.keeper.set_hold_count(state.clone());
        }
        Self { state, context }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The last guard writes nothing: the release deletes the owner.
        if self.state.leave() > 0 {
            self.context.keeper.set_hold_count(self.state.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only if guards can be sent, shared and stored.
    #[test]
    fn guards_are_send_sync_and_static() {
        fn check<T: Send + Sync + Unpin + 'static>() {}
        check::<Guard>();
        check::<Lease>();
        check::<Error>();
    }
}

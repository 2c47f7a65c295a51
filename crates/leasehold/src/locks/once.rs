//! Jobs that run at most once per tick, on hosts whose clocks differ.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::AcquireRequest;
use super::handle::Handle;
use super::tick::Tick;
use crate::error::Error;
use crate::info::Run;
use crate::lease::{Engine, Guard, Lease, Pending, RetryDelay, conclude};
use crate::options::{AcquireOptions, MAX_NOTE_LEN, check_len};
use crate::owner::Token;
use crate::protocol::{Call, Claim, Keyspace, OnceCalls, SingleKey};

/// How many ticks the last run of a job is recorded. A host whose clock is
/// behind asks for a tick up to one period late.
const RECORDED_TICKS: u32 = 3;

/// The shortest time for which a run is recorded. A process can be paused for
/// long between reading the clock and claiming the tick.
const MIN_LIFE: Duration = Duration::from_secs(86_400);

/// The shortest period.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// The longest period.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 86_400);

/// The latest start of a tick, in milliseconds since 1970. Lua's numbers are
/// exact up to here.
const MAX_START_MILLIS: u128 = 1 << 53;

/// A job that runs at most once per tick; see
/// [`Client::once`](crate::Client::once).
///
/// The first host that starts the job for a tick runs it. The others learn
/// which host runs it, or has run it, and how that ended.
///
/// # Limitations
///
/// - **At most once is not exactly once.** Work that has started counts as a
///   run, also if it fails or the runner crashes: no host repeats it.
///   [`last`](Self::last) returns how it ended, and no report after a crash.
///   [`reset`](Self::reset) lets the tick run again.
/// - **The record is as durable as the server.** A server that loses data
///   forgets which tick ran.
/// - **A tick is recorded for three periods, and at least for a day.** A handle
///   is for one tick: create a new one for the next.
/// - The hosts' clocks must differ by less than one period. A host that is
///   further behind asks for a tick that is over, and does not run it. A tick
///   that is more than one period ahead of the server's clock is refused.
/// - The next tick does not start while a run is longer than the period.
/// - A period has 100 ms to 100 days.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn send_report() -> u32 { 42 }
/// use leasehold::{OnceOutcome, Tick};
///
/// let day = Duration::from_secs(86_400);
/// let report = client.once("noon-report", Tick::now(day));
/// match report.run(|_lease| send_report()).await? {
///     OnceOutcome::Ran(pages) => println!("reported {pages} pages"),
///     OnceOutcome::AlreadyRan(run) => println!("{} has run it", run.process),
///     _ => println!("the job is busy"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Once {
    handle: Handle<SingleKey>,
    /// `None` if the name is invalid, which the handle reports.
    calls: Option<Arc<OnceCalls>>,
    tick: Tick,
    note: String,
    progress_within: Option<Duration>,
}

/// What became of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum OnceOutcome<T> {
    /// This call ran the job, or started it.
    Ran(T),
    /// Another call runs this tick, or has run it or a later one.
    AlreadyRan(Run),
    /// Another process holds the lock of the job: a run of an earlier tick has
    /// not ended, or a run of this tick starts just now.
    Busy,
}

impl Once {
    pub(crate) fn new(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        name: &str,
        tick: Tick,
        options: &AcquireOptions,
    ) -> Self {
        let keys = keyspace.lock(name);
        let calls = keys.as_ref().ok().map(OnceCalls::new);
        let kind = keys.map(SingleKey::new);
        Self {
            handle: Handle::new(engine, name, kind, options),
            calls: calls.map(Arc::new),
            tick,
            note: String::new(),
            progress_within: None,
        }
    }

    /// Stores a note with the run; at most 256 bytes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn import() {}
    /// # let hour = Tick::now(Duration::from_secs(3600));
    /// let import_job = client.once("import", hour).note("release 1.4");
    /// import_job.run(|_lease| import()).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }

    /// Frees the job's lock for the next tick if the work is stuck: if it does
    /// not call [`Lease::progress`] again within `limit`; see
    /// [`Acquire::progress_within`](crate::Acquire::progress_within). The tick
    /// is not repeated.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn import(part: u32) {}
    /// # let hour = Tick::now(Duration::from_secs(3600));
    /// let job = client.once("import", hour);
    /// job.progress_within(Duration::from_secs(60))
    ///     .run(|lease| async move {
    ///         for part in 1..=10 {
    ///             import(part).await;
    ///             lease.progress();
    ///         }
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn progress_within(mut self, limit: Duration) -> Self {
        self.progress_within = Some(limit);
        self
    }

    /// Runs `work` if no other call has run this tick, and records that it
    /// completed. A thread calls [`start`](Self::start) instead.
    ///
    /// The report is `completed` even if the work returns an `Err`.
    /// To record a failure, call [`start`](Self::start) and
    /// [`finish`](OnceGuard::finish).
    ///
    /// While the work runs, this process holds the [`Mutex`](crate::Mutex) of
    /// the same name. If the lease is lost, the work is dropped at the next
    /// await point, and the tick is not repeated. The end of the run is
    /// recorded before the lock is released, so the next host that finds the
    /// lock free sees it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. The tick is not repeated if it was
    /// claimed.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, [`Error::Invalid`] if the tick is too far
    /// ahead, and [`Error::Lost`] if the lease is lost before the work
    /// completes. After an error, the tick may be claimed, and is then not
    /// repeated.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, OnceOutcome, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn send_report() {}
    /// let hour = Tick::now(Duration::from_secs(3600));
    /// let report = client.once("hourly-report", hour);
    /// if let OnceOutcome::Busy = report.run(|_lease| send_report()).await? {
    ///     println!("the last hour's report still runs");
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run<R, W>(
        &self,
        work: R,
    ) -> impl Future<Output = Result<OnceOutcome<W::Output>, Error>> + use<R, W>
    where
        R: FnOnce(Lease) -> W,
        W: Future,
    {
        let (once, request) = (self.clone(), self.request());
        async move {
            let engine = once.handle.engine.clone();
            let OnceGuard { guard, once } = match engine.pending(once.start_with(request)).await? {
                OnceOutcome::Ran(started) => started,
                OnceOutcome::AlreadyRan(run) => return Ok(OnceOutcome::AlreadyRan(run)),
                OnceOutcome::Busy => return Ok(OnceOutcome::Busy),
            };
            let (output, in_time) = guard.hold_for(work).await;
            let has_panicked = matches!(output, Some(Err(_)));
            let report = match &in_time {
                Ok(()) => "completed".to_owned(),
                Err(error) => error.to_string(),
            };
            let ending = async {
                // Before the release: the next host that finds the lock free
                // must see how the run ended.
                if !has_panicked {
                    // The work has ended, and cannot be stuck.
                    let _exempt = guard.lease().exempt_from_progress();
                    once.report(guard.token(), &report).await?;
                }
                Ok(guard.release_now().await)
            };
            let released = engine.pending(ending).await?;
            conclude(output, in_time, released).map(OnceOutcome::Ran)
        }
    }

    /// Claims the tick without running anything, for threads and for work that
    /// reports its own end with [`OnceGuard::finish`].
    ///
    /// Poll the future until it completes. Once it has acquired the lock, it
    /// keeps the lock until it is polled or dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the tick claimed, and then not repeated.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Invalid`] if the tick is too far
    /// ahead. After an error, the tick may be claimed, and is then not
    /// repeated.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, OnceOutcome, Tick};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn import() -> u32 { 42 }
    /// let hour = Tick::now(Duration::from_secs(3600));
    /// let job = client.once("import", hour);
    /// if let OnceOutcome::Ran(run) = job.start().wait()? {
    ///     let rows = import();
    ///     run.finish(&format!("{rows} rows")).wait()?;
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn start(&self) -> Pending<'static, OnceOutcome<OnceGuard>> {
        let (once, request) = (self.clone(), self.request());
        self.handle
            .engine
            .pending(async move { once.start_with(request).await })
    }

    async fn start_with(&self, request: AcquireRequest) -> Result<OnceOutcome<OnceGuard>, Error> {
        self.validate()?;
        let guard = match request.acquire()?.await {
            Err(Error::Busy { .. }) => {
                return Ok(match self.last_run().await? {
                    Some(run) if self.is_run_by(&run) => OnceOutcome::AlreadyRan(run),
                    _ => OnceOutcome::Busy,
                });
            }
            acquired => acquired?,
        };
        let claim = match self.claim(&guard).await {
            Ok(claim) => claim,
            Err(error) => {
                // The claim may have arrived. Nothing started, so the tick is
                // not used up if we can reach the server now.
                let _ = self.forget(&guard).await;
                return Err(error);
            }
        };
        match claim {
            Claim::Claimed => {
                let once = self.clone();
                // The work starts now, not when the lock was acquired.
                guard.progress();
                let started = OnceGuard { guard, once };
                let Err(lost) = started.guard.check() else {
                    return Ok(OnceOutcome::Ran(started));
                };
                // Nothing may start without the lock. If the server cannot be
                // reached, the tick stays used up.
                let _ = started.cancel_now().await;
                return Err(lost);
            }
            Claim::TooEarly(ahead) => return Err(self.too_early(ahead)),
            Claim::AlreadyRan => {}
        }
        // Awaited, so that the next tick does not find the lock busy. After a
        // failure the release continues in the background.
        let _ = guard.release_now().await;
        match self.last_run().await? {
            Some(run) => Ok(OnceOutcome::AlreadyRan(run)),
            // Its record expired just now.
            None => Ok(OnceOutcome::Busy),
        }
    }

    /// Returns the last run of any tick, or `None` if none is recorded.
    ///
    /// A run is recorded for three periods, and at least for a day.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # let hour = Tick::now(Duration::from_secs(3600));
    /// if let Some(run) = client.once("import", hour).last().await? {
    ///     println!("{} ran tick {}: {:?}", run.process, run.tick, run.report);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn last(&self) -> Pending<'_, Option<Run>> {
        self.handle.engine.pending(self.last_run())
    }

    async fn last_run(&self) -> Result<Option<Run>, Error> {
        Ok(self.recorded().await?.map(|(run, _)| run))
    }

    /// Forgets the last run, of any tick, and returns it. The tick may then run
    /// again, for example after the work has failed.
    ///
    /// A run that has not ended continues, and holds its lock. The tick can run
    /// again once it has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the run recorded or forgotten.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let day = Duration::from_secs(86_400);
    /// let report = client.once("noon-report", Tick::now(day));
    /// if let Some(run) = report.reset().await? {
    ///     println!("it may run again after {:?}", run.report);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn reset(&self) -> Pending<'_, Option<Run>> {
        self.handle.engine.pending(self.forget_last())
    }

    async fn forget_last(&self) -> Result<Option<Run>, Error> {
        // Only the run that we return is forgotten, not one that started since
        // we read.
        while let Some((run, token)) = self.recorded().await? {
            let calls = self.calls()?;
            let forget = calls.forget(token, life(run.period));
            if self.handle.send(|_| forget).await? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Returns whether a run is of this tick or of a later one.
    fn is_run_by(&self, run: &Run) -> bool {
        let start = u128::from(run.tick) * run.period.as_millis();
        start >= self.tick.start_millis()
    }

    fn too_early(&self, ahead: Duration) -> Error {
        let period = self.tick.period;
        let why = format!(
            "it starts {ahead:?} after the server's clock, more than the period of {period:?}"
        );
        Error::invalid("tick", why)
    }

    fn validate(&self) -> Result<(), Error> {
        let period = self.tick.period;
        if period < MIN_PERIOD || period > MAX_PERIOD {
            let why =
                format!("a period of {period:?} is not within {MIN_PERIOD:?} to {MAX_PERIOD:?}");
            return Err(Error::invalid("tick", why));
        }
        let start = self.tick.start_millis();
        if start > MAX_START_MILLIS {
            let why = format!("it starts {start} ms after 1970, above {MAX_START_MILLIS} ms");
            return Err(Error::invalid("tick", why));
        }
        check_len("note", &self.note, MAX_NOTE_LEN)
    }

    #[track_caller]
    fn request(&self) -> AcquireRequest {
        let mut request = self.handle.request();
        // A run belongs to one tick.
        request.options.waits = false;
        request.options.timeout = None;
        request.options.local_handoff = false;
        request.options.note.clone_from(&self.note);
        request.options.progress_within = self.progress_within;
        request
    }

    async fn claim(&self, guard: &Guard) -> Result<Claim, Error> {
        let calls = self.calls()?;
        self.repeat(guard, || {
            let Tick { number, period } = self.tick;
            calls.claim(number, period, guard.token(), &self.note, self.life())
        })
        .await
    }

    /// Gives the tick back that `guard` claimed.
    async fn forget(&self, guard: &Guard) -> Result<bool, Error> {
        let calls = self.calls()?;
        self.repeat(guard, || calls.forget(guard.token(), self.life()))
            .await
    }

    /// Sends a call until the server replies or the lease ends. A run can
    /// repeat each call: the token identifies it.
    async fn repeat<R>(&self, guard: &Guard, call: impl Fn() -> Call<R>) -> Result<R, Error> {
        let (mut delay, mut unknown) = (RetryDelay::new(), None);
        loop {
            match self.handle.send(|_| call()).await {
                Err(error) if error.is_transient() && guard.check().is_ok() => {
                    // It stays unknown, whatever happens to a repetition.
                    if matches!(error, Error::OutcomeUnknown(_)) {
                        unknown = Some(error);
                    }
                    delay.wait().await;
                }
                Err(error) => return Err(unknown.unwrap_or(error)),
                done => return done,
            }
        }
    }

    /// Records how a run ended. A report that does not arrive is missing.
    async fn report(&self, token: Token, report: &str) -> Result<(), Error> {
        let calls = self.calls()?;
        let finish = || calls.finish(token, report, self.life());
        let reply = match self.handle.send(|_| finish()).await {
            // A missing report invites an operator to repeat the run.
            Err(error) if error.is_transient() => self.handle.send(|_| finish()).await,
            reply => reply,
        };
        match reply {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(job = self.name(), "the record of the run is gone");
            }
            Err(error) => {
                tracing::warn!(job = self.name(), %error, "the end of the run is not recorded");
            }
        }
        Ok(())
    }

    async fn recorded(&self) -> Result<Option<(Run, Token)>, Error> {
        let calls = self.calls()?;
        self.handle.send(|_| calls.last()).await
    }

    fn life(&self) -> Duration {
        life(self.tick.period)
    }

    fn calls(&self) -> Result<Arc<OnceCalls>, Error> {
        self.handle.beside(&self.calls)
    }

    /// Returns the job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for Once {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Once")
            .field("name", &self.name())
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

/// Returns how long a run of a job with this period is recorded.
fn life(period: Duration) -> Duration {
    MIN_LIFE.max(period.saturating_mul(RECORDED_TICKS))
}

/// A run that [`Once::start`] started. Dropping it ends the run without a
/// report.
#[derive(Debug)]
#[must_use = "dropping it ends the run without a report"]
pub struct OnceGuard {
    guard: Guard,
    once: Once,
}

impl OnceGuard {
    /// Records how the run ended, in at most 256 bytes, and releases the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background. The report may
    /// be missing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the report is too long, [`Error::Lost`] if the
    /// lease was lost before, and any error of [`Guard::release`]. The lock is
    /// released in each case.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, OnceOutcome, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn import() -> u32 { 42 }
    /// # let hour = Tick::now(Duration::from_secs(3600));
    /// let job = client.once("import", hour);
    /// if let OnceOutcome::Ran(run) = job.start().await? {
    ///     let rows = import().await;
    ///     run.finish(&format!("{rows} rows")).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn finish(self, report: &str) -> Pending<'_, ()> {
        let runtime = self.guard.runtime().clone();
        Pending::new(&runtime, async move {
            check_len("report", report, MAX_NOTE_LEN)?;
            self.once.report(self.guard.token(), report).await?;
            self.guard.release_now().await
        })
    }

    /// Undoes the claim, for work that has not started, and releases the lock.
    /// The next call runs the tick, on any host.
    ///
    /// Do not cancel work that has started: it would run twice.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background. The tick may
    /// stay claimed, and is then not repeated.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server did
    /// not reply before the lease ended: the tick may stay claimed. Any error
    /// of [`Guard::release`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, OnceOutcome, Tick};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let day = Duration::from_secs(86_400);
    /// let import = client.once("import", Tick::now(day));
    /// if let OnceOutcome::Ran(run) = import.start().await? {
    ///     match std::process::Command::new("./import").status() {
    ///         Ok(status) => run.finish(&status.to_string()).await?,
    ///         // It has not started.
    ///         Err(_) => run.cancel().await?,
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn cancel(self) -> Pending<'static, ()> {
        let runtime = self.guard.runtime().clone();
        Pending::new(&runtime, self.cancel_now())
    }

    async fn cancel_now(self) -> Result<(), Error> {
        // Forgotten first, or the next holder would find that the tick has run.
        // Released in any case.
        let forgotten = self.once.forget(&self.guard).await;
        let released = self.guard.release_now().await;
        let _: bool = forgotten?;
        released
    }

    /// Returns a view of this run's lease, to be passed to the work.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Lease, OnceOutcome, Tick};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn import(lease: Lease) {}
    /// # let hour = Tick::now(Duration::from_secs(3600));
    /// let job = client.once("import", hour);
    /// if let OnceOutcome::Ran(run) = job.start().wait()? {
    ///     import(run.lease());
    ///     run.finish("completed").wait()?;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.guard.lease()
    }
}

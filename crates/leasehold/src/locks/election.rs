//! Leader election: one process of many leads, and the others follow.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use crate::error::Error;
use crate::info::Term;
use crate::lease::Pending;
use crate::lease::{Engine, Guard, Lease, RetryDelay, Watch};
use crate::options::AcquireOptions;
use crate::owner::Token;
use crate::protocol::{ElectionCalls, Keyspace, Kind, QueueParams, Queued};

/// An election: at most one process leads at a time.
///
/// The leader holds a [`FairMutex`](crate::FairMutex) of the same name, and
/// candidates wait for it. The CLI therefore shows the leader and the
/// candidates, and `leasehold release --force` deposes the leader.
///
/// A task [leads](Self::lead) with a future. A thread
/// [campaigns](Self::campaign) for a guard.
///
/// # Limitations
///
/// - **A leader that is paused does not know it was replaced.** The lease
///   expires, and another process leads, while the paused process still
///   believes that it leads. Send the epoch, which is [`Lease::token`], with
///   every write, and let the resource reject smaller ones.
/// - [`leader`](Self::leader) and [`changes`](Self::changes) are for routing
///   and for display. Only the lease of [`lead`](Self::lead) or the guard of
///   [`campaign`](Self::campaign) proves that this process leads.
/// - A leader that crashes is replaced when the lease expires. A shorter
///   [`lease`](Self::lease) replaces it sooner.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error, Token};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn schedule(epoch: Token) {}
/// let scheduler = client.election("scheduler").note("10.0.0.7:8080");
/// // Campaigns until it is elected, and again after each loss.
/// scheduler
///     .lead(|lease| async move {
///         loop {
///             schedule(lease.token()).await;
///         }
///     })
///     .await
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    handle: Handle<Queued>,
    /// `None` if the name is invalid, which the handle reports.
    calls: Option<Arc<ElectionCalls>>,
    note: String,
    lease: Option<Duration>,
    progress_within: Option<Duration>,
}

impl Election {
    pub(crate) fn new(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        name: &str,
        options: &AcquireOptions,
    ) -> Self {
        let keys = keyspace.queue(name);
        let calls = keys.as_ref().ok().cloned();
        let params = QueueParams {
            // A hand-off would change the leader without a trace on the server.
            local_handoff: false,
            hand_over: false,
            ..QueueParams::FAIR
        };
        let kind = keys.map(|keys| Queued::new(keys, params));
        Self {
            handle: Handle::new(engine, name, kind, options),
            calls: calls.map(|keys| Arc::new(ElectionCalls::new(keys))),
            note: String::new(),
            lease: None,
            progress_within: None,
        }
    }

    /// Sets the note that followers see while this process leads, such as an
    /// address; at most 256 bytes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let shard = client.election("shard:3").note("10.0.0.7:8080");
    /// let guard = shard.campaign().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }

    /// Sets how long the leader's lease lasts; the default is
    /// [`Connect::lease`](crate::Connect::lease).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // A leader that crashes is replaced after three seconds.
    /// let shard = client.election("shard:3").lease(Duration::from_secs(3));
    /// let guard = shard.campaign().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// Makes a stuck leader step down. A leader is stuck if it does not call
    /// [`Lease::progress`] again within `limit`; see
    /// [`Acquire::progress_within`](crate::Acquire::progress_within).
    ///
    /// The limit counts from the start of the term. [`lead`](Self::lead) drops
    /// the work when the lease is lost, as after any loss, if the task can be
    /// polled at all.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn schedule() {}
    /// let election = client.election("scheduler");
    /// let scheduler = election.progress_within(Duration::from_secs(60));
    /// scheduler
    ///     .lead(|lease| async move {
    ///         loop {
    ///             schedule().await;
    ///             lease.progress();
    ///         }
    ///     })
    ///     .await
    /// # }
    /// ```
    #[must_use]
    pub fn progress_within(mut self, limit: Duration) -> Self {
        self.progress_within = Some(limit);
        self
    }

    /// Campaigns until this process is elected, runs `work` while it leads, and
    /// resigns when the work completes.
    ///
    /// The work starts once the server has recorded the term. If the lease is
    /// lost, the work is dropped at the next await point, and this process
    /// campaigns again after a short random delay. `work` is thus called once
    /// for each term, so it clones what the future needs. This includes work
    /// that completes just after the lease was lost: its output is dropped. The
    /// campaign continues through a server outage, and like
    /// [`campaign`](Self::campaign) while the future is not polled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and resigns in the background.
    ///
    /// # Errors
    ///
    /// [`Error::ShutDown`] once the client is shut down, and any error that is
    /// not [transient](Error::is_transient), such as [`Error::Denied`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Token};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn migrate(epoch: Token, steps: Vec<String>) {}
    /// let election = client.election("migration");
    /// let steps = vec!["copy".to_owned(), "switch".to_owned()];
    /// // Returns once this process has led and completed the migration.
    /// election
    ///     .lead(|lease| {
    ///         let steps = steps.clone(); // for this term
    ///         async move { migrate(lease.token(), steps).await }
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn lead<R, W>(
        &self,
        mut work: R,
    ) -> impl Future<Output = Result<W::Output, Error>> + use<R, W>
    where
        R: FnMut(Lease) -> W,
        W: Future,
    {
        let (election, caller) = (self.clone(), Location::caller());
        async move {
            let mut is_deposed = false;
            loop {
                let campaign = async {
                    if is_deposed {
                        RetryDelay::new().wait().await;
                    }
                    election.elected(caller).await
                };
                let guard = election.handle.engine.pending(campaign).await?;
                match guard.run(&mut work).await {
                    Err(error @ Error::Lost { .. }) => {
                        tracing::info!(%error, "no longer the leader, campaigning again");
                    }
                    outcome => {
                        election
                            .handle
                            .engine
                            .pending(election.notify_followers())
                            .await?;
                        return outcome;
                    }
                }
                is_deposed = true;
            }
        }
    }

    /// Campaigns until this process is elected and the term is announced, for
    /// threads and for work that is not a future, such as a child process.
    ///
    /// The caller stops the work when the guard [is lost](Guard::lost), and
    /// then calls this method again. [`Guard::release`] resigns: the next
    /// candidate leads at once, and followers find a vacancy by a poll.
    /// [`lead`](Self::lead) does all of this for futures.
    ///
    /// The client campaigns even while the future is not polled. If it is not
    /// polled within 50 ms after the election, this process resigns, and
    /// campaigns again when the future is polled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the campaign, and resigns in the background.
    ///
    /// # Errors
    ///
    /// Those of [`lead`](Self::lead).
    ///
    /// # Examples
    ///
    /// A thread leads, and campaigns again after each loss:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Token};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn poll_the_sensor(epoch: Token) {}
    /// let election = client.election("sensor");
    /// loop {
    ///     let guard = election.campaign().wait()?;
    ///     let mut lost = guard.lost();
    ///     while !lost.wait_timeout(Duration::from_secs(1)) {
    ///         poll_the_sensor(guard.token());
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// A child process runs while we lead:
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # let stop = |_: &mut std::process::Child| ();
    /// let election = client.election("scheduler");
    /// loop {
    ///     let guard = election.campaign().await?;
    ///     let mut scheduler = std::process::Command::new("scheduler");
    ///     let mut child = scheduler.spawn().unwrap();
    ///     guard.lost().await;
    ///     stop(&mut child);
    /// }
    /// # }
    /// ```
    #[track_caller]
    pub fn campaign(&self) -> Pending<'static, Guard> {
        let (election, caller) = (self.clone(), Location::caller());
        let engine = self.handle.engine.clone();
        engine.pending(async move { election.elected(caller).await })
    }

    /// Returns the current leader, or `None` if there is none.
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
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // The leader's note is the address to send requests to.
    /// let leader = client.election("shard:3").leader().await?;
    /// let address = leader.and_then(|term| term.process.note);
    /// # Ok(()) }
    /// ```
    pub fn leader(&self) -> Pending<'_, Option<Term>> {
        self.handle.engine.pending(self.leader_now())
    }

    async fn leader_now(&self) -> Result<Option<Term>, Error> {
        let calls = self.calls()?;
        Ok(self.handle.send(|_| calls.leader()).await?.leader)
    }

    /// Returns every leader in turn, from the current one on. It stays
    /// subscribed until you drop it.
    ///
    /// A process that is elected, and does not poll in time, resigns before its
    /// work starts. Such a term is returned too.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let mut changes = client.election("shard:3").changes();
    /// loop {
    ///     let leader = changes.next().wait()?;
    ///     println!("route requests to {:?}", leader.map(|term| term.process));
    /// }
    /// # }
    /// ```
    pub fn changes(&self) -> Changes {
        Changes {
            election: self.clone(),
            watch: None,
            last: None,
            is_vacant: false,
            pending: VecDeque::new(),
        }
    }

    /// Waits until this process is elected and the term is announced. It runs
    /// on the keeper: a candidate that wins while the caller does not poll
    /// would keep every process from leading.
    async fn elected(&self, caller: &'static Location<'static>) -> Result<Guard, Error> {
        let (election, options) = (self.clone(), self.options(caller));
        let campaign = move || {
            let (election, options) = (election.clone(), options.clone());
            async move { election.announced(&options).await }
        };
        let guard = self.handle.engine.deliver(campaign).await?;
        // The work starts now, not when the keeper was elected.
        guard.progress();
        Ok(guard)
    }

    /// Waits to be elected, and announces the term. Resigns if the server does
    /// not record it: followers must see every term, in the order of epochs.
    async fn announced(&self, options: &AcquireOptions) -> Result<Guard, Error> {
        let mut delay = RetryDelay::new();
        loop {
            let guard = self.win(options, &mut delay).await?;
            // The work starts once the term is announced.
            let exemption = guard.lease().exempt_from_progress();
            let announced = self.announce(&guard).await;
            drop(exemption);
            match announced {
                Ok(true) => return Ok(guard),
                Ok(false) => {
                    let epoch = guard.token().as_u64();
                    let election = self.name();
                    tracing::warn!(epoch, election, "a later term is recorded, resigning");
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, election = self.name(), "cannot announce, resigning");
                }
                Err(error) => return Err(error),
            }
            // Before the pause, in which another candidate can win.
            drop(guard);
            delay.wait().await;
        }
    }

    /// Waits to be elected, through outages of the server.
    async fn win(&self, options: &AcquireOptions, delay: &mut RetryDelay) -> Result<Guard, Error> {
        loop {
            let mut request = self.handle.request();
            request.options = options.clone();
            match request.acquire()?.await {
                Ok(guard) => {
                    delay.reset();
                    return Ok(guard);
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, election = self.name(), "the campaign failed");
                    delay.wait().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn options(&self, caller: &'static Location<'static>) -> AcquireOptions {
        let mut options = self.handle.request().options;
        options.caller = caller;
        // A candidate waits as long as it takes.
        options.timeout = None;
        options.local_handoff = false;
        options.lease = self.lease.unwrap_or(options.lease);
        options.progress_within = self.progress_within;
        options.note.clone_from(&self.note);
        options.add_trace_parent();
        options
    }

    /// Notifies followers of a resignation. A follower that misses it finds the
    /// vacancy by a poll.
    async fn notify_followers(&self) -> Result<(), Error> {
        let (calls, slot) = (self.calls()?, self.handle.kind()?.slot());
        // Only a wake-up: followers that miss it poll within a second.
        if let Ok(facts) = self.handle.engine.facts(slot).await {
            let notify = calls.notify(facts.capabilities);
            let _ = self.handle.send(|_| notify).await;
        }
        Ok(())
    }

    /// Records the term. Returns false if a later one is recorded.
    async fn announce(&self, guard: &Guard) -> Result<bool, Error> {
        let (calls, slot) = (self.calls()?, self.handle.kind()?.slot());
        let now = self.handle.engine.facts(slot).await?.server_now();
        let announce = calls.announce(guard.token(), guard.value(), now, &self.note);
        self.handle.send(|_| announce).await
    }

    fn calls(&self) -> Result<Arc<ElectionCalls>, Error> {
        self.handle.beside(&self.calls)
    }

    /// Returns the election's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Election").field(&self.name()).finish()
    }
}

/// Every leader in turn, from the current one on; see [`Election::changes`].
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let mut changes = client.election("scheduler").changes();
/// loop {
///     match changes.next().await? {
///         Some(term) => println!("the leader is {}", term.process),
///         None => println!("there is no leader"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "changes are observed by `next`"]
pub struct Changes {
    election: Election,
    /// `None` at the start.
    watch: Option<Watch>,
    /// The epoch of the last term that was read; `None` at the start.
    last: Option<u64>,
    /// Whether the last event was a vacancy.
    is_vacant: bool,
    pending: VecDeque<Term>,
}

impl Changes {
    /// Waits for the next change, and returns the leader; `None` if there is
    /// none.
    ///
    /// The first call returns the current state. After that, every term follows
    /// in the order of epochs, also terms that ended before they were read; the
    /// server keeps the last 64 terms. A vacancy is reported only if there is
    /// no leader when the server is asked. If the first leader has no epoch, it
    /// was elected just now, and the next call returns it again, with the
    /// epoch.
    ///
    /// The server notifies followers. A lost message delays a change by at most
    /// one second.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. The call can be repeated, and loses no change.
    /// [`Error::ShutDown`] once the client is shut down.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let mut changes = client.election("scheduler").changes();
    /// // The first call returns at once.
    /// if let Some(term) = changes.next().wait()? {
    ///     println!("{} leads", term.process);
    /// }
    /// # Ok(()) }
    /// ```
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot be awaited"
    )]
    pub fn next(&mut self) -> Pending<'_, Option<Term>> {
        let engine = self.election.handle.engine.clone();
        engine.pending(self.next_now())
    }

    async fn next_now(&mut self) -> Result<Option<Term>, Error> {
        let calls = self.election.calls()?;
        let handle = &self.election.handle;
        let (slot, name) = (handle.kind()?.slot(), handle.name());
        let watch = self
            .watch
            .get_or_insert_with(|| handle.engine.watch(calls.channel(), slot));
        let Some(mut last) = self.last else {
            let current = watch.read(name, calls.leader()).await?;
            // An earlier term is not an event.
            self.last = Some(current.last.map_or(0, Token::as_u64));
            self.is_vacant = current.leader.is_none();
            return Ok(current.leader);
        };
        loop {
            if let Some(term) = self.pending.pop_front() {
                self.is_vacant = false;
                return Ok(Some(term));
            }
            let news = watch.read(name, calls.news(last)).await?;
            if !news.terms.is_empty() {
                // No await between here and the queue of pending terms: a
                // future that is dropped must not skip any.
                last = news.terms.iter().filter_map(epoch).max().unwrap_or(last);
                self.last = Some(last);
                self.pending.extend(news.terms);
            } else if news.is_vacant && !self.is_vacant {
                self.is_vacant = true;
                return Ok(None);
            } else {
                watch.changed().await;
            }
        }
    }
}

fn epoch(term: &Term) -> Option<u64> {
    term.epoch.map(Token::as_u64)
}

//! The mutex: a single key without a queue.

use std::sync::Arc;

use super::acquire::{Acquire, AcquireRequest};
use super::handle::Handle;
use super::reentrant::Reentrant;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::Pending;
use crate::lease::{Engine, Lease};
use crate::options::AcquireOptions;
use crate::protocol::{Electorate, Keyspace, Kind, QuorumLock, SingleKey};

/// A distributed mutual-exclusion lock.
///
/// `Mutex` is unfair: after a release, the first client to retry acquires it.
/// Use [`FairMutex`] when order matters or many processes contend.
///
/// The lock is a single string key, as in the `SET key value NX PX` recipe. A
/// lock of redis-py, redsync or node-redlock on the same key and server
/// conflicts with it. The mutex of a [`Quorum`] is that key on several servers,
/// and a majority of them grants it.
///
/// A handle is only a name. Create one wherever it is needed. It is not
/// reentrant: a second `lock()` by the holder waits for the first guard, unless
/// both come from one [`reentrant`](Self::reentrant) handle.
///
/// # Local hand-off
///
/// Tasks and threads of one client that wait for the same mutex form a single
/// waiter on the server. Once that waiter acquires the lock, they pass it to
/// each other in FIFO order without a round trip, for at most 10 ms. The client
/// then releases it, and other processes can compete ("lock cohorting").
///
/// Every task receives a [`Guard`] and a larger fencing token. Leases cloned
/// from an earlier guard report that it was released. [`holder`] reports the
/// task that acquired the lock from the server.
///
/// Hand-off requires equal options, the note included, automatic renewal, and
/// neither `at_least` nor `at_most`. Disable it with [`local_handoff(false)`].
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let report = client.mutex("report");
/// let guard = report.lock().await?;
/// guard.check()?; // by the clock alone, without a request
/// println!("token {}, {:?} remaining", guard.token(), guard.remaining());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// [`FairMutex`]: crate::FairMutex
/// [`Guard`]: crate::Guard
/// [`Quorum`]: crate::Quorum
/// [`holder`]: Self::holder
/// [`local_handoff(false)`]: crate::Acquire::local_handoff
#[derive(Clone)]
pub struct Mutex {
    handle: Handle<dyn Kind>,
}

impl Mutex {
    /// Creates a mutex that one server grants.
    pub(crate) fn new(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        name: &str,
        options: &AcquireOptions,
    ) -> Self {
        let kind = keyspace
            .lock(name)
            .map(|keys| Arc::new(SingleKey::new(keys)) as _);
        Self {
            handle: Handle::dynamic(engine, name, kind, options),
        }
    }

    /// Creates a mutex that a majority of several servers grants.
    pub(crate) fn with_quorum(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        electorate: &Arc<Electorate>,
        name: &str,
        options: &AcquireOptions,
    ) -> Self {
        let keys = keyspace.lock(name);
        let kind = keys.map(|keys| Arc::new(QuorumLock::new(keys, electorate)) as _);
        Self {
            handle: Handle::dynamic(engine, name, kind, options),
        }
    }

    /// Acquires the lock, waiting until it is free.
    ///
    /// Set options on the returned [`Acquire`], then `.await` it, or call
    /// [`wait`](Acquire::wait) on a thread.
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
    ///     .lease(Duration::from_secs(10))
    ///     .note("monthly report")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.request())
    }

    /// Acquires the lock if it is free, and fails with [`Error::Busy`] if
    /// another owner holds it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// match client.mutex("report").try_lock().await {
    ///     Ok(guard) => println!("acquired with token {}", guard.token()),
    ///     Err(Error::Busy { .. }) => println!("another client holds it"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> Acquire {
        Acquire::without_waiting(self.request())
    }

    /// Acquires the lock, runs `work`, and releases the lock on every exit
    /// path. We recommend this form for tasks.
    ///
    /// If the lease is lost, the work is dropped at the next await point, and
    /// the call fails. Otherwise it returns the output of `work`. If `work`
    /// panics, the lock is released before the panic resumes.
    ///
    /// To set options, call [`run`](Acquire::run) on the acquire:
    /// `mutex.lock().timeout(limit).run(work)`. A thread uses
    /// [`run_blocking`](Acquire::run_blocking).
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
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Token};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn sell_one(token: Token) -> u32 { 0 }
    /// let remaining = client
    ///     .mutex("coupon:42")
    ///     .run(|lease| async move { sell_one(lease.token()).await })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output, Error>> + use<F, W>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        self.lock().run(work)
    }

    /// Returns a handle that can acquire the lock again while it holds it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let account = client.mutex("account:1").reentrant();
    /// let outer = account.lock().wait()?;
    /// let inner = account.lock().wait()?; // would never return without it
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn reentrant(&self) -> Reentrant {
        Reentrant::new(self.handle.clone())
    }

    /// Returns the current holder, or `None` if the lock is free.
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
    /// match client.mutex("deploy").holder().await? {
    ///     Some(holder) => println!("{holder} deploys"),
    ///     None => println!("no process deploys"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn holder(&self) -> Pending<'_, Option<Holder>> {
        self.handle.engine.pending(self.handle.holder())
    }

    #[track_caller]
    pub(super) fn request(&self) -> AcquireRequest {
        self.handle.request()
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mutex").field(&self.name()).finish()
    }
}

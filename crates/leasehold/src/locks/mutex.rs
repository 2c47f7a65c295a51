//! The mutex: a single key without a queue.

use std::sync::Arc;

use super::acquire::{Acquire, AcquireRequest, TryAcquire};
use super::handle::Handle;
use super::reentrant::Reentrant;
use crate::error::Error;
use crate::info::Holder;
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
/// A handle is only a name. Create one wherever it is needed.
///
/// # Local hand-off
///
/// Tasks of one client that wait for the same mutex form a single waiter on
/// the server. Once that waiter acquires the lock, its tasks pass it to each
/// other in FIFO order without a round trip, for at most 10 ms. The client then
/// releases it so that other processes can compete ("lock cohorting").
///
/// Every task receives its own [`Guard`] and a larger fencing token. Leases
/// cloned from an earlier guard report that it was released. [`holder`] reports
/// the task that acquired the lock from the server.
///
/// Hand-off requires equal options, automatic renewal, and neither `at_least`
/// nor `at_most`. Disable it with [`local_handoff(false)`].
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
/// let _ = guard.release().await?;
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

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires the lock, waiting until it is free.
    ///
    /// The options are set before the returned [`Acquire`] is awaited.
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
    /// # drop(guard); Ok(()) }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Acquire {
        Acquire::guarded_by(self.request(), |guard| guard)
    }

    /// Acquires the lock if it is free; resolves to `Ok(None)` if another owner
    /// holds it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// match client.mutex("report").try_lock().await? {
    ///     Some(guard) => println!("acquired with token {}", guard.token()),
    ///     None => println!("another client holds it"),
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::guarded_by(self.request(), |guard| guard)
    }

    /// Acquires the lock, runs `work`, and releases the lock on every exit
    /// path. This is the recommended form.
    ///
    /// If the lease is lost, the work is dropped at its next await point, and
    /// the call fails. Otherwise it returns the output of `work`. If `work`
    /// panics, the lock is released before the panic resumes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn sell_one(token: leasehold::Token) -> u32 { 0 }
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let remaining = client
    ///     .mutex("coupon:42")
    ///     .run(|lease| async move { sell_one(lease.token()).await })
    ///     .await?;
    /// # Ok(()) }
    /// ```
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
    #[track_caller]
    pub fn run<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output, Error>> + use<F, W>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        self.lock().run(work)
    }

    /// Returns a handle that can acquire the lock again while it holds it.
    #[must_use]
    pub fn reentrant(&self) -> Reentrant {
        Reentrant::new(self.handle.clone(), |guard| guard)
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
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.handle.holder().await
    }

    #[track_caller]
    pub(super) fn request(&self) -> AcquireRequest {
        self.handle.request()
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mutex").field(&self.name()).finish()
    }
}

//! The mutex: one holder at a time, on a single key.

use std::sync::Arc;

use super::acquire::{Acquire, AcquireRequest, TryAcquire};
use super::handle::Handle;
use super::reentrant::Reentrant;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Engine, Lease};
use crate::options::AcquireOptions;
use crate::protocol::{Electorate, Keyspace, Kind, QuorumLock, SingleKey};

/// A lock that one holder has at a time. Not fair: whoever tries first after a release gets it.
///
/// It is the single key that `SET key value NX PX` recipes use (redis-py's `Lock`, redsync,
/// node-redlock on one node), so with the same key those exclude it and it excludes them. One of a
/// [`Quorum`](crate::Quorum) is that key on several servers, held by whoever has a majority.
///
/// Tasks of one client that wait for it are one waiter to the server. The one that is served leaves the lock to the next of
/// them, for up to ten milliseconds, without asking: each has a token of its own and a guard that is lost as any other, and
/// those who look see the first of them. It is so for leases that are renewed, without `at_least` and `at_most`, on the same
/// options; [`hand_on(false)`](crate::locks::Acquire::hand_on) has a lock asked for, and given back, each time.
///
/// A handle is a name and costs nothing; make one wherever it is needed.
#[derive(Clone)]
pub struct Mutex {
    handle: Handle<dyn Kind>,
}

impl Mutex {
    /// Kept by one server.
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
            handle: Handle::of_any(engine, name, kind, options),
        }
    }

    /// Kept by a majority of several.
    pub(crate) fn voted(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        electorate: &Arc<Electorate>,
        name: &str,
        options: &AcquireOptions,
    ) -> Self {
        let keys = keyspace.lock(name);
        let kind = keys.map(|keys| Arc::new(QuorumLock::new(keys, electorate)) as _);
        Self {
            handle: Handle::of_any(engine, name, kind, options),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires the lock, waiting for it as long as need be.
    ///
    /// Set options before awaiting:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let guard = client
    ///     .mutex("report")
    ///     .lock()
    ///     .timeout(Duration::from_millis(500))
    ///     .lease(Duration::from_secs(10))
    ///     .note("monthly report")
    ///     .await?;
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.request())
    }

    /// Acquires the lock if it is free; `Ok(None)` when somebody holds it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// match client.mutex("report").try_lock().await? {
    ///     Some(guard) => println!("ours, with token {}", guard.token()),
    ///     None => println!("somebody is at it already"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::new(self.request())
    }

    /// Acquires the lock, does `work`, and gives the lock back on every way out: the recommended form.
    ///
    /// When the lease is lost, the work is dropped at its next await, and this fails. What `work`
    /// returns is returned untouched. If `work` panics, the lock is given back before the panic goes
    /// on.
    ///
    /// ```no_run
    /// # async fn sell_one(token: leasehold::Token) -> u32 { 0 }
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let left = client
    ///     .mutex("coupon:42")
    ///     .run(|lease| async move { sell_one(lease.token()).await })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and gives the lock back in the background.
    ///
    /// # Errors
    ///
    /// Those of acquiring, and [`Error::Lost`] when the lease was lost before the work was done.
    pub async fn run<F, W>(&self, work: F) -> Result<W::Output, Error>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        self.lock().run(work).await
    }

    /// A handle that can be entered again while it is held, by all who have a clone of it.
    #[must_use]
    pub fn reentrant(&self) -> Reentrant {
        Reentrant::new(self.handle.clone(), |guard| guard)
    }

    /// Who holds the lock now; `None` when nobody does.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.handle.holder().await
    }

    pub(super) fn request(&self) -> AcquireRequest {
        self.handle.request()
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mutex").field(&self.name()).finish()
    }
}

//! The client: assembles the layers, and creates the handles of locks.

mod builder;
mod quorum;

use std::sync::Arc;
use std::time::Duration;

pub use builder::Connect;
pub use inspect::Scan;
pub use quorum::Quorum;
pub use server_info::ServerInfo;

use crate::lease::Engine;
use crate::lease::Pending;
use crate::locks::{Election, FairMutex, Latch, Mutex, Once, RwLock, Semaphore, Tick};
use crate::options::AcquireOptions;
use crate::protocol::Keyspace;

/// A client of the server that stores the locks.
///
/// [`Client::connect`] makes one. It is cheap to clone, and one per process is
/// enough; tasks and threads can share it. It has a thread of its own, the
/// *keeper*, which renews leases even while the application's runtime is
/// blocked.
///
/// The client has two connections to each server: the keeper's, and one for
/// requests. Each tokio runtime that sends requests has one of its own. Threads
/// and other executors share one, and so do tasks while they wait for a busy
/// lock or acquire a [`MultiLock`](crate::MultiLock).
///
/// The methods that create a lock handle send no request. Names have 1 to 512
/// bytes. An invalid name is reported as [`Error::Invalid`] by the first
/// operation on the lock.
///
/// Dropping the last clone and the last guard stops the keeper, once it has
/// released the locks that were dropped, or after 40 s. Until then it may call
/// observers and the provider of credentials. Call
/// [`shutdown`](Self::shutdown) before the program exits, or recently dropped
/// locks can stay held until their leases expire.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
/// let guard = client.mutex("report").lock().await?;
/// // …
/// guard.release().await?;
/// client.shutdown(Duration::from_secs(5)).await?;
/// # Ok(()) }
/// ```
///
/// [`Error::Invalid`]: crate::Error::Invalid
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    pub(crate) keyspace: Arc<Keyspace>,
    options: AcquireOptions,
}

impl Client {
    /// Returns a handle to a mutual-exclusion lock.
    ///
    /// The key on the server is the client's [prefix](Connect::prefix) followed
    /// by `name`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let coupon = client.mutex("coupon:42");
    /// let guard = coupon.lock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to a mutual-exclusion lock with a FIFO queue.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let printer = client.fair_mutex("printer");
    /// let guard = printer.lock().wait()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fair_mutex(&self, name: &str) -> FairMutex {
        FairMutex::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to a semaphore with `permits` permits. All clients
    /// should use the same number.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // At most ten downloads at a time, in all processes together.
    /// let downloads = client.semaphore("downloads", 10);
    /// let permit = downloads.acquire().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        let engine = self.engine.clone();
        Semaphore::new(engine, &self.keyspace, name, permits, &self.options)
    }

    /// Returns a handle to a read-write lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let catalogue = client.rw_lock("catalogue");
    /// let reader = catalogue.read().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to an election.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let scheduler = client.election("scheduler").note("10.0.0.7:8080");
    /// let guard = scheduler.campaign().wait()?;
    /// println!("we lead, with epoch {}", guard.token());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn election(&self, name: &str) -> Election {
        Election::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to a job that runs at most once per tick, on hosts with
    /// different clocks.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn send_report() {}
    /// use leasehold::Tick;
    ///
    /// let hourly = Tick::now(Duration::from_secs(3600));
    /// let report = client.once("hourly-report", hourly);
    /// let outcome = report.run(|_lease| send_report()).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn once(&self, name: &str, tick: Tick) -> Once {
        let engine = self.engine.clone();
        Once::new(engine, &self.keyspace, name, tick, &self.options)
    }

    /// Returns a handle to a count-down latch.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.latch("shards-loaded");
    /// ready.until_open(None).wait()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.engine.clone(), &self.keyspace, name)
    }

    /// Returns the Redisson objects on this server; see
    /// [`redisson`](crate::redisson).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // Java: redisson.getLock("invoice:42").lock()
    /// let invoice = client.redisson().lock("invoice:42");
    /// let guard = invoice.lock().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redisson")]
    pub fn redisson(&self) -> crate::redisson::Redisson {
        crate::redisson::Redisson::new(self.engine.clone(), &self.keyspace, &self.options)
    }

    /// Releases every lock of this client and all clones, and rejects further
    /// operations.
    ///
    /// It does not wait for work under a lock: guards that still exist are lost
    /// at once, with [`Loss::ShutDown`], and `run` drops the work. To let work
    /// complete, join your tasks first.
    ///
    /// Waits until all locks are released, for at most `timeout`. This includes
    /// acquires and releases that other tasks have in flight. An acquire in a
    /// task that is not polled is cancelled 50 ms after
    /// [`request_timeout`](Connect::request_timeout). The task of a release
    /// must be polled, or dropped, for the shutdown to complete. Waiters,
    /// threads among them, fail with [`Error::ShutDown`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops only the waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Unreleased`] if some locks were not released in time. They
    /// expire with their leases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// if let Err(error) = client.shutdown(Duration::from_secs(5)).await {
    ///     eprintln!("{error}"); // other clients wait for the leases to expire
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// [`Loss::ShutDown`]: crate::Loss::ShutDown
    /// [`Error::ShutDown`]: crate::Error::ShutDown
    /// [`Error::Unreleased`]: crate::Error::Unreleased
    pub fn shutdown(&self, timeout: Duration) -> Pending<'_, ()> {
        self.engine.pending(self.engine.shutdown(timeout))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

// Below the methods above, because the API page lists methods in this order.
mod inspect;

mod adopt;
mod server_info;

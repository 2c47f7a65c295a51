//! The client, its settings, and inspection.

use std::time::Duration;

use super::bridge::Bridge;
use super::latch::Latch;
use super::mutex::{FairMutex, Mutex};
use super::redisson::Redisson;
use super::rw_lock::RwLock;
use super::semaphore::Semaphore;
use crate::client::{ServerInfo, Settings, settings};
use crate::error::Error;
use crate::info::{Holder, LockInfo};
use crate::lease::ShutdownOutcome;
use crate::options::Replicas;

/// A client of the server that stores the locks; see the async
/// [`Client`](crate::Client).
///
/// A client is cheap to clone, and one per process is enough. The methods that
/// create a lock handle send no request.
#[derive(Clone, Debug)]
pub struct Client(Bridge<crate::Client>);

impl Client {
    /// Connects with the default settings. The URLs are those of the async
    /// [`connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// As for the async [`connect`](crate::Client::connect).
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect()
    }

    /// Returns a builder to connect with other settings.
    pub fn builder(url: &str) -> ClientBuilder {
        let mut builder = crate::Client::builder(url);
        ClientBuilder {
            settings: std::mem::take(&mut builder.settings),
            builder,
        }
    }

    /// Returns a handle to a mutual-exclusion lock.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex(self.0.map(|client| client.mutex(name)))
    }

    /// Returns a handle to a mutual-exclusion lock with a FIFO queue.
    #[must_use]
    pub fn fair_mutex(&self, name: &str) -> FairMutex {
        FairMutex(self.0.map(|client| client.fair_mutex(name)))
    }

    /// Returns a handle to a semaphore with `permits` permits.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore(self.0.map(|client| client.semaphore(name, permits)))
    }

    /// Returns a handle to a read-write lock.
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock(self.0.map(|client| client.rw_lock(name)))
    }

    /// Returns a handle to a count-down latch.
    #[must_use]
    pub fn latch(&self, name: &str) -> Latch {
        Latch(self.0.map(|client| client.latch(name)))
    }

    /// Returns the Redisson objects on this server; see
    /// [`redisson`](crate::redisson).
    pub fn redisson(&self) -> Redisson {
        Redisson(self.0.map(crate::Client::redisson))
    }

    /// Returns the lock with this name, its holders and its waiters, or `None`
    /// if it has neither; see the async [`inspect`](crate::Client::inspect).
    ///
    /// # Errors
    ///
    /// As for the async [`inspect`](crate::Client::inspect).
    pub fn inspect(&self, name: &str) -> Result<Option<LockInfo>, Error> {
        self.0.wait(self.0.inner.inspect(name))
    }

    /// Returns all locks whose names match `pattern`, page by page; see the
    /// async [`scan`](crate::Client::scan).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Error, blocking::Client};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// for page in client.scan("coupon:*") {
    ///     for lock in page? {
    ///         println!("{} has {} holders", lock.name, lock.holder_count);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn scan(&self, pattern: &str) -> Scan {
        Scan(self.0.map(|client| client.scan(pattern)))
    }

    /// Blocks until the lock with this name has no holder, for at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if `limit` elapses, and any error of
    /// [`inspect`](Self::inspect).
    pub fn wait_until_free(&self, name: &str, limit: Option<Duration>) -> Result<(), Error> {
        self.0.wait(self.0.inner.wait_until_free(name, limit))
    }

    /// Revokes the lock from all its holders and returns them; see the async
    /// [`force_release`](crate::Client::force_release).
    ///
    /// **Two clients can then work at the same time.**
    ///
    /// # Errors
    ///
    /// As for the async [`force_release`](crate::Client::force_release).
    pub fn force_release(&self, name: &str) -> Result<Vec<Holder>, Error> {
        self.0.wait(self.0.inner.force_release(name))
    }

    /// Returns the properties of the server that locks depend on; see the async
    /// [`server_info`](crate::Client::server_info).
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if a server does not
    /// reply.
    pub fn server_info(&self) -> Result<Vec<ServerInfo>, Error> {
        self.0.wait(self.0.inner.server_info())
    }

    /// Releases every lock of this client and rejects further operations; see
    /// the async [`shutdown`](crate::Client::shutdown).
    ///
    /// Threads that wait for a lock fail with [`Error::ShutDown`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] on the thread of a client, which must not block.
    pub fn shutdown(&self, timeout: Duration) -> Result<ShutdownOutcome, Error> {
        self.0
            .wait(async { Ok(self.0.inner.shutdown(timeout).await) })
    }
}

/// The settings of a [`Client`]; see [`Client::builder`].
#[must_use = "nothing is connected until `connect` is called"]
pub struct ClientBuilder {
    /// Its own settings are replaced by `settings`.
    builder: crate::ClientBuilder,
    settings: Settings,
}
settings!(ClientBuilder);

impl ClientBuilder {
    /// Requires `count` replicas to acknowledge every lock of this client, each
    /// within `timeout`; see [`Acquire::replicas`](super::Acquire::replicas).
    pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
        self.builder = self.builder.replicas(count, timeout);
        self
    }

    /// Connects and starts the keeper.
    ///
    /// # Errors
    ///
    /// As for [`Client::connect`], and [`Error::Invalid`] if a setting is out
    /// of range.
    pub fn connect(mut self) -> Result<Client, Error> {
        self.builder.settings = self.settings;
        let inner = self.builder.open()?;
        let runtime = inner.engine.runtime().clone();
        runtime.wait(inner.engine.connect())?;
        Ok(Client(Bridge { inner, runtime }))
    }
}

/// A scan of all locks, from [`Client::scan`]. Each item is a page, which can
/// be empty.
///
/// After an error, the next call reads the same page again.
#[derive(Debug)]
#[must_use = "nothing is scanned until it is iterated"]
pub struct Scan(Bridge<crate::Scan>);

impl Iterator for Scan {
    type Item = Result<Vec<LockInfo>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let page = self.0.runtime.wait(self.0.inner.next());
        page.transpose()
    }
}

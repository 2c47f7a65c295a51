//! The client: assembles the layers, and creates the handles of locks.

mod adopt;
mod builder;
mod inspect;
mod quorum;
mod server_info;

use std::sync::Arc;
use std::time::Duration;

pub use builder::ClientBuilder;
pub(crate) use builder::{Settings, settings};
pub use inspect::Scan;
pub use quorum::{Quorum, QuorumBuilder};
pub use server_info::ServerInfo;

use crate::lease::{Engine, ShutdownOutcome};
use crate::locks::redisson::Redisson;
use crate::locks::{Election, FairMutex, Latch, Mutex, Once, RwLock, Semaphore, Tick};
use crate::options::AcquireOptions;
use crate::protocol::Keyspace;

/// A client of the server that stores the locks.
///
/// A client is cheap to clone, and one per process is enough. It has a thread
/// of its own, the *keeper*, which renews leases even while the application's
/// runtime is blocked. It has two connections to each server: the keeper's, and
/// one for requests. If it waits for busy locks, or acquires a
/// [`MultiLock`](crate::MultiLock), it may have a third one.
///
/// The methods that create a lock handle send no request. Names have 1 to 512
/// bytes. An invalid name is reported as [`Error::Invalid`] by the first
/// operation on the lock.
///
/// Dropping the last clone and the last guard stops the keeper, once it has
/// released the locks that were dropped. Call [`shutdown`](Self::shutdown)
/// before the program exits, or recently dropped locks can stay held until
/// their leases expire.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
/// let guard = client.mutex("report").lock().await?;
/// // …
/// let _ = guard.release().await?;
/// client.shutdown(Duration::from_secs(5)).await;
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
    /// Its key is the client's [prefix](ClientBuilder::prefix) followed by
    /// `name`.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to a mutual-exclusion lock with a FIFO queue.
    #[must_use]
    pub fn fair_mutex(&self, name: &str) -> FairMutex {
        FairMutex::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to a semaphore with `permits` permits.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        let engine = self.engine.clone();
        Semaphore::new(engine, &self.keyspace, name, permits, &self.options)
    }

    /// Returns a handle to a read-write lock.
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to an election.
    #[must_use]
    pub fn election(&self, name: &str) -> Election {
        Election::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// Returns a handle to a job that runs at most once per tick, on hosts
    /// whose clocks differ.
    #[must_use]
    pub fn once(&self, name: &str, tick: Tick) -> Once {
        let engine = self.engine.clone();
        Once::new(engine, &self.keyspace, name, tick, &self.options)
    }

    /// Returns a handle to a count-down latch.
    #[must_use]
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.engine.clone(), &self.keyspace, name)
    }

    /// Returns the Redisson objects on this server; see
    /// [`redisson`](crate::redisson).
    pub fn redisson(&self) -> Redisson {
        Redisson::new(self.engine.clone(), &self.keyspace, &self.options)
    }

    /// Releases every lock of this client and rejects further operations.
    ///
    /// Waits until all locks are released, for at most `timeout`. This includes
    /// acquires and releases that other tasks have in flight. An acquire whose
    /// task is not polled is cancelled 50 ms after
    /// [`request_timeout`](ClientBuilder::request_timeout). The task of a
    /// release must be polled, or dropped, for the shutdown to complete. Locks
    /// that are not released by then expire with their leases. Guards that
    /// still exist are lost with [`Loss::ShutDown`]. Waiters fail with
    /// [`Error::ShutDown`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops only the waiting.
    ///
    /// [`Loss::ShutDown`]: crate::Loss::ShutDown
    /// [`Error::ShutDown`]: crate::Error::ShutDown
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownOutcome {
        self.engine.shutdown(timeout).await
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

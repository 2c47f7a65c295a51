//! The client: connects, holds the defaults, and hands out locks. Here the layers are put together.

mod builder;
mod inspect;
mod quorum;
mod server_info;

use std::sync::Arc;
use std::time::Duration;

pub use builder::ClientBuilder;
pub use inspect::Scan;
pub use quorum::{Quorum, QuorumBuilder};
pub use server_info::ServerInfo;

use crate::lease::{Engine, ShutdownOutcome};
use crate::locks::redisson::Redisson;
use crate::locks::{FairMutex, Latch, Mutex, RwLock, Semaphore};
use crate::options::AcquireOptions;
use crate::protocol::Keyspace;

/// A connection to the server that keeps the locks. Cheap to clone; one per process is enough.
///
/// It has two connections and one thread of its own, the *keeper*, which renews leases even when the
/// application's runtime is blocked. Dropping the last clone and the last guard ends the thread, after
/// it has given back what was dropped; at the end of a program call [`shutdown`](Self::shutdown), or
/// locks that were only just dropped may stay until their lease ends.
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    pub(crate) keyspace: Arc<Keyspace>,
    options: AcquireOptions,
}

impl Client {
    /// A lock that one holder has at a time.
    ///
    /// Any name from 1 to 512 bytes; the key is the prefix and the name as they are. A name that cannot
    /// be used is told when the lock is.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// A lock that one holder has at a time, and that those who wait get in the order in which they came.
    #[must_use]
    pub fn fair_mutex(&self, name: &str) -> FairMutex {
        FairMutex::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// So many permits, given to those who wait in the order in which they came.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        let engine = self.engine.clone();
        Semaphore::new(engine, &self.keyspace, name, permits, &self.options)
    }

    /// A lock that many readers or one writer hold, served in the order in which they came.
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::new(self.engine.clone(), &self.keyspace, name, &self.options)
    }

    /// A count that several processes bring down to zero, for others to wait for.
    #[must_use]
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.engine.clone(), &self.keyspace, name)
    }

    /// The objects of a fleet of Redisson clients on the same server: see [`redisson`](crate::redisson).
    pub fn redisson(&self) -> Redisson {
        Redisson::new(self.engine.clone(), &self.keyspace, &self.options)
    }

    /// Gives back every lock that is held, and refuses to take more. Returns whether all was given back
    /// within `limit`; what was not, ends with its lease.
    ///
    /// Guards that are still around are lost with [`Loss::ShutDown`](crate::Loss::ShutDown); those who
    /// wait for a lock get [`Error::ShutDown`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops only the waiting.
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownOutcome {
        self.engine.shutdown(timeout).await
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

//! Redisson's objects, shared with the Java clients of the same fleet.
//!
//! What a Java service locks with Redisson, a Rust service locks here by the same name: each excludes the other,
//! wakes the other, and keeps its own leases. [`Client::redisson`](crate::Client::redisson) gives them out:
//!
//! ```no_run
//! # async fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
//! let redisson = client.redisson();
//! let guard = redisson.lock("invoice:42").lock().await?;
//! // … no Java client holds `getLock("invoice:42")` now.
//! let _ = guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # What is not promised
//!
//! These objects are as safe as Redisson's, not as this crate's own kinds. Only the [fenced lock](Redisson::fenced_lock)
//! has tokens, which is why the guards of the others have none, and its tokens start anew when the server loses its
//! data. A Java client is not told when it loses a lock. A Java client that crashes keeps the permits of a plain
//! [`RSemaphore`] for ever. A crashed waiter blocks a [fair lock](Redisson::fair_lock) until its turn has passed. For
//! locks that only Rust uses take the crate's own kinds.
//!
//! What it does better than Redisson on the same wire, what both sides must configure alike, and how to move from
//! these to the crate's own kinds is told in `docs/interop.md`.

mod count_down_latch;
mod lock;
mod permit_expirable_semaphore;
mod read_write_lock;
mod semaphore;

use std::sync::Arc;
use std::time::Duration;

pub use count_down_latch::RCountDownLatch;
pub use lock::RLock;
pub use permit_expirable_semaphore::RPermitExpirableSemaphore;
pub use read_write_lock::RReadWriteLock;
pub use semaphore::{PermitGuard, RSemaphore};

use crate::lease::{Engine, Guard};
use crate::options::AcquireOptions;
use crate::protocol::Keyspace;
use crate::protocol::redisson::Naming;

/// What a Redisson of default settings waits for each that is before it in a fair lock's line.
const FAIR_WAIT: Duration = Duration::from_secs(300);

/// What a Redisson of default settings calls `lockWatchdogTimeout`.
const WATCHDOG: Duration = Duration::from_secs(30);

/// The objects of a fleet of Redisson clients, with the settings that its clients must have in common.
///
/// The settings are those of a Redisson that was configured with nothing but addresses.
#[derive(Clone)]
#[must_use = "it only hands out objects"]
pub struct Redisson {
    engine: Arc<Engine>,
    naming: Naming,
    options: AcquireOptions,
}

/// Where releases are announced: as Redisson's `shardedSubscriptionMode` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PubSubMode {
    /// In sharded channels in a cluster, in classic ones elsewhere: what Redisson does since 3.22.
    Auto,
    /// In classic channels everywhere: what older Redissons do, and newer ones with
    /// `shardedSubscriptionMode` turned off.
    Classic,
    /// In sharded channels everywhere.
    Sharded,
}

impl Redisson {
    pub(crate) fn new(engine: Arc<Engine>, keyspace: &Keyspace, options: &AcquireOptions) -> Self {
        let mut options = options.clone();
        options.lease = WATCHDOG;
        Self {
            engine,
            naming: Naming::new(keyspace.client(), keyspace.divides_slots(), FAIR_WAIT),
            options,
        }
    }

    /// The id by which other clients see what this one holds, as Redisson's `getId()`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.naming.client
    }

    /// What stands before every name to make its key: what the fleet's `NameMapper` adds. None by default; the
    /// client's own prefix is not used here.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.naming.prefix);
        self
    }

    /// How long a lease lasts that is renewed, Redisson's `lockWatchdogTimeout`; 30 s by default. Each side has its
    /// own: it is how long others wait when this process crashes.
    pub fn watchdog(mut self, timeout: Duration) -> Self {
        self.options.lease = timeout;
        self
    }

    /// Redisson's `fairLockWaitTimeout`, which must be the same on all sides; 5 minutes by default. It is how long a
    /// crashed waiter holds up a fair lock.
    pub fn fair_wait(mut self, timeout: Duration) -> Self {
        self.naming.fair_wait = timeout;
        self
    }

    /// Where releases are announced; must suit the fleet's `shardedSubscriptionMode`.
    pub fn announcements(mut self, announcements: PubSubMode) -> Self {
        self.naming.sharded = match announcements {
            PubSubMode::Auto => self.naming.divided,
            PubSubMode::Classic => false,
            PubSubMode::Sharded => true,
        };
        self
    }

    /// Redisson's `getLock`: one holder at a time.
    #[must_use]
    pub fn lock(&self, name: &str) -> RLock {
        RLock::plain(self, name)
    }

    /// Redisson's `getFencedLock`: one holder at a time, each with a larger token.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> RLock<Guard> {
        RLock::fenced(self, name)
    }

    /// Redisson's `getFairLock`: one holder at a time, in the order in which they came.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> RLock {
        RLock::fair(self, name)
    }

    /// Redisson's `getReadWriteLock`: many readers or one writer.
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> RReadWriteLock {
        RReadWriteLock::new(self, name)
    }

    /// Redisson's `getSemaphore`: permits that belong to nobody.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> RSemaphore {
        RSemaphore::new(self, name)
    }

    /// Redisson's `getPermitExpirableSemaphore`: permits with a lease each.
    #[must_use]
    pub fn permit_expirable_semaphore(&self, name: &str) -> RPermitExpirableSemaphore {
        RPermitExpirableSemaphore::new(self, name)
    }

    /// Redisson's `getCountDownLatch`: a count that several bring down to zero, for others to wait for.
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> RCountDownLatch {
        RCountDownLatch::new(self, name)
    }
}

impl std::fmt::Debug for Redisson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redisson")
            .field("naming", &self.naming)
            .finish_non_exhaustive()
    }
}

//! The factory of Redisson objects, and the settings that a fleet shares.

use std::sync::Arc;
use std::time::Duration;

use super::context::RedissonContext;
use super::count_down_latch::RCountDownLatch;
use super::lock::RLock;
use super::permit_expirable_semaphore::RPermitExpirableSemaphore;
use super::read_write_lock::RReadWriteLock;
use super::semaphore::RSemaphore;
use crate::lease::{Engine, Guard};
use crate::options::AcquireOptions;
use crate::protocol::Keyspace;
use crate::protocol::redisson::Naming;

/// Redisson's default `fairLockWaitTimeout`.
const FAIR_WAIT: Duration = Duration::from_secs(300);

/// Redisson's default `lockWatchdogTimeout`.
const WATCHDOG: Duration = Duration::from_secs(30);

/// A factory of Redisson objects; see [`Client::redisson`].
///
/// Its defaults are those of Redisson. Settings that were changed in the Java
/// services must be changed here as well.
///
/// [`Client::redisson`]: crate::Client::redisson
#[derive(Clone)]
#[must_use = "it only creates handles"]
pub struct Redisson {
    context: RedissonContext,
}

/// The channels that announce releases: Redisson's `shardedSubscriptionMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PubSubMode {
    /// Sharded channels in a cluster, classic channels otherwise. Redisson's
    /// default since 3.22.
    Auto,
    /// Classic channels. Redisson's behaviour before 3.22, and with
    /// `shardedSubscriptionMode` turned off.
    Classic,
    /// Sharded channels.
    Sharded,
}

impl Redisson {
    pub(crate) fn new(engine: Arc<Engine>, keyspace: &Keyspace, options: &AcquireOptions) -> Self {
        let mut options = options.clone();
        options.lease = WATCHDOG;
        let context = RedissonContext {
            engine,
            naming: Naming::new(keyspace.client(), keyspace.divides_slots(), FAIR_WAIT),
            options,
        };
        Self { context }
    }

    /// Returns the id of this client, as Redisson's `getId()`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.context.naming.client
    }

    /// Sets the prefix of every key, as added by the `NameMapper` of the Java
    /// services; empty by default.
    ///
    /// The client's own [prefix](crate::ClientBuilder::prefix) does not apply.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.context.naming.prefix);
        self
    }

    /// Sets the length of renewed leases, Redisson's `lockWatchdogTimeout`;
    /// 30 s by default.
    ///
    /// If this process crashes, other clients wait at most this long. Each side
    /// can have its own value.
    pub fn watchdog(mut self, timeout: Duration) -> Self {
        self.context.options.lease = timeout;
        self
    }

    /// Sets Redisson's `fairLockWaitTimeout`; 5 minutes by default.
    ///
    /// A crashed waiter blocks a fair lock for this long. The value must be the
    /// same on all sides.
    pub fn fair_wait(mut self, timeout: Duration) -> Self {
        self.context.naming.fair_wait = timeout;
        self
    }

    /// Sets the channels that announce releases;
    /// [`Auto`](PubSubMode::Auto) by default.
    ///
    /// The value must match the `shardedSubscriptionMode` of the Java services.
    pub fn pubsub_mode(mut self, mode: PubSubMode) -> Self {
        let naming = &mut self.context.naming;
        naming.sharded = match mode {
            PubSubMode::Auto => naming.divided,
            PubSubMode::Classic => false,
            PubSubMode::Sharded => true,
        };
        self
    }

    /// Returns a mutual-exclusion lock: Redisson's `getLock`.
    #[must_use]
    pub fn lock(&self, name: &str) -> RLock {
        RLock::plain(&self.context, name)
    }

    /// Returns a mutual-exclusion lock with fencing tokens: Redisson's
    /// `getFencedLock`.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> RLock<Guard> {
        RLock::fenced(&self.context, name)
    }

    /// Returns a mutual-exclusion lock with a FIFO queue: Redisson's
    /// `getFairLock`.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> RLock {
        RLock::fair(&self.context, name)
    }

    /// Returns a read-write lock: Redisson's `getReadWriteLock`.
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> RReadWriteLock {
        RReadWriteLock::new(&self.context, name)
    }

    /// Returns a semaphore whose permits do not expire: Redisson's
    /// `getSemaphore`.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> RSemaphore {
        RSemaphore::new(&self.context, name)
    }

    /// Returns a semaphore whose permits have leases: Redisson's
    /// `getPermitExpirableSemaphore`.
    #[must_use]
    pub fn permit_expirable_semaphore(&self, name: &str) -> RPermitExpirableSemaphore {
        RPermitExpirableSemaphore::new(&self.context, name)
    }

    /// Returns a count-down latch: Redisson's `getCountDownLatch`.
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> RCountDownLatch {
        RCountDownLatch::new(&self.context, name)
    }
}

impl std::fmt::Debug for Redisson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redisson")
            .field("naming", &self.context.naming)
            .finish_non_exhaustive()
    }
}

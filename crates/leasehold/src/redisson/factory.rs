//! The factory of Redisson objects, and the settings that a fleet shares.

use std::sync::Arc;
use std::time::Duration;

use super::calls::Naming;
use super::context::RedissonContext;
use super::count_down_latch::RCountDownLatch;
use super::lock::RLock;
use super::permit_expirable_semaphore::RPermitExpirableSemaphore;
use super::read_write_lock::RReadWriteLock;
use super::semaphore::RSemaphore;
use crate::error::Error;
use crate::info::LockKind;
use crate::lease::{Engine, Exclusive};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, LockSnapshot, Mode};

/// Redisson's default `fairLockWaitTimeout`.
const FAIR_WAIT: Duration = Duration::from_secs(300);

/// Redisson's default `lockWatchdogTimeout`.
const WATCHDOG: Duration = Duration::from_secs(30);

/// A factory of Redisson objects; see [`Client::redisson`].
///
/// The defaults are Redisson's own. Settings that were changed in the Java
/// services must be changed here as well.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let redisson = client
///     .redisson()
///     .prefix("shop:")
///     .watchdog(Duration::from_secs(10));
/// let guard = redisson.lock("invoice:42").lock().await?;
/// # Ok(()) }
/// ```
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

    /// Revokes the lock at `key`, of the kind that inspection found. Returns
    /// whether it was held.
    pub(crate) async fn force_unlock(&self, key: &str, lock: &LockSnapshot) -> Result<bool, Error> {
        let read_write = self.read_write_lock(key);
        match (lock.kind, lock.mode) {
            (LockKind::RedissonFairLock, _) => self.fair_lock(key).force_unlock().await,
            (LockKind::RedissonReadWriteLock, Some(Mode::Write)) => {
                read_write.write_lock().force_unlock().await
            }
            (LockKind::RedissonReadWriteLock, _) => read_write.read_lock().force_unlock().await,
            // Also a fenced lock, which has the same hash and channel.
            _ => self.lock(key).force_unlock().await,
        }
    }

    /// Returns this client's id, as Redisson's `getId()`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(client: leasehold::Client) {
    /// // Fields of a lock's hash on the server begin with it: `ID:THREAD`.
    /// println!("this process is {}", client.redisson().id());
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        &self.context.naming.client
    }

    /// Sets the prefix of every key, as the Java services' `NameMapper` adds
    /// it; empty by default.
    ///
    /// The client's own [prefix](crate::Connect::prefix) does not apply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let redisson = client.redisson().prefix("shop:");
    /// // Java's mapper turns `getLock("invoice:42")` into this key too.
    /// let invoice = redisson.lock("invoice:42"); // at `shop:invoice:42`
    /// # Ok(()) }
    /// ```
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.context.naming.prefix);
        self
    }

    /// Sets how long renewed leases last, Redisson's `lockWatchdogTimeout`; 30
    /// s by default.
    ///
    /// If this process crashes, other clients wait at most this long. Each side
    /// can have its own value.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let redisson = client.redisson().watchdog(Duration::from_secs(10));
    /// # Ok(()) }
    /// ```
    pub fn watchdog(mut self, timeout: Duration) -> Self {
        self.context.options.lease = timeout;
        self
    }

    /// Sets Redisson's `fairLockWaitTimeout`; 5 minutes by default.
    ///
    /// A crashed waiter blocks a fair lock for this long. The value must be the
    /// same on all sides.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // Java: config.setFairLockWaitTimeout(20_000)
    /// let redisson = client.redisson().fair_wait(Duration::from_secs(20));
    /// # Ok(()) }
    /// ```
    pub fn fair_wait(mut self, timeout: Duration) -> Self {
        self.context.naming.fair_wait = timeout;
        self
    }

    /// Sets the channels that announce releases; [`Auto`](PubSubMode::Auto) by
    /// default.
    ///
    /// The value must match the Java services' `shardedSubscriptionMode`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// use leasehold::redisson::PubSubMode;
    ///
    /// // For Java services with Redisson 3.21 or older.
    /// let redisson = client.redisson().pubsub_mode(PubSubMode::Classic);
    /// # Ok(()) }
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().lock("invoice:42");
    /// let guard = invoice.lock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn lock(&self, name: &str) -> RLock {
        RLock::plain(&self.context, name)
    }

    /// Returns a mutual-exclusion lock with fencing tokens: Redisson's
    /// `getFencedLock`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().fenced_lock("invoice:42");
    /// let guard = invoice.lock().await?;
    /// println!("Java's next token is larger than {}", guard.token());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> RLock<Exclusive> {
        RLock::fenced(&self.context, name)
    }

    /// Returns a mutual-exclusion lock with a FIFO queue: Redisson's
    /// `getFairLock`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let printer = client.redisson().fair_lock("printer");
    /// let guard = printer.lock().wait()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> RLock {
        RLock::fair(&self.context, name)
    }

    /// Returns a read-write lock: Redisson's `getReadWriteLock`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let catalogue = client.redisson().read_write_lock("catalogue");
    /// let reader = catalogue.read_lock().lock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> RReadWriteLock {
        RReadWriteLock::new(&self.context, name)
    }

    /// Returns a semaphore with permits that do not expire: Redisson's
    /// `getSemaphore`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let downloads = client.redisson().semaphore("downloads");
    /// let permits = downloads.acquire(2).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: &str) -> RSemaphore {
        RSemaphore::new(&self.context, name)
    }

    /// Returns a semaphore with permits that have leases: Redisson's
    /// `getPermitExpirableSemaphore`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let redisson = client.redisson();
    /// let downloads = redisson.permit_expirable_semaphore("downloads");
    /// let permit = downloads.acquire(1).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn permit_expirable_semaphore(&self, name: &str) -> RPermitExpirableSemaphore {
        RPermitExpirableSemaphore::new(&self.context, name)
    }

    /// Returns a count-down latch: Redisson's `getCountDownLatch`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let ready = client.redisson().count_down_latch("ready");
    /// ready.until_open(None).wait()?;
    /// # Ok(()) }
    /// ```
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

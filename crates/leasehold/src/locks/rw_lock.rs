//! The read-write lock: many readers or one writer, in FIFO order.

use std::sync::Arc;

use super::acquire::Acquire;
use super::handle::Handle;
use crate::info::Holder;
use crate::lease::Pending;
use crate::lease::{Engine, Shared};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, QueueParams, Queued};

/// The capacity of the lock: more readers than a server can have connections.
const MAX_READERS: u64 = 1_000_000_000;

/// A distributed read-write lock with a FIFO queue.
///
/// Many readers or one writer hold the lock. A waiting writer blocks later
/// readers, and waiting readers block later writers, so neither starves.
/// Adjacent readers in the queue are granted the lock together.
///
/// Every holder has a lease and a fencing token of its own, readers included. A
/// reader's token is larger than every earlier writer's, and smaller than every
/// later one's. The tokens of concurrent readers are all valid, so their guards
/// are [`Shared`]. A reader that crashed blocks writers until the lease
/// expires.
///
/// # Limitations
///
/// A reader cannot become a writer: two readers that tried would deadlock.
/// Release the lock, acquire [`write`](Self::write), and read the data again. A
/// writer becomes a reader with [`Guard::downgrade`](crate::Guard::downgrade).
///
/// The limitations of the queue are those of [`FairMutex`](crate::FairMutex).
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let catalogue = client.rw_lock("catalogue");
/// let reader = catalogue.read().await?;
/// reader.release().await?;
/// let writer = catalogue.write().await?;
/// let reader = writer.downgrade().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    write: Handle<Queued>,
    read: Handle<Queued>,
}

impl RwLock {
    pub(crate) fn new(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        name: &str,
        options: &AcquireOptions,
    ) -> Self {
        let keys = keyspace.queue(name);
        let handle = |engine, weight, shared| {
            let params = QueueParams {
                kind: QueueParams::RW,
                capacity: MAX_READERS,
                weight,
                shared,
                local_handoff: false,
                hand_over: false,
            };
            let kind = keys.clone().map(|keys| Queued::new(keys, params));
            Handle::new(engine, name, kind, options)
        };
        Self {
            write: handle(engine.clone(), MAX_READERS, false),
            read: handle(engine, 1, true),
        }
    }

    /// Acquires the lock for reading, waiting in the queue until it is granted.
    ///
    /// Every task that waits to read has a queue entry of its own, and sends
    /// one heartbeat per second.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Token};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn render(token: Token) {}
    /// let catalogue = client.rw_lock("catalogue");
    /// let page = catalogue.read().timeout(Duration::from_secs(1));
    /// page.run(|lease| async move { render(lease.token()).await }).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn read(&self) -> Acquire<Shared> {
        Acquire::new(self.read.request())
    }

    /// Acquires the lock for reading if no writer holds it or waits for it, and
    /// fails with [`Error::Busy`](crate::Error::Busy) otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// match client.rw_lock("catalogue").try_read().wait() {
    ///     Ok(reader) => println!("reading with token {}", reader.token()),
    ///     Err(Error::Busy { .. }) => println!("a writer changes it"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_read(&self) -> Acquire<Shared> {
        Acquire::without_waiting(self.read.request())
    }

    /// Acquires the lock for writing, waiting in the queue until it is granted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let writer = client.rw_lock("catalogue").write().wait()?;
    /// println!("writing with token {}", writer.token());
    /// writer.release().wait()?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn write(&self) -> Acquire {
        Acquire::new(self.write.request())
    }

    /// Acquires the lock for writing if it has no holders and no waiters, and
    /// fails with [`Error::Busy`](crate::Error::Busy) otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn compact() {}
    /// let catalogue = client.rw_lock("catalogue");
    /// // Compact only while no process uses the catalogue.
    /// catalogue.try_write().run_or_skip(|_lease| compact()).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_write(&self) -> Acquire {
        Acquire::without_waiting(self.write.request())
    }

    /// Returns one of the current holders, or `None` if the lock is free.
    /// [`Client::inspect`](crate::Client::inspect) returns all of them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`](crate::Error::Unavailable) or
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) if the server
    /// does not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// if let Some(holder) = client.rw_lock("catalogue").holder().await? {
    ///     println!("{holder} reads or writes it");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn holder(&self) -> Pending<'_, Option<Holder>> {
        self.write.engine.pending(self.write.holder())
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.write.name()
    }
}

impl std::fmt::Debug for RwLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RwLock").field(&self.name()).finish()
    }
}

//! The read-write lock: many readers or one writer, in FIFO order.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Acquire, GuardType, TryAcquire, conversions, sealed};
use super::handle::Handle;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Engine, Fenced, Guard, Lease, ReleaseOutcome, Shared, Unfenced};
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
/// Every holder has its own lease and its own fencing token, readers included.
/// A reader's token is larger than that of every earlier writer, and smaller
/// than that of every later one. The tokens of concurrent readers are all
/// valid, so their guards are [`Shared`]. A reader that crashed blocks writers
/// until its lease expires.
///
/// # Limitations
///
/// A reader cannot become a writer: two readers that tried would deadlock.
/// Release the lock, acquire [`write`](Self::write), and read the data again. A
/// writer becomes a reader with [`WriteGuard::downgrade`].
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
/// let _ = reader.release().await?;
/// let writer = catalogue.write().await?;
/// let reader = writer.downgrade().await?;
/// # drop(reader); Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    write: Handle<Queued>,
    read: Handle<Queued>,
}

/// The guard of a writer, which can be [downgraded](Self::downgrade).
///
/// It dereferences to its [`Lease`]. Dropping it releases the lock in the
/// background.
#[derive(Debug)]
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct WriteGuard<F = Fenced> {
    guard: Guard<F>,
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
                kind: "rw",
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

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.write.name()
    }

    /// Acquires the lock for reading, waiting in the queue until it is granted.
    ///
    /// Every task that waits to read has its own queue entry, and sends one
    /// heartbeat per second.
    #[track_caller]
    pub fn read(&self) -> Acquire<Guard<Shared>> {
        Acquire::guarded_by(self.read.request(), Guard::shared)
    }

    /// Acquires the lock for reading if no writer holds it or waits for it;
    /// resolves to `Ok(None)` otherwise.
    #[track_caller]
    pub fn try_read(&self) -> TryAcquire<Guard<Shared>> {
        TryAcquire::guarded_by(self.read.request(), Guard::shared)
    }

    /// Acquires the lock for writing, waiting in the queue until it is granted.
    #[track_caller]
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::guarded_by(self.write.request(), WriteGuard::new)
    }

    /// Acquires the lock for writing if it has no holders and no waiters;
    /// resolves to `Ok(None)` otherwise.
    #[track_caller]
    pub fn try_write(&self) -> TryAcquire<WriteGuard> {
        TryAcquire::guarded_by(self.write.request(), WriteGuard::new)
    }

    /// Returns one of the current holders, or `None` if the lock is free.
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
        self.write.holder().await
    }
}

impl WriteGuard {
    /// Converts this guard into that of a reader, without a writer in between.
    ///
    /// Readers at the head of the queue are granted the lock. The guard keeps
    /// its token; those readers have larger ones. Leases that were cloned from
    /// this guard report that it was released, because they no longer exclude
    /// readers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost. After any other error, the lock
    /// is released in the background.
    pub async fn downgrade(self) -> Result<Guard<Shared>, Error> {
        let guard = self.guard.shared_anew();
        guard.downgrade().await?;
        Ok(guard)
    }
}

impl WriteGuard<Unfenced> {
    /// Converts this guard into that of a reader, without a writer in between.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost. After any other error, the lock
    /// is released in the background.
    pub async fn downgrade(self) -> Result<Guard<Unfenced>, Error> {
        self.guard.downgrade().await?;
        Ok(self.guard)
    }
}

impl<F> WriteGuard<F> {
    pub(crate) fn new(guard: Guard<F>) -> Self {
        Self { guard }
    }

    /// Returns the lease, which can be cloned and passed to the protected work.
    #[must_use]
    pub fn lease(&self) -> &Lease<F> {
        self.guard.lease()
    }

    /// Extends the lease to at least `lease` from now; see
    /// [`Guard::extend`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lease unchanged or extended.
    ///
    /// # Errors
    ///
    /// As for [`Guard::extend`].
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.guard.extend(lease).await
    }

    /// Releases the lock; see [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future lets the release complete in the background.
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`]. The client keeps releasing in the background.
    pub async fn release(self) -> Result<ReleaseOutcome, Error> {
        self.guard.release().await
    }
}

impl<F> Deref for WriteGuard<F> {
    type Target = Lease<F>;

    fn deref(&self) -> &Lease<F> {
        self.guard.lease()
    }
}

impl<F> sealed::Sealed for WriteGuard<F> {}

impl<F> GuardType for WriteGuard<F> {
    type Fencing = F;
}

conversions!(Acquire);
conversions!(TryAcquire);

impl From<WriteGuard> for Guard<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(writer: WriteGuard) -> Self {
        writer.guard.shared()
    }
}

impl<F> From<WriteGuard<F>> for Guard<F> {
    /// Converts into a guard that cannot be downgraded.
    fn from(writer: WriteGuard<F>) -> Self {
        writer.guard
    }
}

impl std::fmt::Debug for RwLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RwLock").field(&self.name()).finish()
    }
}

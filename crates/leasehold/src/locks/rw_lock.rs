//! The read-write lock: many readers or one writer, served in the order in which they came.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Acquire, GuardType, TryAcquire, sealed};
use super::handle::Handle;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Engine, Fenced, Guard, Lease, ReleaseOutcome};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, QueueParams, Queued};

/// More readers than a server can have connections.
const READERS: u64 = 1_000_000_000;

/// A lock that many readers or one writer hold, served in the order in which they came.
///
/// A writer that waits stops readers that come later, and readers that wait stop later writers: neither
/// starves. Readers that wait next to each other are let in together. Each has a lease of its own, so a
/// crashed reader keeps nobody out for longer than that. A writer's token is larger than all before;
/// readers inside at the same time share theirs.
///
/// A reader cannot become a writer: two that tried would wait for each other for ever. Release, acquire
/// [`write`](Self::write), and look again at what was read. The other way is [`WriteGuard::downgrade`].
#[derive(Clone)]
pub struct RwLock {
    write: Handle<Queued>,
    read: Handle<Queued>,
}

/// A [`RwLock`] that is held for writing; a [`Guard`] that can be turned into a reader's.
#[derive(Debug)]
#[must_use = "the lock is given back as soon as the guard is dropped"]
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
            let share = QueueParams {
                kind: "rw",
                capacity: READERS,
                weight,
                shared,
                local_handoff: false,
            };
            let kind = keys.clone().map(|keys| Queued::new(keys, share));
            Handle::new(engine, name, kind, options)
        };
        Self {
            write: handle(engine.clone(), READERS, false),
            read: handle(engine, 1, true),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.write.name()
    }

    /// Acquires the lock beside other readers, waiting in line as long as need be.
    ///
    /// Each task that waits to read has a place of its own in the server's line, and sends a heartbeat a
    /// second.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let catalogue = client.rw_lock("catalogue");
    /// let reading = catalogue.read().await?;
    /// let _ = reading.release().await?;
    /// let writing = catalogue.write().await?;
    /// let reading = writing.downgrade().await?;
    /// # drop(reading); Ok(()) }
    /// ```
    pub fn read(&self) -> Acquire {
        Acquire::new(self.read.request())
    }

    /// Acquires the lock beside other readers if no writer holds it or waits; `Ok(None)` otherwise.
    pub fn try_read(&self) -> TryAcquire {
        TryAcquire::new(self.read.request())
    }

    /// Acquires the lock alone, waiting in line as long as need be.
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::guarded_by(self.write.request(), WriteGuard::new)
    }

    /// Acquires the lock alone if nobody holds it or waits; `Ok(None)` otherwise.
    pub fn try_write(&self) -> TryAcquire<WriteGuard> {
        TryAcquire::guarded_by(self.write.request(), WriteGuard::new)
    }

    /// One of those who hold the lock now; `None` when nobody does.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.write.holder().await
    }
}

impl<F> WriteGuard<F> {
    pub(super) fn new(guard: Guard<F>) -> Self {
        Self { guard }
    }

    /// Goes on as a reader, without anybody writing in between; readers that wait at the head of the line
    /// come in. The token stays; those readers have larger ones.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the lock back in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock is not ours any more. After any other error it is given back in the
    /// background.
    pub async fn downgrade(self) -> Result<Guard<F>, Error> {
        self.guard.downgrade().await?;
        Ok(self.guard)
    }

    /// Returns a view of this lease that can be cloned and passed on.
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

    /// Gives the lock back and says what became of it; see [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future hands the release to the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. The background goes on trying.
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

impl From<Acquire<WriteGuard>> for Acquire {
    /// Converts into an acquire whose guard cannot be downgraded.
    fn from(writing: Acquire<WriteGuard>) -> Self {
        Self::new(writing.request)
    }
}

impl From<TryAcquire<WriteGuard>> for TryAcquire {
    /// Converts into an acquire whose guard cannot be downgraded.
    fn from(writing: TryAcquire<WriteGuard>) -> Self {
        Self::new(writing.request)
    }
}

impl<F> From<WriteGuard<F>> for Guard<F> {
    fn from(writing: WriteGuard<F>) -> Self {
        writing.guard
    }
}

impl std::fmt::Debug for RwLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RwLock").field(&self.name()).finish()
    }
}

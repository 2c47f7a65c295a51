//! The fair mutex: one holder at a time, served in the order in which they came.

use std::sync::Arc;

use super::acquire::{Acquire, TryAcquire};
use super::handle::Handle;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Engine, Lease};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, Kind, QueueParams, Queued};

/// A lock that one holder has at a time, and that those who wait get in the order in which they came.
///
/// A release gives the lock to the first in line and tells it, so one process is woken however many wait;
/// a waiter that has died is passed over within three seconds. The tasks of one client are one waiter: the one
/// that is served leaves the lock to the next of them for up to ten milliseconds, as with a [`Mutex`](crate::Mutex), then the
/// client goes to the end of the line; one that gives up leaves its place to the next of them.
///
/// Not promised: order across a loss of the server's data, and a place to one who was out of the server's
/// reach for more than three seconds when the lock passed by. It gets back in where it was.
///
/// While no client waits, it costs the server what a [`Mutex`](crate::Mutex) does.
/// With waiters, a release and the next entry are two scripts.
#[derive(Clone)]
pub struct FairMutex {
    handle: Handle<Queued>,
}

impl FairMutex {
    pub(crate) fn new(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        name: &str,
        options: &AcquireOptions,
    ) -> Self {
        let share = QueueParams {
            kind: "fair",
            capacity: 1,
            weight: 1,
            shared: false,
            local_handoff: true,
        };
        let kind = keyspace.queue(name).map(|keys| Queued::new(keys, share));
        Self {
            handle: Handle::new(engine, name, kind, options),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires the lock, waiting in line for it as long as need be.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let guard = client.fair_mutex("printer").lock().timeout(Duration::from_secs(60)).await?;
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.handle.request())
    }

    /// Acquires the lock if nobody holds it and nobody waits; `Ok(None)` otherwise.
    pub fn try_lock(&self) -> TryAcquire {
        TryAcquire::new(self.handle.request())
    }

    /// Acquires the lock, does `work`, and gives the lock back on every way out, as
    /// [`Mutex::run`](crate::Mutex::run) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and gives the lock, or the place in line, back in the background.
    ///
    /// # Errors
    ///
    /// Those of acquiring, and [`Error::Lost`] when the lease was lost before the work was done.
    pub async fn run<F, W>(&self, work: F) -> Result<W::Output, Error>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        self.lock().run(work).await
    }

    /// The place in line of the task of this client that waits for this lock: 1 is served next. `None` when
    /// none waits. As of its last heartbeat, at most a second ago; asks nobody.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let printer = client.fair_mutex("printer");
    /// let waiting = tokio::spawn(printer.lock().into_future());
    /// if let Some(position) = printer.queue_position() {
    ///     println!("number {position} in line");
    /// }
    /// # drop(waiting); Ok(()) }
    /// ```
    #[must_use]
    pub fn queue_position(&self) -> Option<u64> {
        let kind = self.handle.kind().ok()?;
        let gate = kind.wait_strategy().local_queue_key()?;
        self.handle.engine.ahead(gate).map(|ahead| ahead + 1)
    }

    /// Who holds the lock now; `None` when nobody does.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.handle.holder().await
    }
}

impl std::fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FairMutex").field(&self.name()).finish()
    }
}

//! The fair mutex: one holder at a time, in FIFO order.

use std::sync::Arc;

use super::acquire::Acquire;
use super::handle::Handle;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::Pending;
use crate::lease::{Engine, Lease};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, QueueParams, Queued};

/// A distributed mutual-exclusion lock with a FIFO queue.
///
/// A release grants the lock to the first waiter in the queue and notifies it,
/// so one process wakes up however many wait. A waiter that crashed is skipped
/// within three seconds.
///
/// The tasks and threads of one client share one queue entry. They hand the
/// lock off to each other for at most 10 ms, as described for
/// [`Mutex`](crate::Mutex#local-hand-off). Then the client re-enters at the end
/// of the queue. A task that stops waiting leaves the queue entry to the
/// client's next task.
///
/// While no client waits, the server does the same work as for a
/// [`Mutex`](crate::Mutex). With waiters, a release and the next entry are two
/// scripts.
///
/// # Limitations
///
/// - A waiter that is disconnected for three seconds can be skipped. It
///   re-enters at the old position.
/// - The order is lost if the server loses data.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn print() {}
/// let printer = client.fair_mutex("printer");
/// printer.run(|_lease| print()).await?;
/// # Ok(()) }
/// ```
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
        let keys = keyspace.queue(name);
        let kind = keys.map(|keys| Queued::new(keys, QueueParams::FAIR));
        Self {
            handle: Handle::new(engine, name, kind, options),
        }
    }

    /// Acquires the lock, waiting in the queue until it is granted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let printer = client.fair_mutex("printer");
    /// let guard = printer.lock().timeout(Duration::from_secs(60)).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.handle.request())
    }

    /// Acquires the lock if it has no holder and no waiters, and fails with
    /// [`Error::Busy`] otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// match client.fair_mutex("printer").try_lock().wait() {
    ///     Ok(guard) => println!("printing with token {}", guard.token()),
    ///     Err(Error::Busy { .. }) => println!("the printer is busy"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> Acquire {
        Acquire::without_waiting(self.handle.request())
    }

    /// Acquires the lock, runs `work`, and releases the lock on every exit
    /// path; see [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and releases the lock or leaves the
    /// queue in the background.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if the lease is lost
    /// before the work completes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn print(pages: u32) {}
    /// let printer = client.fair_mutex("printer");
    /// printer.run(|_lease| async { print(42).await }).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output, Error>> + use<F, W>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        self.lock().run(work)
    }

    /// Returns this client's position in the queue, or `None` if no task or
    /// thread of this client waits. The waiter at position 1 is next.
    ///
    /// The position is as of the last heartbeat, at most a second ago. The call
    /// sends no request.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let printer = client.fair_mutex("printer");
    /// let job = tokio::spawn(printer.lock().into_future());
    /// while !job.is_finished() {
    ///     println!("queue position {:?}", printer.queue_position());
    ///     tokio::time::sleep(Duration::from_secs(1)).await;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn queue_position(&self) -> Option<u64> {
        let kind = self.handle.kind().ok()?;
        self.handle.engine.ahead(&*kind).map(|ahead| ahead + 1)
    }

    /// Returns the current holder, or `None` if the lock is free.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// if let Some(holder) = client.fair_mutex("printer").holder().wait()? {
    ///     println!("{holder} prints");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn holder(&self) -> Pending<'_, Option<Holder>> {
        self.handle.engine.pending(self.handle.holder())
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FairMutex").field(&self.name()).finish()
    }
}

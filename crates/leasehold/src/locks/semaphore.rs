//! The semaphore: permits with leases, in FIFO order.

use std::sync::Arc;

use super::acquire::Acquire;
use super::handle::Handle;
use crate::error::Error;
use crate::lease::Pending;
use crate::lease::{Engine, Shared};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, QueueParams, Queued};

/// A distributed semaphore with a FIFO queue.
///
/// Each holder has one or more permits under one lease. The lease is renewed
/// while the guard exists. A crashed holder's permits are available again when
/// the lease expires. A waiter for many permits is not overtaken by waiters for
/// few.
///
/// Every holder has a fencing token of its own, larger than all earlier ones.
/// The tokens of concurrent holders are all valid, so the guards are
/// [`Shared`], even if the semaphore has one permit.
///
/// A client's waiting tasks share one queue entry, as for
/// [`FairMutex`](crate::FairMutex).
///
/// # Limitations
///
/// All clients should use the same number of permits. If they differ, the first
/// client's number applies until the semaphore has no holders and no waiters.
/// [`set_permits`](Self::set_permits) changes it immediately.
///
/// The limitations of the queue are those of [`FairMutex`](crate::FairMutex).
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn download() {}
/// // At most ten downloads at a time, in all processes together.
/// let downloads = client.semaphore("downloads", 10).acquire();
/// downloads.run(|_lease| download()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle<Queued>,
}

/// A [`Semaphore`]'s permits and waiters, from [`Semaphore::permits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitCounts {
    /// The total number of permits.
    pub total: u32,
    /// The number of held permits. It can exceed `total` for a while after that
    /// was lowered.
    pub held: u32,
    /// The number of waiting processes.
    pub waiters: u32,
}

impl Semaphore {
    pub(crate) fn new(
        engine: Arc<Engine>,
        keyspace: &Keyspace,
        name: &str,
        permits: u32,
        options: &AcquireOptions,
    ) -> Self {
        let params = QueueParams {
            kind: "semaphore",
            capacity: u64::from(permits),
            weight: 1,
            shared: false,
            local_handoff: false,
            hand_over: false,
        };
        let kind = keyspace.queue(name).map(|keys| Queued::new(keys, params));
        Self {
            handle: Handle::new(engine, name, kind, options),
        }
    }

    /// Acquires one permit, waiting in the queue until it is granted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let downloads = client.semaphore("downloads", 10);
    /// let permit = downloads.acquire().await?;
    /// // …
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn acquire(&self) -> Acquire<Shared> {
        self.acquire_many(1)
    }

    /// Acquires `permits` permits at once, waiting in the queue until they are
    /// granted.
    ///
    /// The acquire fails with [`Error::Invalid`] if `permits` is zero or
    /// exceeds the total.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// // A job that needs 4 of the 16 GPUs.
    /// let gpus = client.semaphore("gpus", 16);
    /// let job = gpus.acquire_many(4).wait()?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> Acquire<Shared> {
        let request = self.handle.request_as(self.with_permits(permits));
        Acquire::new(request)
    }

    /// Acquires one permit if it is available and no client waits, and fails
    /// with [`Error::Busy`] otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let downloads = client.semaphore("downloads", 10);
    /// match downloads.try_acquire().await {
    ///     Ok(permit) => println!("one of ten: token {}", permit.token()),
    ///     Err(Error::Busy { .. }) => println!("ten downloads run"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_acquire(&self) -> Acquire<Shared> {
        self.try_acquire_many(1)
    }

    /// Acquires `permits` permits at once if they are available and no client
    /// waits, and fails with [`Error::Busy`] otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn train() {}
    /// let gpus = client.semaphore("gpus", 16);
    /// let all = gpus.try_acquire_many(16);
    /// if all.run_or_skip(|_lease| train()).await?.is_none() {
    ///     println!("some GPUs are in use");
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> Acquire<Shared> {
        let request = self.handle.request_as(self.with_permits(permits));
        Acquire::without_waiting(request)
    }

    /// Sets the total number of permits, which overrides the number that
    /// clients use.
    ///
    /// Holders keep their permits. Waiters for more than the new total fail
    /// with [`Error::Invalid`] within a second, behind earlier waiters of the
    /// same client when these are served. The server stores the number
    /// until 30 days after the semaphore was last used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the number unchanged or set.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `permits` is zero, and [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply. Calling it again
    /// is safe.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // Halve the load on the mirror, without a deployment.
    /// client.semaphore("downloads", 10).set_permits(5).await?;
    /// # Ok(()) }
    /// ```
    pub fn set_permits(&self, permits: u32) -> Pending<'_, ()> {
        self.handle.engine.pending(self.set_permits_now(permits))
    }

    async fn set_permits_now(&self, permits: u32) -> Result<(), Error> {
        let kind = self.with_permits(permits)?;
        let set = |_: &_| kind.set_capacity(u64::from(permits));
        self.handle.send(set).await
    }

    /// Returns how many permits there are, how many are held, and how many
    /// processes wait.
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
    /// let counts = client.semaphore("downloads", 10).permits().wait()?;
    /// println!("{} of {} are held", counts.held, counts.total);
    /// # Ok(()) }
    /// ```
    pub fn permits(&self) -> Pending<'_, PermitCounts> {
        self.handle.engine.pending(self.count_permits())
    }

    async fn count_permits(&self) -> Result<PermitCounts, Error> {
        let kind = self.handle.kind()?;
        let stats = self.handle.send(Queued::stats).await?;
        let saturate = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(PermitCounts {
            total: saturate(stats.capacity.unwrap_or(kind.capacity())),
            held: saturate(stats.used),
            waiters: saturate(stats.waiters),
        })
    }

    /// Returns the calls that acquire `permits` permits.
    fn with_permits(&self, permits: u32) -> Result<Arc<Queued>, Error> {
        let kind = self.handle.kind()?;
        if permits == 0 || kind.capacity() == 0 {
            return Err(Error::invalid("permits", "0 is below the minimum of 1"));
        }
        Ok(match permits {
            1 => kind,
            _ => Arc::new(kind.with_weight(u64::from(permits))),
        })
    }

    /// Returns the semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Semaphore").field(&self.name()).finish()
    }
}

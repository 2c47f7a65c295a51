//! The semaphore: permits with leases, in FIFO order.

use std::sync::Arc;

use super::acquire::{Acquire, TryAcquire};
use super::handle::Handle;
use crate::error::Error;
use crate::lease::{Engine, Guard, Shared};
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, QueueParams, Queued};

/// A distributed semaphore with a FIFO queue.
///
/// Each holder has one or more permits under one lease. The lease is renewed
/// while the guard exists. The permits of a crashed holder are available again
/// when its lease expires. A waiter for many permits is not overtaken by
/// waiters for few.
///
/// Every holder has its own fencing token, larger than all earlier ones. The
/// tokens of concurrent holders are all valid, so the guards are [`Shared`],
/// even if the semaphore has one permit.
///
/// The waiting tasks of one client share one queue entry, as for
/// [`FairMutex`](crate::FairMutex).
///
/// # Limitations
///
/// All clients should use the same number of permits. If they differ, the
/// number of the first client applies until the semaphore has no holders and no
/// waiters. [`set_permits`](Self::set_permits) changes it immediately.
///
/// The limitations of the queue are those of [`FairMutex`](crate::FairMutex).
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle<Queued>,
}

/// The permits and waiters of a [`Semaphore`].
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

    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
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
    /// # drop(permit); Ok(()) }
    /// ```
    #[track_caller]
    pub fn acquire(&self) -> Acquire<Guard<Shared>> {
        self.acquire_many(1)
    }

    /// Acquires `permits` permits at once, waiting in the queue until they are
    /// granted.
    ///
    /// Fails with [`Error::Invalid`] if `permits` is zero or exceeds the total.
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> Acquire<Guard<Shared>> {
        let request = self.handle.request_as(self.with_permits(permits));
        Acquire::guarded_by(request, Guard::shared)
    }

    /// Acquires one permit if it is available and no client waits; resolves to
    /// `Ok(None)` otherwise.
    #[track_caller]
    pub fn try_acquire(&self) -> TryAcquire<Guard<Shared>> {
        self.try_acquire_many(1)
    }

    /// Acquires `permits` permits at once if they are available and no client
    /// waits; resolves to `Ok(None)` otherwise.
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> TryAcquire<Guard<Shared>> {
        let request = self.handle.request_as(self.with_permits(permits));
        TryAcquire::guarded_by(request, Guard::shared)
    }

    /// Sets the total number of permits, which overrides the number that
    /// clients use.
    ///
    /// Holders keep their permits. Waiters for more than the new total fail
    /// with [`Error::Invalid`] within a second. The server stores the number
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
    pub async fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let kind = self.with_permits(permits)?;
        let set = |_: &_| kind.set_capacity(u64::from(permits));
        self.handle.send(set).await
    }

    /// Returns the number of permits, of held permits, and of waiting
    /// processes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    pub async fn permits(&self) -> Result<PermitCounts, Error> {
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
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Semaphore").field(&self.name()).finish()
    }
}

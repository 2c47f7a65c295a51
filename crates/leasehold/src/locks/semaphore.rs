//! The semaphore: so many permits, each a lease of its own.

use std::sync::Arc;

use super::acquire::{Acquire, TryAcquire};
use super::handle::Handle;
use crate::error::Error;
use crate::lease::Engine;
use crate::options::AcquireOptions;
use crate::protocol::{Keyspace, QueueParams, Queued};

/// So many permits, of which each holder has some; who waits is served in the order in which they came.
///
/// Permits are a lease like any other: renewed while the guard lives, and free again when a holder has
/// crashed. One who asks for many is not passed by those who ask for few. Every holding has a token of its
/// own, larger than all before; those of several holders at the same time are all valid.
///
/// All who use a semaphore should name the same number of permits. Where they differ, the number of whoever
/// came first stands until nobody holds or waits; [`set_permits`](Self::set_permits) changes it at once.
///
/// The tasks of one client that wait are one waiter, as with [`FairMutex`](crate::FairMutex).
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle<Queued>,
}

/// How a semaphore stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitCounts {
    /// How many there are.
    pub total: u32,
    /// How many are held. More than `total` for a while after it was lowered.
    pub held: u32,
    /// How many processes wait.
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
        let share = QueueParams {
            kind: "semaphore",
            capacity: u64::from(permits),
            weight: 1,
            shared: false,
            local_handoff: false,
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

    /// Acquires one permit, waiting in line for it as long as need be.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let downloads = client.semaphore("downloads", 10);
    /// let permit = downloads.acquire().await?;
    /// # drop(permit); Ok(()) }
    /// ```
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Acquires so many permits at once, waiting in line until there are as many.
    ///
    /// Asking for none, or for more than there are in all, is [`Error::Invalid`].
    pub fn acquire_many(&self, permits: u32) -> Acquire {
        Acquire::new(self.handle.request_as(self.taking(permits)))
    }

    /// Acquires one permit if there is one and nobody waits; `Ok(None)` otherwise.
    pub fn try_acquire(&self) -> TryAcquire {
        self.try_acquire_many(1)
    }

    /// Acquires so many permits if there are as many and nobody waits; `Ok(None)` otherwise.
    pub fn try_acquire_many(&self, permits: u32) -> TryAcquire {
        TryAcquire::new(self.handle.request_as(self.taking(permits)))
    }

    /// Sets how many permits there are, whatever those who use the semaphore say; holders keep theirs.
    ///
    /// The server remembers it for 30 days after the semaphore was last used. Those who wait for more than
    /// there now are get [`Error::Invalid`] within a second.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the number as it was or set.
    ///
    /// # Errors
    ///
    /// When `permits` is 0 or the server cannot be asked. Setting it again is safe.
    pub async fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let kind = self.taking(permits)?;
        let set = |_: &_| kind.set_capacity(u64::from(permits));
        self.handle.query(set).await
    }

    /// How many permits there are, how many are held, and how many processes wait.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn permits(&self) -> Result<PermitCounts, Error> {
        let kind = self.handle.kind()?;
        let stats = self.handle.query(Queued::stats).await?;
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(PermitCounts {
            total: number(stats.capacity.unwrap_or(kind.capacity())),
            held: number(stats.used),
            waiters: number(stats.waiters),
        })
    }

    fn taking(&self, permits: u32) -> Result<Arc<Queued>, Error> {
        let kind = self.handle.kind()?;
        if permits == 0 || kind.capacity() == 0 {
            return Err(Error::invalid("permits", "there must be at least one"));
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

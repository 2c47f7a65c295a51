//! Redisson's `RPermitExpirableSemaphore`: permits with leases.

use std::sync::Arc;

use super::Unfenced;
use super::calls::ExpirableCalls;
use super::context::RedissonContext;
use crate::error::Error;
use crate::lease::Pending;
use crate::locks::Acquire;
use crate::locks::Handle;

/// Limits one request: each permit has an id that is sent, and more of them
/// would block the server.
const MAX_PERMITS: u32 = 1000;

/// A semaphore of Redisson, with permits that have leases.
///
/// It is unfair. Permits acquired here are renewed until you drop the guard,
/// which Redisson itself does not do. Expired permits become available when a
/// client next acquires permits.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let redisson = client.redisson();
/// let downloads = redisson.permit_expirable_semaphore("downloads");
/// downloads.try_set_permits(10).await?;
/// let permit = downloads.acquire(1).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RPermitExpirableSemaphore {
    handle: Handle<ExpirableCalls>,
}

impl RPermitExpirableSemaphore {
    pub(super) fn new(context: &RedissonContext, name: &str) -> Self {
        let kind = context.naming.object(name).map(ExpirableCalls::new);
        Self {
            handle: Handle::new(context.engine.clone(), name, kind, &context.options),
        }
    }

    /// Acquires `permits` permits, from 1 to 1000, waiting until they are
    /// available.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn download() {}
    /// let redisson = client.redisson();
    /// let downloads = redisson.permit_expirable_semaphore("downloads");
    /// downloads.acquire(1).run(|_lease| download()).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Acquire<Unfenced> {
        Acquire::new(self.handle.request_as(self.with_permits(permits)))
    }

    /// Acquires `permits` permits, from 1 to 1000, if they are available, and
    /// fails with [`Error::Busy`] otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let redisson = client.redisson();
    /// let downloads = redisson.permit_expirable_semaphore("downloads");
    /// let permits = downloads.try_acquire(2).wait()?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> Acquire<Unfenced> {
        Acquire::without_waiting(self.handle.request_as(self.with_permits(permits)))
    }

    /// Sets the number of permits if it was never set. Returns whether it was
    /// set by this call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the number set or not.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the number may have been set.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let redisson = client.redisson();
    /// let downloads = redisson.permit_expirable_semaphore("downloads");
    /// downloads.try_set_permits(10).await?;
    /// # Ok(()) }
    /// ```
    pub fn try_set_permits(&self, permits: u32) -> Pending<'_, bool> {
        let set = self.handle.send(move |kind| kind.set(permits));
        self.handle.engine.pending(set)
    }

    /// Returns the number of available permits. It is negative if the total was
    /// lowered below the number of held permits.
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
    /// let redisson = client.redisson();
    /// let downloads = redisson.permit_expirable_semaphore("downloads");
    /// println!("{} are free", downloads.available_permits().wait()?);
    /// # Ok(()) }
    /// ```
    pub fn available_permits(&self) -> Pending<'_, i64> {
        let available = self.handle.send(ExpirableCalls::available);
        self.handle.engine.pending(available)
    }

    /// Returns the calls that acquire `permits` permits.
    fn with_permits(&self, permits: u32) -> Result<Arc<ExpirableCalls>, Error> {
        if permits == 0 || permits > MAX_PERMITS {
            let why = format!("{permits} is not between 1 and {MAX_PERMITS}");
            return Err(Error::invalid("permits", why));
        }
        Ok(Arc::new(self.handle.kind()?.with_permits(permits)))
    }

    /// Returns the semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for RPermitExpirableSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_tuple("RPermitExpirableSemaphore");
        shown.field(&self.name()).finish()
    }
}

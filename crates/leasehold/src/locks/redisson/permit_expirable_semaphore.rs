//! Redisson's `RPermitExpirableSemaphore`: permits with a lease each.

use std::sync::Arc;

use super::super::acquire::{Acquire, TryAcquire};
use super::super::handle::Handle;
use super::Redisson;
use crate::error::Error;
use crate::lease::{Guard, Unfenced};
use crate::protocol::redisson::ExpirableCalls;

/// Each permit has an id that is sent along: more at once would hold up the server.
const MOST: u32 = 1000;

/// Redisson's semaphore whose permits expire, by its name. Not fair.
///
/// Permits that are taken here are renewed until their guard is gone, which Redisson's own are not. Those whose
/// lease has ended come back when somebody asks for permits.
#[derive(Clone)]
pub struct RPermitExpirableSemaphore {
    handle: Handle<ExpirableCalls>,
}

impl RPermitExpirableSemaphore {
    pub(super) fn new(redisson: &Redisson, name: &str) -> Self {
        let kind = redisson.naming.object(name).map(ExpirableCalls::new);
        Self {
            handle: Handle::new(redisson.engine.clone(), name, kind, &redisson.options),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires so many permits, at most 1000, waiting for them as long as need be.
    pub fn acquire(&self, permits: u32) -> Acquire<Guard<Unfenced>> {
        Acquire::guarded_by(
            self.handle.request_as(self.taking(permits)),
            Guard::unfenced,
        )
    }

    /// Acquires so many permits if there are; `Ok(None)` otherwise.
    pub fn try_acquire(&self, permits: u32) -> TryAcquire<Guard<Unfenced>> {
        TryAcquire::guarded_by(
            self.handle.request_as(self.taking(permits)),
            Guard::unfenced,
        )
    }

    /// Sets how many permits there are; false when that was done before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves them set or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. After [`Error::OutcomeUnknown`] they may have been set.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.handle.query(|kind| kind.set(permits)).await
    }

    /// How many permits could be taken now; less than nothing when more were taken away than there were.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn available_permits(&self) -> Result<i64, Error> {
        self.handle.query(ExpirableCalls::available).await
    }

    fn taking(&self, permits: u32) -> Result<Arc<ExpirableCalls>, Error> {
        if permits == 0 || permits > MOST {
            return Err(Error::invalid("permits", format!("from 1 to {MOST}")));
        }
        Ok(Arc::new(self.handle.kind()?.with_permits(permits)))
    }
}

impl std::fmt::Debug for RPermitExpirableSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_tuple("RPermitExpirableSemaphore");
        shown.field(&self.name()).finish()
    }
}

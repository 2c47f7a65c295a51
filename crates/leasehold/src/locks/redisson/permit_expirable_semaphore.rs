//! Redisson's `RPermitExpirableSemaphore`: permits with leases.

use std::sync::Arc;

use super::super::acquire::{Acquire, TryAcquire};
use super::super::handle::Handle;
use super::context::RedissonContext;
use crate::error::Error;
use crate::lease::{Guard, Unfenced};
use crate::protocol::redisson::ExpirableCalls;

/// Limits one request: each permit has an id that is sent, and more of them
/// would block the server.
const MAX_PERMITS: u32 = 1000;

/// A semaphore of Redisson, whose permits have leases.
///
/// It is unfair. Permits acquired here are renewed until their guard is
/// dropped, which Redisson itself does not do. Expired permits become available
/// when a client next acquires permits.
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

    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires `permits` permits, from 1 to 1000, waiting until they are
    /// available.
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Acquire<Guard<Unfenced>> {
        Acquire::guarded_by(
            self.handle.request_as(self.with_permits(permits)),
            Guard::unfenced,
        )
    }

    /// Acquires `permits` permits, from 1 to 1000, if they are available;
    /// resolves to `Ok(None)` otherwise.
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> TryAcquire<Guard<Unfenced>> {
        TryAcquire::guarded_by(
            self.handle.request_as(self.with_permits(permits)),
            Guard::unfenced,
        )
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
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.handle.send(|kind| kind.set(permits)).await
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
    pub async fn available_permits(&self) -> Result<i64, Error> {
        self.handle.send(ExpirableCalls::available).await
    }

    /// Returns the calls that acquire `permits` permits.
    fn with_permits(&self, permits: u32) -> Result<Arc<ExpirableCalls>, Error> {
        if permits == 0 || permits > MAX_PERMITS {
            let why = format!("{permits} is not between 1 and {MAX_PERMITS}");
            return Err(Error::invalid("permits", why));
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

//! Reentrant handles.
//!
//! Reentrancy belongs to a handle, not to a thread, because tasks move between
//! threads.

use std::sync::Arc;

use super::acquire::{Acquire, AcquireRequest, TryAcquire};
use super::handle::Handle;
use crate::lease::{Guard, Reentry};
use crate::protocol::Kind;

/// A handle that can acquire its lock again while it holds it.
///
/// All clones of the handle share one acquisition. The first guard acquires the
/// lock, and dropping the last guard releases it. The guards in between send no
/// request. All guards share one lease and one token, and the options of the
/// first acquire apply.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// use leasehold::ReleaseOutcome;
///
/// let account = client.mutex("account:1").reentrant();
/// let outer = account.lock().await?;
/// let inner = account.lock().await?; // without a request
/// assert_eq!(inner.release().await?, ReleaseOutcome::StillHeld);
/// assert_eq!(outer.release().await?, ReleaseOutcome::Released);
/// # Ok(()) }
/// ```
pub struct Reentrant<G = Guard> {
    handle: Handle<dyn Kind>,
    reentry: Arc<Reentry>,
    /// Makes the guard that this kind returns.
    wrap: fn(Guard) -> G,
}

impl<G> Reentrant<G> {
    pub(super) fn new(handle: Handle<dyn Kind>, wrap: fn(Guard) -> G) -> Self {
        Self {
            handle,
            reentry: Arc::default(),
            wrap,
        }
    }

    /// Acquires the lock, waiting until it is free. Resolves immediately if
    /// this handle holds it.
    #[track_caller]
    pub fn lock(&self) -> Acquire<G> {
        Acquire::guarded_by(self.request(), self.wrap)
    }

    /// Acquires the lock if it is free or held by this handle; resolves to
    /// `Ok(None)` otherwise.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire<G> {
        TryAcquire::guarded_by(self.request(), self.wrap)
    }

    /// Returns the same handle with another type of guards.
    pub(crate) fn guarded_by<H>(&self, wrap: fn(Guard) -> H) -> Reentrant<H> {
        Reentrant {
            handle: self.handle.clone(),
            reentry: self.reentry.clone(),
            wrap,
        }
    }

    #[track_caller]
    fn request(&self) -> AcquireRequest {
        AcquireRequest {
            reentry: Some(self.reentry.clone()),
            ..self.handle.request()
        }
    }
}

impl<G> Clone for Reentrant<G> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            reentry: self.reentry.clone(),
            wrap: self.wrap,
        }
    }
}

impl<G> std::fmt::Debug for Reentrant<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reentrant")
            .field(&self.handle.name())
            .finish()
    }
}

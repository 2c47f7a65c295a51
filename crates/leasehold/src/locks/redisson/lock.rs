//! Redisson's `RLock`, whichever of its locks it is.

use std::sync::Arc;

use super::super::acquire::{Acquire, GuardType, TryAcquire};
use super::super::handle::Handle;
use super::super::reentrant::Reentrant;
use super::Redisson;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Guard, Lease, Unfenced};
use crate::protocol::redisson::{FairLockCalls, LockCalls, Naming, Object};
use crate::protocol::{Call, Kind};

/// One of Redisson's locks by its name: what its `RLock` is. `G` is the guard that it hands out.
///
/// The owner of a lock is the guard, not the thread: each acquisition is to Redisson as if a thread of its own made
/// it. Use [`reentrant`](Self::reentrant) to enter a lock that is held.
pub struct RLock<G = Guard<Unfenced>> {
    handle: Handle<dyn Kind>,
    /// Takes the lock away from whoever holds it.
    force: Arc<dyn Fn() -> Option<Call<bool>> + Send + Sync>,
    wrap: fn(Guard) -> G,
}

impl RLock {
    pub(super) fn plain(redisson: &Redisson, name: &str) -> Self {
        let hashed = |object, _: &Naming| LockCalls::plain(object);
        Self::new(
            redisson,
            name,
            hashed,
            LockCalls::force_unlock,
            Guard::unfenced,
        )
    }

    pub(super) fn fair(redisson: &Redisson, name: &str) -> Self {
        let fair = |object, naming: &Naming| FairLockCalls::new(object, naming.fair_wait);
        Self::new(
            redisson,
            name,
            fair,
            FairLockCalls::force_unlock,
            Guard::unfenced,
        )
    }
}

impl RLock<Guard> {
    pub(super) fn fenced(redisson: &Redisson, name: &str) -> Self {
        let hashed = |object, _: &Naming| LockCalls::fenced(object);
        Self::new(redisson, name, hashed, LockCalls::force_unlock, |guard| {
            guard
        })
    }
}

impl<G> RLock<G> {
    /// The lock that `make` makes of the object `name`.
    pub(super) fn new<K: Kind>(
        redisson: &Redisson,
        name: &str,
        make: impl FnOnce(Object, &Naming) -> K,
        force: fn(&K) -> Call<bool>,
        wrap: fn(Guard) -> G,
    ) -> Self {
        let naming = &redisson.naming;
        let object = naming.object(name);
        let kind = object.map(|object| Arc::new(make(object, naming)));
        let of = kind.clone().ok();
        let (engine, options) = (redisson.engine.clone(), &redisson.options);
        Self {
            handle: Handle::of_any(engine, name, kind.map(|kind| kind as _), options),
            force: Arc::new(move || of.as_deref().map(force)),
            wrap,
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires the lock, waiting for it as long as need be; the lease is renewed unless its length is
    /// [fixed](Acquire::fixed_lease).
    ///
    /// What Redisson's `lock()` and `tryLock(wait)` do. A note is not kept: the naming has no place for it.
    pub fn lock(&self) -> Acquire<G> {
        Acquire::guarded_by(self.handle.request(), self.wrap)
    }

    /// Acquires the lock if it is free; `Ok(None)` when somebody holds it.
    pub fn try_lock(&self) -> TryAcquire<G> {
        TryAcquire::guarded_by(self.handle.request(), self.wrap)
    }

    /// Acquires the lock, does `work`, and gives the lock back on every way out; see
    /// [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and gives the lock back in the background.
    ///
    /// # Errors
    ///
    /// Those of acquiring, and [`Error::Lost`] when the lease was lost before the work was done.
    pub async fn run<R, W>(&self, work: R) -> Result<W::Output, Error>
    where
        G: GuardType,
        R: FnOnce(Lease<G::Fencing>) -> W,
        W: Future,
    {
        self.lock().run(work).await
    }

    /// A handle that can be entered again while it is held, by all who have a clone of it. How often it has been is
    /// written to the server, where Java clients see it as the hold count.
    #[must_use]
    pub fn reentrant(&self) -> Reentrant<G> {
        Reentrant::new(self.handle.clone(), self.wrap)
    }

    /// Takes the lock away from whoever holds it; false when nobody does. Redisson's `forceUnlock`.
    ///
    /// A Rust holder learns of it at its next renewal, a Java holder when it unlocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it taken away or not.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. After [`Error::OutcomeUnknown`] it may have been taken away.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        match (self.force)() {
            Some(call) => self.handle.query(|_| call).await,
            // The name cannot be one, and that is told.
            None => self.handle.kind().map(|_| false),
        }
    }

    /// Who holds the lock now, by the name that Redisson's client goes by; `None` when nobody does.
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

impl<G> Clone for RLock<G> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            force: self.force.clone(),
            wrap: self.wrap,
        }
    }
}

impl<G> std::fmt::Debug for RLock<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RLock").field(&self.name()).finish()
    }
}

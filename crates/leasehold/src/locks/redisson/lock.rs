//! Redisson's `RLock`: plain, fenced, fair, and both sides of a read-write
//! lock.

use std::sync::Arc;

use super::super::acquire::{Acquire, GuardType, TryAcquire};
use super::super::handle::Handle;
use super::super::reentrant::Reentrant;
use super::context::RedissonContext;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Guard, Lease, Unfenced};
use crate::protocol::redisson::{FairLockCalls, LockCalls, Naming, Object};
use crate::protocol::{Call, Kind};

/// A lock of Redisson, as its `RLock`. `G` is the type of its guards.
///
/// The owner of a lock is the guard, not the thread. To Java clients, each
/// acquisition is one of a separate thread. Use [`reentrant`](Self::reentrant)
/// to acquire a lock again that is held.
pub struct RLock<G = Guard<Unfenced>> {
    handle: Handle<dyn Kind>,
    /// Makes the call of `force_unlock`; `None` if the name is invalid.
    force: Arc<dyn Fn() -> Option<Call<bool>> + Send + Sync>,
    /// Makes the guard that this kind returns.
    wrap: fn(Guard) -> G,
}

impl RLock {
    pub(super) fn plain(context: &RedissonContext, name: &str) -> Self {
        let make = |object, _: &Naming| LockCalls::plain(object);
        Self::new(
            context,
            name,
            make,
            LockCalls::force_unlock,
            Guard::unfenced,
        )
    }

    pub(super) fn fair(context: &RedissonContext, name: &str) -> Self {
        let make = |object, naming: &Naming| FairLockCalls::new(object, naming.fair_wait);
        Self::new(
            context,
            name,
            make,
            FairLockCalls::force_unlock,
            Guard::unfenced,
        )
    }
}

impl RLock<Guard> {
    pub(super) fn fenced(context: &RedissonContext, name: &str) -> Self {
        let make = |object, _: &Naming| LockCalls::fenced(object);
        Self::new(context, name, make, LockCalls::force_unlock, |guard| guard)
    }
}

impl<G> RLock<G> {
    /// Creates the lock whose calls `make` creates from the keys of `name`.
    pub(super) fn new<K: Kind>(
        context: &RedissonContext,
        name: &str,
        make: impl FnOnce(Object, &Naming) -> K,
        force: fn(&K) -> Call<bool>,
        wrap: fn(Guard) -> G,
    ) -> Self {
        let naming = &context.naming;
        let object = naming.object(name);
        let kind = object.map(|object| Arc::new(make(object, naming)));
        let calls = kind.clone().ok();
        let (engine, options) = (context.engine.clone(), &context.options);
        Self {
            handle: Handle::dynamic(engine, name, kind.map(|kind| kind as _), options),
            force: Arc::new(move || calls.as_deref().map(force)),
            wrap,
        }
    }

    /// Returns the same lock with another type of guards.
    pub(crate) fn guarded_by<H>(&self, wrap: fn(Guard) -> H) -> RLock<H> {
        RLock {
            handle: self.handle.clone(),
            force: self.force.clone(),
            wrap,
        }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Acquires the lock, waiting until it is free: Redisson's `lock()` and
    /// `tryLock(wait)`.
    ///
    /// The lease is renewed unless it is [fixed](Acquire::fixed_lease). A
    /// [note](Acquire::note) is not stored, because Redisson's data has no
    /// field for it.
    #[track_caller]
    pub fn lock(&self) -> Acquire<G> {
        Acquire::guarded_by(self.handle.request(), self.wrap)
    }

    /// Acquires the lock if it is free; resolves to `Ok(None)` if another owner
    /// holds it.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire<G> {
        TryAcquire::guarded_by(self.handle.request(), self.wrap)
    }

    /// Acquires the lock, runs `work`, and releases the lock on every exit
    /// path; see [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock in the
    /// background.
    ///
    /// # Errors
    ///
    /// Any error of the acquire, and [`Error::Lost`] if the lease is lost
    /// before the work completes.
    #[track_caller]
    pub fn run<R, W>(
        &self,
        work: R,
    ) -> impl Future<Output = Result<W::Output, Error>> + use<R, W, G>
    where
        G: GuardType,
        R: FnOnce(Lease<G::Fencing>) -> W,
        W: Future,
    {
        self.lock().run(work)
    }

    /// Returns a handle that can acquire the lock again while it holds it.
    ///
    /// The number of its guards is written to the server, where Java clients
    /// read it as the hold count.
    #[must_use]
    pub fn reentrant(&self) -> Reentrant<G> {
        Reentrant::new(self.handle.clone(), self.wrap)
    }

    /// Revokes the lock from its holder: Redisson's `forceUnlock`. Returns
    /// whether it was held.
    ///
    /// A Rust holder learns of it at its next renewal, a Java holder when it
    /// unlocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the lock revoked or held.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the lock may have been revoked.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        match (self.force)() {
            Some(call) => self.handle.send(|_| call).await,
            // The name is invalid, which `kind` reports.
            None => self.handle.kind().map(|_| false),
        }
    }

    /// Returns the current holder, or `None` if the lock is free. Its field
    /// [`redisson`](Holder::redisson) is the id of the client and thread.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
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

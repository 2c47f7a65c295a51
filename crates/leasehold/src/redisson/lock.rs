//! Redisson's `RLock`: plain, fenced, fair, and both sides of a read-write
//! lock.

use std::marker::PhantomData;
use std::sync::Arc;

use super::Unfenced;
use super::calls::{FairLockCalls, LockCalls, Naming, Object};
use super::context::RedissonContext;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::{Exclusive, Pending};
use crate::locks::Acquire;
use crate::locks::Handle;
use crate::locks::Reentrant;
use crate::protocol::{Call, Kind};

/// A lock of Redisson, as the `RLock` of Java. `M` is [`Exclusive`] for the
/// fenced lock, which has tokens, and [`Unfenced`] for the others.
///
/// The owner of a lock is the guard, not the thread. To Java clients, each
/// acquisition seems to come from a separate thread. Use
/// [`reentrant`](Self::reentrant) to acquire a lock again that is held.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn book() {}
/// let invoice = client.redisson().lock("invoice:42");
/// invoice.lock().run(|_lease| book()).await?;
/// # Ok(()) }
/// ```
pub struct RLock<M = Unfenced> {
    handle: Handle<dyn Kind>,
    /// Makes the call of `force_unlock`; `None` if the name is invalid.
    force: Arc<dyn Fn() -> Option<Call<bool>> + Send + Sync>,
    /// Makes the guard that this kind returns.
    mode: PhantomData<fn() -> M>,
}

impl RLock {
    pub(super) fn plain(context: &RedissonContext, name: &str) -> Self {
        let make = |object, _: &Naming| LockCalls::plain(object);
        Self::new(context, name, make, LockCalls::force_unlock)
    }

    pub(super) fn fair(context: &RedissonContext, name: &str) -> Self {
        let make = |object, naming: &Naming| FairLockCalls::new(object, naming.fair_wait);
        Self::new(context, name, make, FairLockCalls::force_unlock)
    }
}

impl RLock<Exclusive> {
    pub(super) fn fenced(context: &RedissonContext, name: &str) -> Self {
        let make = |object, _: &Naming| LockCalls::fenced(object);
        Self::new(context, name, make, LockCalls::force_unlock)
    }
}

impl<M> RLock<M> {
    /// Creates the lock whose calls `make` creates from the keys of `name`.
    pub(super) fn new<K: Kind>(
        context: &RedissonContext,
        name: &str,
        make: impl FnOnce(Object, &Naming) -> K,
        force: fn(&K) -> Call<bool>,
    ) -> Self {
        let naming = &context.naming;
        let object = naming.object(name);
        let kind = object.map(|object| Arc::new(make(object, naming)));
        // The handle forgets the type `K`, and `Kind` has no revocation.
        let calls = kind.clone().ok();
        let (engine, options) = (context.engine.clone(), &context.options);
        Self {
            handle: Handle::dynamic(engine, name, kind.map(|kind| kind as _), options),
            force: Arc::new(move || calls.as_deref().map(force)),
            mode: PhantomData,
        }
    }

    /// Acquires the lock, waiting until it is free: Redisson's `lock()` and
    /// `tryLock(wait)`.
    ///
    /// The lease is renewed unless it is [fixed](Acquire::fixed_lease). A
    /// [note](Acquire::note) is not stored, because Redisson's data has no
    /// field for it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().lock("invoice:42");
    /// let guard = invoice.lock().timeout(Duration::from_secs(5)).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Acquire<M> {
        Acquire::new(self.handle.request())
    }

    /// Acquires the lock if it is free: Redisson's `tryLock()`. Fails with
    /// [`Error::Busy`] if another owner holds it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().lock("invoice:42");
    /// match invoice.try_lock().wait() {
    ///     Ok(guard) => guard.release().wait()?,
    ///     Err(Error::Busy { .. }) => println!("another client holds it"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> Acquire<M> {
        Acquire::without_waiting(self.handle.request())
    }

    /// Returns a handle that can acquire the lock again while it holds it.
    ///
    /// The number of guards is written to the server, where Java clients read
    /// it as the hold count.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().lock("invoice:42").reentrant();
    /// let outer = invoice.lock().await?;
    /// let inner = invoice.lock().await?; // Java: getHoldCount() == 2
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn reentrant(&self) -> Reentrant<M> {
        Reentrant::new(self.handle.clone())
    }

    /// Revokes the lock from the holder: Redisson's `forceUnlock`. Returns
    /// whether it was held.
    ///
    /// A Rust holder learns of it at the next renewal, a Java holder when it
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
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().lock("invoice:42");
    /// if invoice.force_unlock().await? {
    ///     eprintln!("revoked: two clients may work at the same time");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn force_unlock(&self) -> Pending<'_, bool> {
        self.handle.engine.pending(self.force_unlock_now())
    }

    async fn force_unlock_now(&self) -> Result<bool, Error> {
        match (self.force)() {
            Some(call) => self.handle.send(|_| call).await,
            // The name is invalid, which `kind` reports.
            None => self.handle.kind().map(|_| false),
        }
    }

    /// Returns the current holder, or `None` if the lock is free. The field
    /// [`redisson`](crate::Process::redisson) is the id of the client and
    /// thread.
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
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let invoice = client.redisson().lock("invoice:42");
    /// if let Some(holder) = invoice.holder().await? {
    ///     println!("held by {:?}", holder.process.redisson);
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

impl<M> Clone for RLock<M> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            force: self.force.clone(),
            mode: PhantomData,
        }
    }
}

impl<M> std::fmt::Debug for RLock<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RLock").field(&self.name()).finish()
    }
}

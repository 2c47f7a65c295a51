//! One interface to all exclusive lock types, for tests that cover each of
//! them, used by tasks or by threads.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use leasehold::{Client, Error, Loss, Lost, Pending, Quorum, Shared};
use tokio::task::JoinHandle;

use crate::support::AMPLE;
use crate::support::callers::Caller;

/// The types of every lock with a token, exclusive or not.
pub(crate) type Guard = leasehold::Guard<Shared>;
pub(crate) type Lease = leasehold::Lease<Shared>;
pub(crate) type Acquire = leasehold::Acquire<Shared>;
pub(crate) type MultiLock = leasehold::MultiLock<Shared>;
pub(crate) type MultiGuard = leasehold::MultiGuard<Shared>;

/// A lock that one holder has at a time.
pub(crate) trait ExclusiveLock: Clone + Send + Sync + 'static {
    type Guard: HeldGuard;

    /// Returns an acquire, with options still to be set.
    fn request(&self) -> Acquire;
    fn acquire(&self, lock: Acquire) -> Pending<'static, Self::Guard>;
    fn try_lock(&self) -> Pending<'static, Self::Guard>;
    /// Runs `work` under the lock. Dropping the future ends the work.
    fn run<W>(
        &self,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send,
    ) -> impl Future<Output = Result<W::Output, Error>> + Send
    where
        W: Future + Send,
        W::Output: Send;
    /// Runs `work` under the lock, on this thread.
    fn run_blocking<T>(
        &self,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> T,
    ) -> Result<T, Error>;
}

/// An exclusive lock that clients of type `C` have.
pub(crate) trait LockOf<C>: ExclusiveLock {
    fn with_name(client: &C, name: &str) -> Self;
}

/// A client that can be shut down.
pub(crate) trait ShutDown: Send + Sync + 'static {
    fn shutdown(&self, limit: Duration) -> Pending<'_, ()>;
}

impl ShutDown for Client {
    fn shutdown(&self, limit: Duration) -> Pending<'_, ()> {
        Client::shutdown(self, limit)
    }
}

impl ShutDown for Quorum {
    fn shutdown(&self, limit: Duration) -> Pending<'_, ()> {
        Quorum::shutdown(self, limit)
    }
}

/// The guard of an exclusive lock.
pub(crate) trait HeldGuard: Send + Sync + std::fmt::Debug + 'static {
    fn leases(&self) -> Vec<Lease>;
    fn extend(&self, lease: Duration) -> Pending<'_, ()>;
    fn release(self) -> Pending<'static, ()>;
    fn lost(&self) -> Lost;
}

impl HeldGuard for Guard {
    fn leases(&self) -> Vec<Lease> {
        vec![self.lease()]
    }
    fn extend(&self, lease: Duration) -> Pending<'_, ()> {
        Guard::extend(self, lease)
    }
    fn release(self) -> Pending<'static, ()> {
        Guard::release(self)
    }
    fn lost(&self) -> Lost {
        Guard::lost(self)
    }
}

impl HeldGuard for MultiGuard {
    fn leases(&self) -> Vec<Lease> {
        MultiGuard::leases(self).cloned().collect()
    }
    fn extend(&self, lease: Duration) -> Pending<'_, ()> {
        MultiGuard::extend(self, lease)
    }
    fn release(self) -> Pending<'static, ()> {
        MultiGuard::release(self)
    }
    fn lost(&self) -> Lost {
        MultiGuard::lost(self)
    }
}

/// A lock of type `K`, used by callers of type `U`.
pub(crate) struct Lock<K, U> {
    kind: K,
    caller: PhantomData<fn(U)>,
}

impl<K: Clone, U> Clone for Lock<K, U> {
    fn clone(&self) -> Self {
        Self::new(self.kind.clone())
    }
}

impl<K, U> Lock<K, U> {
    fn new(kind: K) -> Self {
        Self {
            kind,
            caller: PhantomData,
        }
    }

    pub(crate) fn with_name<C>(client: &C, name: &str) -> Self
    where
        K: LockOf<C>,
    {
        Self::new(K::with_name(client, name))
    }
}

impl<K: ExclusiveLock, U: Caller> Lock<K, U> {
    pub(crate) fn lock(&self) -> Request<K, U> {
        Request {
            lock: self.clone(),
            acquire: self.kind.request(),
        }
    }

    /// Tries to acquire the lock. Returns `None` if it is busy.
    pub(crate) async fn try_lock(&self) -> Result<Option<Held<K::Guard, U>>, Error> {
        match U::complete(self.kind.try_lock()).await {
            Ok(guard) => Ok(Some(Held::new(guard))),
            Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An acquire with its options.
pub(crate) struct Request<K, U> {
    lock: Lock<K, U>,
    acquire: Acquire,
}

impl<K: ExclusiveLock, U: Caller> Request<K, U> {
    fn with(mut self, option: impl FnOnce(Acquire) -> Acquire) -> Self {
        self.acquire = option(self.acquire);
        self
    }

    pub(crate) fn timeout(self, limit: Duration) -> Self {
        self.with(|acquire| acquire.timeout(limit))
    }

    pub(crate) fn lease(self, length: Duration) -> Self {
        self.with(|acquire| acquire.lease(length))
    }

    pub(crate) fn fixed_lease(self, length: Duration) -> Self {
        self.with(|acquire| acquire.fixed_lease(length))
    }

    pub(crate) fn at_least(self, length: Duration) -> Self {
        self.with(|acquire| acquire.at_least(length))
    }

    pub(crate) fn at_most(self, length: Duration) -> Self {
        self.with(|acquire| acquire.at_most(length))
    }

    pub(crate) fn note(self, text: &str) -> Self {
        self.with(|acquire| acquire.note(text))
    }

    pub(crate) async fn run<W>(
        self,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> Result<W::Output, Error>
    where
        W: Future + Send,
        W::Output: Send + 'static,
    {
        U::run(self.lock.kind, self.acquire, work).await
    }
}

impl<K: ExclusiveLock, U: Caller> IntoFuture for Request<K, U> {
    type Output = Result<Held<K::Guard, U>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let guard = self.lock.kind.acquire(self.acquire);
        Box::pin(async move { U::complete(guard).await.map(Held::new) })
    }
}

/// A guard, used by callers of type `U`.
pub(crate) struct Held<G, U> {
    guard: G,
    caller: PhantomData<fn(U)>,
}

impl<G: std::fmt::Debug, U> std::fmt::Debug for Held<G, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.guard.fmt(f)
    }
}

impl<G: HeldGuard, U: Caller> Held<G, U> {
    fn new(guard: G) -> Self {
        Self {
            guard,
            caller: PhantomData,
        }
    }

    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        U::complete_in_place(self.guard.extend(lease)).await
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        U::complete(self.guard.release()).await
    }

    pub(crate) async fn lost(&self) -> Option<Loss> {
        U::lost(self.guard.lost()).await
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.guard.leases().iter().try_for_each(Lease::check)
    }

    pub(crate) fn token(&self) -> u64 {
        self.named_lease().token().as_u64()
    }

    /// Returns the lease of the lock that the test named. It follows the lease
    /// of a pair's extra lock.
    pub(crate) fn named_lease(&self) -> Lease {
        self.guard.leases().pop().expect("at least one lease")
    }
}

/// A multi-lock of two: the named lock, and one that only this client uses.
#[derive(Clone)]
pub(crate) struct LockPair {
    client: Client,
    name: String,
    /// Sorts before `name`, so it is held while the client waits for the other
    /// lock.
    extra: String,
}

impl LockPair {
    fn with(&self, lock: Acquire) -> MultiLock {
        MultiLock::new([lock, self.client.fair_mutex(&self.extra).lock().into()])
    }
}

impl LockOf<Client> for LockPair {
    fn with_name(client: &Client, name: &str) -> Self {
        Self {
            client: client.clone(),
            name: name.to_owned(),
            extra: format!("!extra:{}", crate::support::name()),
        }
    }
}

impl ExclusiveLock for LockPair {
    type Guard = MultiGuard;

    fn request(&self) -> Acquire {
        self.client.mutex(&self.name).lock().into()
    }
    fn acquire(&self, lock: Acquire) -> Pending<'static, MultiGuard> {
        self.with(lock).into_future()
    }
    fn try_lock(&self) -> Pending<'static, MultiGuard> {
        let lock = self.client.mutex(&self.name).try_lock();
        self.with(lock.into()).into_future()
    }
    async fn run<W>(
        &self,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send,
    ) -> Result<W::Output, Error>
    where
        W: Future + Send,
        W::Output: Send,
    {
        self.with(lock).run(work).await
    }
    fn run_blocking<T>(
        &self,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> T,
    ) -> Result<T, Error> {
        let locks = self.with(lock);
        locks.run_blocking(|leases| work(leases.to_vec()))
    }
}

/// The number of lock types that [`any_lock`] and [`any_try_lock`] support.
pub(crate) const KINDS: u64 = 4;

/// Returns an acquire of one of the lock types, by number. A name must always
/// be used with the same number.
pub(crate) fn any_lock(client: &Client, name: &str, number: u64) -> Acquire {
    match number % KINDS {
        0 => client.mutex(name).lock().into(),
        1 => client.fair_mutex(name).lock().into(),
        2 => client.semaphore(name, 1).acquire(),
        _ => client.rw_lock(name).write().into(),
    }
}

/// Like [`any_lock`], without waiting.
pub(crate) fn any_try_lock(client: &Client, name: &str, number: u64) -> Acquire {
    match number % KINDS {
        0 => client.mutex(name).try_lock().into(),
        1 => client.fair_mutex(name).try_lock().into(),
        2 => client.semaphore(name, 1).try_acquire(),
        _ => client.rw_lock(name).try_write().into(),
    }
}

/// Releases `guard` after a failover, which may have lost its lease, and
/// returns the guard of the waiter `next`.
pub(crate) async fn release_to_next(guard: Guard, next: JoinHandle<Result<Guard, Error>>) -> Guard {
    match (guard.check().is_ok(), guard.release().await) {
        (held, Ok(())) => assert!(held),
        (_, Err(Error::Lost { .. })) => {}
        (_, other) => panic!("{other:?}"),
    }
    let got = tokio::time::timeout(AMPLE, next).await;
    got.expect("the waiter acquires the lock").unwrap().unwrap()
}

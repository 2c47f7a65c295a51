//! One interface to all exclusive lock types, for tests that cover each of
//! them.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use leasehold::{Client, Error, Loss, ReleaseOutcome, Shared, ShutdownOutcome, blocking};
use tokio::task::JoinHandle;

use crate::support::AMPLE;

/// The types of every lock with a token, exclusive or not.
pub(crate) type Guard = leasehold::Guard<Shared>;
pub(crate) type Lease = leasehold::Lease<Shared>;
pub(crate) type Acquire = leasehold::Acquire<Guard>;
pub(crate) type TryAcquire = leasehold::TryAcquire<Guard>;
pub(crate) type MultiLock = leasehold::MultiLock<Shared>;
pub(crate) type MultiGuard = leasehold::MultiGuard<Shared>;

/// A lock that one holder has at a time.
pub(crate) trait ExclusiveLock<C = Client>: Clone + Send + Sync + 'static {
    type Guard: HeldGuard;
    /// An acquisition, by a task or by a thread.
    type Acquire: Options;

    fn with_name(client: &C, name: &str) -> Self;
    /// Returns an acquisition whose options can still be set.
    fn request(&self) -> Self::Acquire;
    fn acquire(
        &self,
        lock: Self::Acquire,
    ) -> impl Future<Output = Result<Self::Guard, Error>> + Send;
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;
    /// Runs `work` under the lock. Dropping the future ends the work.
    fn run<W>(
        &self,
        lock: Self::Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> impl Future<Output = Result<W::Output, Error>> + Send
    where
        W: Future + Send,
        W::Output: Send + 'static;

    fn lock(&self) -> Request<Self, C> {
        Request {
            kind: self.clone(),
            lock: self.request(),
            client: PhantomData,
        }
    }
}

/// A client that can be shut down.
pub(crate) trait ShutDown: Send + Sync {
    fn shutdown(&self, limit: Duration) -> impl Future<Output = ShutdownOutcome> + Send;
}

impl ShutDown for Client {
    async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        Client::shutdown(self, limit).await
    }
}

/// The guard of an exclusive lock.
pub(crate) trait HeldGuard: Send + Sync + std::fmt::Debug + 'static {
    fn leases(&self) -> Vec<Lease>;
    fn extend(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send;
    fn release(self) -> impl Future<Output = Result<ReleaseOutcome, Error>> + Send;
    fn lost(&self) -> impl Future<Output = Option<Loss>> + Send;

    fn check(&self) -> Result<(), Error> {
        self.leases().iter().try_for_each(Lease::check)
    }
    fn token(&self) -> u64 {
        self.named_lease().token().as_u64()
    }
    /// Returns the lease of the lock that the test named. It follows the lease
    /// of a pair's extra lock.
    fn named_lease(&self) -> Lease {
        self.leases().pop().expect("at least one lease")
    }
}

/// The options of an acquisition that the contract covers.
pub(crate) trait Options: Send + Sized + 'static {
    fn timeout(self, limit: Duration) -> Self;
    fn lease(self, length: Duration) -> Self;
    fn fixed_lease(self, length: Duration) -> Self;
    fn at_least(self, length: Duration) -> Self;
    fn at_most(self, length: Duration) -> Self;
    fn note(self, text: &str) -> Self;
}

macro_rules! impl_options {
    ($type:ty) => {
        impl Options for $type {
            fn timeout(self, limit: Duration) -> Self {
                self.timeout(limit)
            }
            fn lease(self, length: Duration) -> Self {
                self.lease(length)
            }
            fn fixed_lease(self, length: Duration) -> Self {
                self.fixed_lease(length)
            }
            fn at_least(self, length: Duration) -> Self {
                self.at_least(length)
            }
            fn at_most(self, length: Duration) -> Self {
                self.at_most(length)
            }
            fn note(self, text: &str) -> Self {
                self.note(text)
            }
        }
    };
}
impl_options!(Acquire);
impl_options!(blocking::Acquire<blocking::Guard<Shared>>);

/// An acquisition with its options.
pub(crate) struct Request<K: ExclusiveLock<C>, C> {
    kind: K,
    lock: K::Acquire,
    client: PhantomData<fn(C)>,
}

impl<C, K: ExclusiveLock<C>> Request<K, C> {
    pub(crate) fn timeout(mut self, limit: Duration) -> Self {
        self.lock = self.lock.timeout(limit);
        self
    }

    pub(crate) fn lease(mut self, length: Duration) -> Self {
        self.lock = self.lock.lease(length);
        self
    }

    pub(crate) fn fixed_lease(mut self, length: Duration) -> Self {
        self.lock = self.lock.fixed_lease(length);
        self
    }

    pub(crate) fn at_least(mut self, length: Duration) -> Self {
        self.lock = self.lock.at_least(length);
        self
    }

    pub(crate) fn at_most(mut self, length: Duration) -> Self {
        self.lock = self.lock.at_most(length);
        self
    }

    pub(crate) fn note(mut self, text: &str) -> Self {
        self.lock = self.lock.note(text);
        self
    }

    pub(crate) async fn run<W>(
        self,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> Result<W::Output, Error>
    where
        W: Future + Send,
        W::Output: Send + 'static,
    {
        self.kind.run(self.lock, work).await
    }
}

impl<C: 'static, K: ExclusiveLock<C>> IntoFuture for Request<K, C> {
    type Output = Result<K::Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.kind.acquire(self.lock).await })
    }
}

impl HeldGuard for Guard {
    fn leases(&self) -> Vec<Lease> {
        vec![self.lease().clone()]
    }
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        Guard::extend(self, lease).await
    }
    async fn release(self) -> Result<ReleaseOutcome, Error> {
        Guard::release(self).await
    }
    async fn lost(&self) -> Option<Loss> {
        Lease::lost(self).await
    }
}

impl HeldGuard for MultiGuard {
    fn leases(&self) -> Vec<Lease> {
        MultiGuard::leases(self).cloned().collect()
    }
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        MultiGuard::extend(self, lease).await
    }
    async fn release(self) -> Result<ReleaseOutcome, Error> {
        MultiGuard::release(self).await
    }
    async fn lost(&self) -> Option<Loss> {
        MultiGuard::lost(self).await.1
    }
}

/// A multi-lock of two: the named lock, and one that only this client uses.
#[derive(Clone)]
pub(crate) struct LockPair<C = Client> {
    pub(super) client: C,
    pub(super) name: String,
    /// Sorts before `name`, so it is held while the client waits for the other
    /// lock.
    pub(super) extra: String,
}

impl<C: Clone> LockPair<C> {
    pub(super) fn new(client: &C, name: &str) -> Self {
        Self {
            client: client.clone(),
            name: name.to_owned(),
            extra: format!("!extra:{}", crate::support::name()),
        }
    }
}

impl LockPair {
    fn with(&self, lock: Acquire) -> MultiLock {
        MultiLock::new([lock, self.client.fair_mutex(&self.extra).lock().into()])
    }
}

impl ExclusiveLock for LockPair {
    type Guard = MultiGuard;
    type Acquire = Acquire;

    fn with_name(client: &Client, name: &str) -> Self {
        Self::new(client, name)
    }
    fn request(&self) -> Acquire {
        self.client.mutex(&self.name).lock().into()
    }
    async fn acquire(&self, lock: Acquire) -> Result<MultiGuard, Error> {
        self.with(lock).await
    }
    async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        match self.with(self.request()).timeout(Duration::ZERO).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
    async fn run<W>(
        &self,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> Result<W::Output, Error>
    where
        W: Future + Send,
        W::Output: Send + 'static,
    {
        self.with(lock).run(work).await
    }
}

/// The number of lock types that [`any_lock`] and [`any_try_lock`] support.
pub(crate) const KINDS: u64 = 4;

macro_rules! any_lock {
    ($function:ident: $client:ty, $acquire:ty) => {
        /// Returns an acquisition of one of the lock types, by number. A name
        /// must always be used with the same number.
        pub(crate) fn $function(client: &$client, name: &str, number: u64) -> $acquire {
            match number % KINDS {
                0 => client.mutex(name).lock().into(),
                1 => client.fair_mutex(name).lock().into(),
                2 => client.semaphore(name, 1).acquire(),
                _ => client.rw_lock(name).write().into(),
            }
        }
    };
}
any_lock!(any_lock: Client, Acquire);
any_lock!(any_lock_for_thread: blocking::Client, blocking::Acquire<blocking::Guard<Shared>>);

/// Like [`any_lock`], without waiting.
pub(crate) fn any_try_lock(client: &Client, name: &str, number: u64) -> TryAcquire {
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
        (held, Ok(ReleaseOutcome::Released)) => assert!(held),
        (_, Ok(ReleaseOutcome::AlreadyLost { .. })) => {}
        (_, other) => panic!("{other:?}"),
    }
    let got = tokio::time::timeout(AMPLE, next).await;
    got.expect("the waiter acquires the lock").unwrap().unwrap()
}

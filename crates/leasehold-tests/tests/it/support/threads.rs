//! The blocking API behind the interface of the contract: each call runs on a
//! thread of its own.

use std::panic::resume_unwind;
use std::time::Duration;

use leasehold::{Error, Loss, ReleaseOutcome, Shared, ShutdownOutcome, blocking};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::support::AMPLE;
use crate::support::contract::{ExclusiveLock, HeldGuard, Lease, LockPair, ShutDown};

pub(crate) type ThreadGuard = blocking::Guard<Shared>;
pub(crate) type ThreadAcquire = blocking::Acquire<ThreadGuard>;
pub(crate) type ThreadMultiGuard = blocking::MultiGuard<Shared>;

/// Runs a blocking call on another thread.
pub(crate) async fn on_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let outcome = tokio::task::spawn_blocking(call).await;
    outcome.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// Work that a blocking `run` calls; `None` if it was stopped.
pub(crate) type Work<T> = Box<dyn FnOnce(Vec<Lease>) -> Option<T>>;

/// Runs `work` by `run` on another thread. The API cannot end the work of a
/// thread, so the work ends itself when the future is dropped.
pub(crate) async fn run_on_thread<T, W>(
    run: impl FnOnce(Work<T>) -> Result<Option<T>, Error> + Send + 'static,
    work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
) -> Result<T, Error>
where
    T: Send + 'static,
    W: Future<Output = T>,
{
    let (_stop, stopped) = oneshot::channel::<()>();
    let runtime = Handle::current();
    let output = on_thread(move || {
        run(Box::new(move |leases| {
            runtime.block_on(async {
                tokio::select! {
                    output = work(leases) => Some(output),
                    _ = stopped => None,
                }
            })
        }))
    });
    Ok(output.await?.expect("the work is not stopped"))
}

impl HeldGuard for ThreadGuard {
    fn leases(&self) -> Vec<Lease> {
        vec![self.lease().clone()]
    }
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        tokio::task::block_in_place(|| ThreadGuard::extend(self, lease))
    }
    async fn release(self) -> Result<ReleaseOutcome, Error> {
        on_thread(|| ThreadGuard::release(self)).await
    }
    async fn lost(&self) -> Option<Loss> {
        wait_for_loss(self.lost_signal(), || HeldGuard::check(self)).await
    }
}

impl HeldGuard for ThreadMultiGuard {
    fn leases(&self) -> Vec<Lease> {
        ThreadMultiGuard::leases(self).cloned().collect()
    }
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        tokio::task::block_in_place(|| ThreadMultiGuard::extend(self, lease))
    }
    async fn release(self) -> Result<ReleaseOutcome, Error> {
        on_thread(|| ThreadMultiGuard::release(self)).await
    }
    async fn lost(&self) -> Option<Loss> {
        wait_for_loss(self.lost_signal(), || HeldGuard::check(self)).await
    }
}

async fn wait_for_loss(
    signal: blocking::LostSignal,
    check: impl Fn() -> Result<(), Error>,
) -> Option<Loss> {
    assert!(
        on_thread(move || signal.wait_timeout(AMPLE)).await,
        "not lost"
    );
    match check() {
        Err(Error::Lost { loss, .. }) => Some(loss),
        other => panic!("{other:?}"),
    }
}

impl ShutDown for blocking::Client {
    async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        let client = self.clone();
        on_thread(move || client.shutdown(limit)).await.unwrap()
    }
}

impl ShutDown for blocking::Quorum {
    async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        let quorum = self.clone();
        on_thread(move || quorum.shutdown(limit)).await.unwrap()
    }
}

impl LockPair<blocking::Client> {
    fn with(&self, lock: ThreadAcquire) -> blocking::MultiLock<Shared> {
        let extra = self.client.fair_mutex(&self.extra);
        blocking::MultiLock::new([lock, extra.lock().into()])
    }
}

impl ExclusiveLock<blocking::Client> for LockPair<blocking::Client> {
    type Guard = ThreadMultiGuard;
    type Acquire = ThreadAcquire;

    fn with_name(client: &blocking::Client, name: &str) -> Self {
        Self::new(client, name)
    }
    fn request(&self) -> ThreadAcquire {
        self.client.mutex(&self.name).lock().into()
    }
    async fn acquire(&self, lock: ThreadAcquire) -> Result<ThreadMultiGuard, Error> {
        let locks = self.with(lock);
        on_thread(|| locks.acquire()).await
    }
    async fn try_lock(&self) -> Result<Option<ThreadMultiGuard>, Error> {
        let locks = self.with(self.request()).timeout(Duration::ZERO);
        match on_thread(|| locks.acquire()).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
    async fn run<W>(
        &self,
        lock: ThreadAcquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> Result<W::Output, Error>
    where
        W: Future + Send,
        W::Output: Send + 'static,
    {
        let locks = self.with(lock);
        run_on_thread(|work| locks.run(work), work).await
    }
}

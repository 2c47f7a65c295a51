//! Tasks and threads: both complete the same requests, each in its own way.

use std::future::Future;
use std::panic::resume_unwind;

use leasehold::{Error, Loss, Lost, Pending};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::support::AMPLE;
use crate::support::contract::{Acquire, ExclusiveLock, Lease};

/// How a caller completes requests.
pub(crate) trait Caller: 'static {
    fn complete<T: Send + 'static>(
        request: Pending<'static, T>,
    ) -> impl Future<Output = Result<T, Error>> + Send;

    /// Completes a request that borrows, on the current thread.
    fn complete_in_place<T: Send>(
        request: Pending<'_, T>,
    ) -> impl Future<Output = Result<T, Error>> + Send;

    fn lost(lost: Lost) -> impl Future<Output = Option<Loss>> + Send;

    /// Runs `work` under a lock. Dropping the future ends the work.
    fn run<K, W>(
        kind: K,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> impl Future<Output = Result<W::Output, Error>> + Send
    where
        K: ExclusiveLock,
        W: Future + Send,
        W::Output: Send + 'static;
}

/// Callers that await.
pub(crate) enum Tasks {}

impl Caller for Tasks {
    async fn complete<T: Send + 'static>(request: Pending<'static, T>) -> Result<T, Error> {
        request.await
    }

    async fn complete_in_place<T: Send>(request: Pending<'_, T>) -> Result<T, Error> {
        request.await
    }

    async fn lost(lost: Lost) -> Option<Loss> {
        lost.await
    }

    async fn run<K, W>(
        kind: K,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> Result<W::Output, Error>
    where
        K: ExclusiveLock,
        W: Future + Send,
        W::Output: Send + 'static,
    {
        kind.run(lock, work).await
    }
}

/// Callers that block: each call runs on a thread of its own.
pub(crate) enum Threads {}

impl Caller for Threads {
    async fn complete<T: Send + 'static>(request: Pending<'static, T>) -> Result<T, Error> {
        on_thread(|| request.wait()).await
    }

    async fn complete_in_place<T: Send>(request: Pending<'_, T>) -> Result<T, Error> {
        tokio::task::block_in_place(|| request.wait())
    }

    async fn lost(mut lost: Lost) -> Option<Loss> {
        let loss = on_thread(move || {
            assert!(lost.wait_timeout(AMPLE), "not lost");
            lost.wait()
        });
        loss.await
    }

    /// The library cannot end the work of a thread, so the work ends itself
    /// when the future is dropped.
    async fn run<K, W>(
        kind: K,
        lock: Acquire,
        work: impl FnOnce(Vec<Lease>) -> W + Send + 'static,
    ) -> Result<W::Output, Error>
    where
        K: ExclusiveLock,
        W: Future + Send,
        W::Output: Send + 'static,
    {
        let (_stop, stopped) = oneshot::channel::<()>();
        let runtime = Handle::current();
        let output = on_thread(move || {
            kind.run_blocking(lock, |leases| {
                runtime.block_on(async {
                    tokio::select! {
                        output = work(leases) => Some(output),
                        _ = stopped => None,
                    }
                })
            })
        });
        Ok(output.await?.expect("the work is not stopped"))
    }
}

/// Runs a blocking call on another thread.
pub(crate) async fn on_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let outcome = tokio::task::spawn_blocking(call).await;
    outcome.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

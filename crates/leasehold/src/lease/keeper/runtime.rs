//! The keeper's runtime, as blocking callers and their callbacks use it.
//!
//! A thread polls the request itself, and parks in between. The connections and
//! timers that the request uses belong to the keeper's runtime and wake the
//! thread. So the thread can be a plain one, or one of any runtime, and no
//! request moves to another thread.
//!
//! Code of the application never runs on the keeper's thread, which must not
//! block. Callbacks run on threads of their own.

use std::cell::Cell;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::park::{Parker, polling};
use crate::process::HomeProcess;

/// The number of callbacks that run at the same time. The runtime resolves host
/// names on the same threads, so callbacks must not occupy all of them.
const MAX_CALLBACKS: usize = 64;

/// How often a caller checks that the keeper still exists. Only a defect ends
/// it while a caller waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a caller spins before it first parks. The reply of a server on the
/// same network often arrives sooner than a parked thread wakes up.
const SPIN: Duration = Duration::from_micros(50);

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// A handle to the runtime of one keeper. It does not keep the keeper alive.
///
/// It is one pointer, because every request clones it.
#[derive(Clone, Debug)]
pub(crate) struct KeeperRuntime(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    handle: Handle,
    /// The process in which the keeper's thread exists.
    process: HomeProcess,
    has_ended: AtomicBool,
    callbacks: Arc<Semaphore>,
}

/// A keeper's thread. Dropping it announces that the keeper has ended.
pub(crate) struct KeeperThread(KeeperRuntime);

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.0.0.has_ended.store(true, Ordering::Release);
    }
}

impl KeeperRuntime {
    pub(super) fn new(handle: &Handle) -> Self {
        Self(Arc::new(Parts {
            handle: handle.clone(),
            process: HomeProcess::current(),
            has_ended: AtomicBool::new(false),
            callbacks: Arc::new(Semaphore::new(MAX_CALLBACKS)),
        }))
    }

    /// Returns the process in which the keeper's thread exists.
    pub(super) fn process(&self) -> HomeProcess {
        self.0.process
    }

    /// Marks the current thread as that of the keeper, which refuses blocking
    /// calls. The result must be dropped before the runtime.
    pub(super) fn mark_thread(&self) -> KeeperThread {
        IS_KEEPER.set(true);
        KeeperThread(self.clone())
    }

    /// Returns whether the current thread is that of a keeper, of any client.
    pub(crate) fn is_current_thread() -> bool {
        IS_KEEPER.get()
    }

    /// Blocks the current thread until `request` has completed.
    pub(crate) fn wait<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if Self::is_current_thread() {
            let why = "the thread of a client renews its leases and must not block";
            return Err(Error::invalid("thread", why));
        }
        let process = self.0.process.check();
        process.map_err(|why| Error::invalid("process", why))?;
        let _entered = self.0.handle.enter();
        // Unconstrained: the thread may run a task of another runtime, whose
        // budget would not be restored before this returns.
        let mut request = pin!(tokio::task::unconstrained(request));
        let (parker, waker) = Parker::current();
        let mut context = Context::from_waker(&waker);
        let mut spin = SPIN;
        loop {
            let poll = || request.as_mut().poll(&mut context);
            match polling(|| catch_unwind(AssertUnwindSafe(poll))) {
                Ok(Poll::Ready(output)) => return output,
                Ok(Poll::Pending) => parker.park(take(&mut spin), CHECK_INTERVAL),
                // The timers of a runtime that has ended panic.
                Err(_) if self.has_ended() => {}
                Err(panic) => resume_unwind(panic),
            }
            if self.has_ended() {
                return Err(Error::ShutDown);
            }
        }
    }

    /// Runs a task on the keeper's thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0.handle.spawn(task)
    }

    /// Polls a request for a task. Outside of tokio, the request uses the
    /// keeper's connections and timers, as that of a thread does.
    pub(crate) fn poll<T>(&self, poll: impl FnOnce() -> T) -> T {
        let _entered = Handle::try_current()
            .is_err()
            .then(|| self.0.handle.enter());
        poll()
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended.load(Ordering::Acquire)
    }

    /// Waits in the background for `callback`, and runs it on another thread.
    pub(crate) fn call_back<C, F>(&self, callback: F)
    where
        C: FnOnce() + Send + 'static,
        F: Future<Output = Option<C>> + Send + 'static,
    {
        if !self.0.process.is_current() {
            return;
        }
        let callbacks = self.0.callbacks.clone();
        self.0.handle.spawn(async move {
            let Some(callback) = callback.await else {
                return;
            };
            let _permit = callbacks.acquire().await;
            // A panic ends with the callback's own thread.
            let _ = tokio::task::spawn_blocking(callback).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    /// Starts a keeper's thread that runs `work`.
    fn keeper_thread(
        work: impl Future<Output = ()> + Send + 'static,
    ) -> (KeeperRuntime, std::thread::JoinHandle<()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let tokio = builder.enable_all().build().unwrap();
        let runtime = KeeperRuntime::new(tokio.handle());
        let marked = runtime.clone();
        let thread = std::thread::spawn(move || {
            let _thread = marked.mark_thread();
            tokio.block_on(work);
        });
        (runtime, thread)
    }

    /// Waits for a timer of the keeper's runtime.
    async fn sleep(length: Duration) -> Result<(), Error> {
        tokio::time::sleep(length).await;
        Ok(())
    }

    #[test]
    fn caller_waits_for_timers_of_the_keeper() {
        let (runtime, _thread) = keeper_thread(std::future::pending());
        let (start, length) = (Instant::now(), Duration::from_millis(50));
        runtime.wait(sleep(length)).unwrap();
        assert!(start.elapsed() >= length);
    }

    /// Timers waited for the budget of a task that the call itself blocked.
    #[tokio::test]
    async fn call_in_a_task_without_budget_completes() {
        let (runtime, _thread) = keeper_thread(std::future::pending());
        let task = tokio::spawn(async move {
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            runtime.wait(sleep(Duration::from_millis(1)))
        });
        task.await.unwrap().unwrap();
    }

    #[test]
    fn panic_of_the_keeper_ends_waiting_calls() {
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let (runtime, thread) = keeper_thread(async {
            begun.await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            resume_unwind(Box::new("a defect"));
        });
        let long = Duration::from_secs(3600);
        std::thread::scope(|scope| {
            let timer = scope.spawn(|| runtime.wait(sleep(long)));
            let other = scope.spawn(|| runtime.wait(std::future::pending::<Result<(), Error>>()));
            let own = runtime.wait(async {
                begin.send(()).unwrap();
                // A task of the keeper's runtime, which ends with it.
                let ended = tokio::spawn(sleep(long)).await;
                assert!(ended.unwrap_err().is_cancelled());
                sleep(long).await
            });
            assert!(matches!(own, Err(Error::ShutDown)));
            assert!(matches!(timer.join().unwrap(), Err(Error::ShutDown)));
            assert!(matches!(other.join().unwrap(), Err(Error::ShutDown)));
        });
        assert!(thread.join().is_err());
        assert!(matches!(runtime.wait(sleep(long)), Err(Error::ShutDown)));
    }

    #[test]
    fn panic_of_a_request_reaches_its_caller() {
        let (runtime, _thread) = keeper_thread(std::future::pending());
        let panicking = async { resume_unwind(Box::new("a defect")) };
        let wait = || runtime.wait::<()>(panicking);
        assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
        runtime.wait(sleep(Duration::ZERO)).unwrap();
    }

    #[test]
    fn call_on_the_keepers_thread_is_refused() {
        let (sender, receiver) = mpsc::channel();
        let (given, taken) = tokio::sync::oneshot::channel::<KeeperRuntime>();
        let (runtime, _thread) = keeper_thread(async move {
            let runtime = taken.await.unwrap();
            sender.send(runtime.wait(sleep(Duration::ZERO))).unwrap();
        });
        given.send(runtime).unwrap();
        let refused = receiver.recv().unwrap();
        assert!(matches!(
            refused,
            Err(Error::Invalid { what: "thread", .. })
        ));
    }

    #[test]
    fn callback_runs_on_another_thread() {
        let (runtime, thread) = keeper_thread(std::future::pending());
        let (sender, receiver) = mpsc::channel();
        let panicking = || resume_unwind(Box::new("in a callback"));
        runtime.call_back(std::future::ready(Some(panicking)));
        runtime.call_back(std::future::ready(Some(move || {
            sender.send(std::thread::current().id()).unwrap();
        })));
        let used = receiver.recv().unwrap();
        assert!(used != thread.thread().id() && used != std::thread::current().id());
    }
}

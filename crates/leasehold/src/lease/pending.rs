//! A request that a task awaits, or that a thread waits for.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::keeper::KeeperRuntime;
use crate::error::Error;

/// A request that has not been sent: `.await` it in a task, or call
/// [`wait`](Self::wait) on a thread.
///
/// Nothing happens until then. The output is a `Result` with [`Error`].
///
/// Any executor can poll it. Outside of tokio, the client's own thread drives
/// the connection and the timers. A tokio runtime that has polled it drives it
/// until it completes: keep that runtime running, and don't call `wait` on its
/// only thread. The runtime needs its timers and I/O enabled.
///
/// # Cancel safety
///
/// Each method that returns a `Pending` says what dropping it leaves behind. A
/// thread cannot interrupt [`wait`](Self::wait); most requests end after
/// [`request_timeout`](crate::Connect::request_timeout), or take a limit.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn task(client: Client) -> Result<(), Error> {
/// let holder = client.mutex("report").holder().await?; // in a task
/// # drop(holder); Ok(()) }
/// # fn thread(client: Client) -> Result<(), Error> {
/// let holder = client.mutex("report").holder().wait()?; // on a thread
/// # drop(holder); Ok(()) }
/// ```
#[must_use = "nothing happens until it is awaited, or waited for with `wait`"]
pub struct Pending<'a, T> {
    /// The error of a request that failed before it had a client.
    request: Result<Request<'a, T>, Option<Error>>,
}

struct Request<'a, T> {
    runtime: KeeperRuntime,
    future: Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>,
}

impl<'a, T> Pending<'a, T> {
    pub(crate) fn new(
        runtime: &KeeperRuntime,
        future: impl Future<Output = Result<T, Error>> + Send + 'a,
    ) -> Self {
        Self {
            request: Ok(Request {
                runtime: runtime.clone(),
                future: Box::pin(future),
            }),
        }
    }

    /// Returns a request that fails without being sent.
    pub(crate) fn failed(error: Error) -> Self {
        Self {
            request: Err(Some(error)),
        }
    }

    /// Sends the request, and blocks this thread until it has completed.
    ///
    /// It needs no runtime, and works on every thread but the client's own.
    /// Inside an async task it blocks the worker thread and all tasks on it. If
    /// one of those holds the lock that this call waits for, the call never
    /// returns: await the request there instead.
    ///
    /// # Errors
    ///
    /// Those of the request, [`Error::ShutDown`] if the client is shut down
    /// before it completes, and [`Error::Invalid`] on the client's own thread,
    /// which must not block. Only a destructor or a log subscriber runs there.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("redis://127.0.0.1/").wait()?;
    /// for holder in client.force_release("report").wait()? {
    ///     println!("it was held by {holder}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<T, Error> {
        match self.request {
            Ok(request) => request.runtime.wait(request.future),
            Err(error) => Err(error.expect("polled after completion")),
        }
    }
}

impl<T> Future for Pending<'_, T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().request {
            Ok(Request { runtime, future }) => runtime.poll(|| future.as_mut().poll(context)),
            Err(error) => Poll::Ready(Err(error.take().expect("polled after completion"))),
        }
    }
}

impl<T> fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

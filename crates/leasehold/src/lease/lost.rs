//! The loss of a lease, as tasks and threads wait for it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::keeper::KeeperRuntime;
use super::state::{EndReason, LeaseState, Validity};
use crate::error::Loss;
use crate::park::Parker;
use crate::time::BootInstant;

/// The end of a lease: a task awaits it, and a thread calls
/// [`wait`](Self::wait) or [`wait_timeout`](Self::wait_timeout).
///
/// The output is how the lease was lost, or `None` if the guard released it. It
/// resolves no later than the deadline, before the server can grant the lock to
/// another client. The client's own thread wakes it, so a task needs a runtime
/// only to be polled.
///
/// It borrows nothing, and keeps neither the lock nor the client alive.
/// [`lost`](crate::Guard::lost) returns a new one for each task or thread.
///
/// # Cancel safety
///
/// Dropping it changes nothing.
///
/// # Examples
///
/// A task races the work against the loss;
/// [`Acquire::run`](crate::Acquire::run) does the same for you:
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// # async fn import() {}
/// let guard = client.mutex("import").lock().await?;
/// tokio::select! {
///     _ = guard.lost() => eprintln!("stopped: another host may import now"),
///     () = import() => guard.release().await?,
/// }
/// # Ok(()) }
/// ```
///
/// Threads stop their work:
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # fn example(client: Client) -> Result<(), Error> {
/// # fn step() {}
/// let guard = client.mutex("import").lock().wait()?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         let mut lost = guard.lost();
///         scope.spawn(move || {
///             while !lost.wait_timeout(Duration::ZERO) {
///                 step();
///             }
///         });
///     }
/// });
/// # Ok(()) }
/// ```
#[must_use = "nothing is observed until it is awaited or waited for"]
pub struct Lost {
    /// One, or all leases of a multi-lock.
    views: Vec<View>,
    /// For each view, until the first has ended.
    ended: Vec<Ended>,
}

/// One holder's view of a lease.
#[derive(Clone)]
pub(super) struct View {
    pub(super) state: Arc<LeaseState>,
    /// The holder; see [`LeaseState::validity_of`].
    pub(super) generation: u64,
}

type Ended = Pin<Box<dyn Future<Output = EndReason> + Send>>;

impl View {
    fn validity(&self) -> Validity {
        self.state.validity_of(self.generation)
    }

    /// Resolves when the lease has ended.
    fn ended(self) -> Ended {
        // Unconstrained, because a thread inside of a task has no budget left
        // to wait with.
        Box::pin(tokio::task::unconstrained(async move {
            self.state.ended(self.generation).await
        }))
    }
}

impl Lost {
    pub(super) fn new(views: Vec<View>) -> Self {
        Self {
            ended: views.iter().cloned().map(View::ended).collect(),
            views,
        }
    }

    /// Resolves when the first of several leases is lost or released.
    pub(crate) fn first(all: impl IntoIterator<Item = Self>) -> Self {
        Self::new(all.into_iter().flat_map(|lost| lost.views).collect())
    }

    /// Blocks this thread until the lease is lost or released, and returns how
    /// it was lost; `None` after a release.
    ///
    /// On the client's own thread, which must not block, it returns at once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn stop_the_pump() {}
    /// let guard = client.mutex("pump").lock().wait()?;
    /// let lost = guard.lost();
    /// std::thread::spawn(move || {
    ///     if let Some(loss) = lost.wait() {
    ///         eprintln!("stopping the pump: {loss}");
    ///         stop_the_pump();
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub fn wait(mut self) -> Option<Loss> {
        while !self.wait_timeout(Duration::MAX) && !KeeperRuntime::is_current_thread() {}
        self.loss()
    }

    /// Blocks this thread until the lease is lost or released, for at most
    /// `limit`. Returns whether it has ended, by the local clock alone.
    ///
    /// Zero only checks. Once true, it stays true. On the client's own thread,
    /// which must not block, it returns at once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn poll_the_sensor() {}
    /// let guard = client.election("sensor").campaign().wait()?;
    /// let mut lost = guard.lost();
    /// while !lost.wait_timeout(Duration::from_secs(1)) {
    ///     poll_the_sensor();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn wait_timeout(&mut self, limit: Duration) -> bool {
        let end = Instant::now().checked_add(limit);
        let (parker, waker) = Parker::current();
        let mut context = Context::from_waker(&waker);
        loop {
            for ended in &mut self.ended {
                // Registers the waker only; the clock decides below.
                let _ = ended.as_mut().poll(&mut context);
            }
            if self.has_ended() {
                // A completed future must not be polled again.
                self.ended.clear();
                return true;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || KeeperRuntime::is_current_thread() {
                return false;
            }
            // A lease ends at its deadline also if the keeper's thread, which
            // would wake this one, does not run.
            let limit = left.into_iter().chain(self.remaining()).min();
            parker.park(Duration::ZERO, limit.unwrap_or(Duration::MAX));
        }
    }

    fn has_ended(&self) -> bool {
        self.remaining().any(|remaining| remaining.is_zero())
    }

    /// Returns the time until each deadline.
    fn remaining(&self) -> impl Iterator<Item = Duration> {
        let now = BootInstant::now();
        self.views.iter().map(move |view| match view.validity() {
            Validity::Valid { deadline } => deadline.since(now),
            Validity::Ended(_) => Duration::ZERO,
        })
    }

    fn loss(&self) -> Option<Loss> {
        self.views.iter().find_map(|view| match view.validity() {
            Validity::Ended(EndReason::Lost(loss)) => Some(loss),
            _ => None,
        })
    }
}

impl Future for Lost {
    type Output = Option<Loss>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Loss>> {
        if !self.has_ended() {
            // All of them, since each registers the waker.
            let polls = self.ended.iter_mut();
            let ready = polls.filter_map(|ended| match ended.as_mut().poll(context) {
                Poll::Ready(reason) => Some(reason),
                Poll::Pending => None,
            });
            if ready.count() == 0 {
                return Poll::Pending;
            }
        }
        self.ended.clear();
        Poll::Ready(self.loss())
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.views.iter().map(|view| view.state.kind.name());
        f.debug_tuple("Lost")
            .field(&names.collect::<Vec<_>>())
            .finish()
    }
}

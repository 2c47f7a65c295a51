//! Events of a client, for metrics, traces and logs.
//!
//! An [`Observer`] receives the events of the client that it is
//! [registered](crate::ClientBuilder::observe) with. Each method has an empty
//! body, so an observer implements only the events that it needs. The crate
//! `leasehold-metrics` is an observer that records metrics.
//!
//! # Invariants
//!
//! 1. Every [`Acquired`] is followed by exactly one [`Released`],
//!    [`HandedOff`] or [`Lost`] of the same holder, unless its guard is leaked.
//! 2. Every [`WaitStarted`] is followed by exactly one [`WaitEnded`], and then
//!    by an [`Acquired`] or a [`Refused`].
//! 3. Observers are called while no thread can block on an internal mutex. A
//!    panic in an observer is caught and logged.
//! 4. A client without observers allocates nothing for events. Acquiring a free
//!    lock and releasing it then reads no clock for them.
//!
//! # Examples
//!
//! ```no_run
//! use leasehold::observe::{Lost, Observer};
//!
//! struct PageTheOperator;
//!
//! impl Observer for PageTheOperator {
//!     fn lost(&self, event: &Lost<'_>) {
//!         eprintln!("{} lost: {}", event.name, event.loss);
//!     }
//! }
//!
//! # async fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::builder("redis://127.0.0.1/")
//!     .observe(PageTheOperator)
//!     .connect()
//!     .await?;
//! # drop(client); Ok(()) }
//! ```

use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Loss};
use crate::info::Holder;
use crate::owner::Token;

/// A receiver of the events of a client.
///
/// # Limitations
///
/// Methods are called by the task or thread that causes the event, among them
/// the keeper and the tasks that read from connections. They must return soon
/// and must not block: a slow method delays renewals.
///
/// A method can be called by several threads at the same time.
pub trait Observer: Send + Sync + 'static {
    /// Called when a caller acquired a lock.
    fn acquired(&self, event: &Acquired<'_>) {
        let _ = event;
    }

    /// Called when a caller that wanted a lock did not acquire it.
    fn refused(&self, event: &Refused<'_>) {
        let _ = event;
    }

    /// Called when a caller starts to wait, because the lock is busy or other
    /// tasks of the client already wait for it.
    ///
    /// The call is made inside the `tracing` span `leasehold.wait`, so that an
    /// observer can add a link to the holder's trace.
    fn wait_started(&self, event: &WaitStarted<'_>) {
        let _ = event;
    }

    /// Called when a caller no longer waits.
    fn wait_ended(&self, event: &WaitEnded<'_>) {
        let _ = event;
    }

    /// Called when the server confirmed the renewal of a lease.
    fn renewed(&self, event: &Renewed<'_>) {
        let _ = event;
    }

    /// Called when a renewal failed. The keeper retries until the deadline.
    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        let _ = event;
    }

    /// Called when a holder released its lock, or dropped its guard.
    fn released(&self, event: &Released<'_>) {
        let _ = event;
    }

    /// Called when a holder passed its lock to a waiting task of the same
    /// client, without a request.
    fn handed_off(&self, event: &HandedOff<'_>) {
        let _ = event;
    }

    /// Called when a holder lost its lock.
    fn lost(&self, event: &Lost<'_>) {
        let _ = event;
    }

    /// Called when the number of releases and cancels that run in the
    /// background changed.
    fn cancel_pending(&self, event: &CancelPending) {
        let _ = event;
    }

    /// Called when the server replied to a request, or did not reply in time.
    fn request_done(&self, event: &RequestDone<'_>) {
        let _ = event;
    }

    /// Called when a connection to a server is established.
    fn connection_up(&self, event: &ConnectionUp<'_>) {
        let _ = event;
    }

    /// Called when a connection to a server is closed, by either side.
    fn connection_down(&self, event: &ConnectionDown<'_>) {
        let _ = event;
    }
}

/// A lock was acquired.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Acquired<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// The time from the call to the grant.
    pub elapsed: Duration,
    /// Whether the caller waited for another holder.
    pub contended: bool,
    /// The fencing token, for kinds that have one.
    pub token: Option<Token>,
}

/// A caller did not acquire the lock that it wanted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refused<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// The time from the call to its end.
    pub elapsed: Duration,
    /// Whether the caller waited for another holder.
    pub contended: bool,
    /// Why the lock was not acquired.
    pub reason: Refusal<'a>,
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Refusal<'a> {
    /// Another owner holds the lock, and the caller does not wait.
    Busy,
    /// The timeout elapsed.
    TimedOut,
    /// The caller dropped the future.
    Cancelled,
    /// Any other error.
    Failed(&'a Error),
}

/// A caller starts to wait for a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WaitStarted<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// The current holder. `None` if it is unknown.
    pub holder: Option<&'a Holder>,
}

/// A caller no longer waits.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WaitEnded<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
}

/// A lease was renewed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewed<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// The time that was left until the deadline when the renewal was
    /// confirmed. Zero means that the lease was nearly lost.
    pub margin: Duration,
    /// The length of the lease.
    pub lease: Duration,
}

/// A renewal failed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RenewalFailed<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// The number of renewals of this lease that failed in a row.
    pub failures: u32,
    /// The time left until the deadline.
    pub remaining: Duration,
}

/// A holder released its lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Released<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// How long the holder held the lock.
    pub held: Duration,
}

/// A holder passed its lock to another task of the same client.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HandedOff<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// How long the holder held the lock.
    pub held: Duration,
}

/// A holder lost its lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Lost<'a> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of lock, as in [`LockKind::label`](crate::LockKind::label).
    pub kind: &'static str,
    /// How long the holder held the lock.
    pub held: Duration,
    /// How the lock was lost.
    pub loss: Loss,
    /// Where the holder called `lock` or another acquiring method.
    pub caller: &'static Location<'static>,
}

/// Releases and cancels run in the background.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CancelPending {
    /// The number of releases and cancels without a reply.
    pub pending: usize,
}

/// A request to a server ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestDone<'a> {
    /// The address of the server.
    pub server: &'a str,
    /// The number of commands in the request.
    pub commands: usize,
    /// The time from sending the request to its end.
    pub elapsed: Duration,
    /// How the request ended.
    pub outcome: RequestOutcome,
}

/// How a request to a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// The server replied, with a value or with an error.
    Replied,
    /// No reply arrived: the timeout elapsed, or the connection broke.
    Unknown,
}

/// A connection to a server is established.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionUp<'a> {
    /// The address of the server.
    pub server: &'a str,
    /// The name and version of the server.
    pub version: &'a str,
}

/// A connection to a server is closed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionDown<'a> {
    /// The address of the server.
    pub server: &'a str,
    /// Why it was closed.
    pub reason: &'a str,
}

/// The observers of one client.
#[derive(Clone, Default)]
pub(crate) struct Observers(Arc<[Arc<dyn Observer>]>);

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observer>) {
        self.0 = self.0.iter().cloned().chain([observer]).collect();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls each observer, and contains its panics (invariant 3).
    pub(crate) fn notify(&self, event: impl Fn(&dyn Observer)) {
        for observer in &*self.0 {
            if catch_unwind(AssertUnwindSafe(|| event(&**observer))).is_err() {
                tracing::error!("an observer panicked");
            }
        }
    }
}

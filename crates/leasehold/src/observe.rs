//! Events of a client, for metrics, traces and logs.
//!
//! An observer is a closure that receives every [`Event`] of the client that it
//! is [registered](crate::Connect::observe) with, and matches the events that
//! it needs. The crate `leasehold-metrics` is an observer that records metrics.
//!
//! # Limitations
//!
//! An observer is called by the task or thread that causes the event, among
//! them the keeper and the tasks that read from connections. It must return
//! soon and must not block: a slow observer delays renewals. Several threads
//! can call it at the same time.
//!
//! # Invariants
//!
//! 1. Every [`Event::Acquired`] is followed by exactly one [`Event::Released`],
//!    [`Event::HandedOff`] or [`Event::Lost`] of the same holder, unless the
//!    guard is leaked.
//! 2. Every [`Event::WaitStarted`] is followed by exactly one
//!    [`Event::WaitEnded`], and then by an [`Event::Acquired`] or an
//!    [`Event::Refused`]. If a caller enters a lock that another task of the
//!    same reentrant handle acquired, observers get neither: the other task's
//!    [`Event::Acquired`] counts for both.
//! 3. Observers are called while no thread can block on an internal mutex. A
//!    panic in an observer is caught and logged.
//! 4. A client without observers allocates nothing for events. Acquiring a free
//!    lock and releasing it then reads no clock for them.
//!
//! # Examples
//!
//! ```no_run
//! use leasehold::observe::Event;
//!
//! # async fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::connect("redis://127.0.0.1/")
//!     .observe(|event| {
//!         if let Event::Lost { name, loss, .. } = event {
//!             eprintln!("{name} was lost: {loss}");
//!         }
//!     })
//!     .await?;
//! # drop(client); Ok(()) }
//! ```

use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Loss};
use crate::info::Holder;
use crate::owner::Token;

/// What happened. `kind` is that of [`LockKind::label`](crate::LockKind::label).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A caller acquired a lock.
    #[non_exhaustive]
    Acquired {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// The time from the call to the grant.
        elapsed: Duration,
        /// Whether the caller waited for another holder.
        contended: bool,
        /// The fencing token, for kinds that have one.
        token: Option<Token>,
    },

    /// A caller that wanted a lock did not acquire it.
    #[non_exhaustive]
    Refused {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// The time from the call until it ended.
        elapsed: Duration,
        /// Whether the caller waited for another holder.
        contended: bool,
        /// Why the lock was not acquired.
        reason: Refusal<'a>,
    },

    /// A caller starts to wait, because the lock is busy or other tasks of the
    /// client already wait for it.
    ///
    /// The observer is called inside the `tracing` span `leasehold.wait`, where
    /// it can add a link to the holder's trace.
    #[non_exhaustive]
    WaitStarted {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// The current holder. `None` if it is unknown.
        holder: Option<&'a Holder>,
    },

    /// A caller no longer waits.
    #[non_exhaustive]
    WaitEnded {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
    },

    /// The server confirmed the renewal of a lease.
    #[non_exhaustive]
    Renewed {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// The time that was left until the deadline when the renewal was
        /// confirmed. Zero means that the lease was nearly lost.
        margin: Duration,
        /// The lease that was requested. It is shorter than the lock's when
        /// [`at_most`](crate::Acquire::at_most) is nearly over.
        lease: Duration,
    },

    /// A renewal failed, or its reply is overdue and may still arrive. The
    /// keeper retries until the deadline.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// The number of renewals of this lease that failed in a row.
        failures: u32,
        /// The time left until the deadline.
        remaining: Duration,
    },

    /// A holder has not reported progress in time, by
    /// [`progress_within`](crate::Acquire::progress_within), and the keeper no
    /// longer renews the lease. It renews again if the holder reports before
    /// the deadline.
    #[non_exhaustive]
    Stuck {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// The time left until the deadline.
        remaining: Duration,
        /// Where the holder called `lock` or another acquiring method.
        caller: &'static Location<'static>,
    },

    /// A holder released the lock, or dropped its guard.
    #[non_exhaustive]
    Released {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// How long the holder held the lock.
        held: Duration,
    },

    /// A holder passed the lock to a waiting task of the same client, without a
    /// request.
    #[non_exhaustive]
    HandedOff {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// How long the holder held the lock.
        held: Duration,
    },

    /// A holder lost the lock.
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        name: &'a str,
        /// The kind of lock.
        kind: &'static str,
        /// How long the holder held the lock.
        held: Duration,
        /// How the lock was lost.
        loss: Loss,
        /// Where the holder called `lock` or another acquiring method.
        caller: &'static Location<'static>,
    },

    /// The number of releases and cancels that run in the background changed.
    #[non_exhaustive]
    CancelPending {
        /// The number of releases and cancels without a reply.
        pending: usize,
    },

    /// A server replied to a request, or did not reply in time.
    #[non_exhaustive]
    RequestDone {
        /// The server's address.
        server: &'a str,
        /// The number of commands in the request.
        commands: usize,
        /// The time from sending the request until it ended.
        elapsed: Duration,
        /// Whether the server replied, with a value or with an error. Otherwise
        /// the timeout elapsed, or the connection broke.
        replied: bool,
    },

    /// A connection to a server is established.
    #[non_exhaustive]
    ConnectionUp {
        /// The server's address.
        server: &'a str,
        /// The server's name and version.
        version: &'a str,
    },

    /// A connection to a server is closed, by either side.
    #[non_exhaustive]
    ConnectionDown {
        /// The server's address.
        server: &'a str,
        /// Why it was closed.
        reason: &'a str,
    },
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

type Observer = dyn Fn(&Event<'_>) + Send + Sync;

/// The observers of one client.
#[derive(Clone, Default)]
pub(crate) struct Observers(Arc<[Arc<Observer>]>);

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<Observer>) {
        self.0 = self.0.iter().cloned().chain([observer]).collect();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls each observer, and contains panics (invariant 3).
    pub(crate) fn notify(&self, event: &Event<'_>) {
        for observer in &*self.0 {
            if catch_unwind(AssertUnwindSafe(|| observer(event))).is_err() {
                tracing::error!("an observer panicked");
            }
        }
    }
}

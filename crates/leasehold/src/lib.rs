//! Distributed locks, backed by the Redis or Valkey you already run.
//!
//! Every lock is a *lease*. The client renews it in the background while you
//! hold the guard. If the client can no longer prove ownership, it invalidates
//! the guard **before** the server can grant the lock to another client.
//!
//! - **Fencing tokens**: each acquisition gets a larger [`Token`] than every
//!   earlier one, so a resource can reject stale writes.
//! - **No orphans**: an acquire that is cancelled, times out or loses the reply
//!   is rolled back in the background.
//! - **Push-based waiting**: pub/sub wakes waiters; a one-second poll covers
//!   lost messages. A `lock()` future that you keep but don't poll does not
//!   block other waiters.
//! - **Typed outcomes**: *busy*, *lost* and *outcome unknown* are errors of
//!   their own, so `?` never runs your work without the lock.
//! - **Tasks and threads**: one set of types. A task awaits, a thread calls
//!   [`wait`](Pending::wait).
//!
//! More than this page has:
//!
//! - the [guide](https://leasehold.github.io/leasehold/): which lock to choose,
//!   losing a lease, [mistakes], servers, complete programs, and the CLI;
//! - [`leasehold-fence`](https://docs.rs/leasehold-fence): databases and Redis
//!   reject a stale holder's writes;
//! - [`leasehold-metrics`](https://docs.rs/leasehold-metrics): a service's lock
//!   metrics;
//! - [`leasehold-testkit`](https://docs.rs/leasehold-testkit): a real server
//!   for each of your tests.
//!
//! # Examples
//!
//! A task awaits, on tokio or any other executor:
//!
//! ```no_run
//! # async fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
//! let coupon = client.mutex("coupon:42");
//!
//! // Waits for the lock, renews it while the work runs, and drops the work if
//! // the lock is lost.
//! let sold = coupon
//!     .run(|lease| async move {
//!         format!("sold with token {}", lease.token())
//!     })
//!     .await?;
//! # drop(sold); Ok(()) }
//! ```
//!
//! A thread waits. It needs no runtime:
//!
//! ```no_run
//! # fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::connect("redis://127.0.0.1/").wait()?;
//! let guard = client.mutex("coupon:42").lock().wait()?;
//! println!("sold with token {}", guard.token());
//! guard.release().wait()?; // fails if the lock was lost before
//! # Ok(()) }
//! ```
//!
//! The guide has [complete programs], such as a web service that releases its
//! locks on SIGTERM.
//!
//! [complete programs]: https://leasehold.github.io/leasehold/examples.html
//! [mistakes]: https://leasehold.github.io/leasehold/mistakes.html
//!
//! # Limitations
//!
#![doc = include_str!("limitations.md")]
//!
//! # Which lock
//!
#![doc = include_str!("which_lock.md")]
//!
//! # Cancel safety
//!
//! You can drop every future of this crate at any time. Dropping an acquire
//! releases the lock in the background if it was granted, or if a request in
//! flight still acquires it. Dropping a release lets it complete in the
//! background.
//!
//! # Forked processes
//!
//! A client belongs to the process that connected it. In a forked child, every
//! operation on the parent's client fails at once with [`Error::Invalid`], and
//! dropping a guard or the client does nothing. The parent still holds the lock
//! and renews it; the child's copy of the guard shows the state at the time of
//! the fork. The child can connect a new client. It must not use the parent's
//! tokio runtime either.
//!
//! # Crate features
//!
//! - `tls` (default): TLS by rustls, for `rediss://` and `valkeys://`.
//! - `ring` (default) or `aws-lc-rs`: the cryptography that rustls uses.
//! - `redisson`: locks that Java services share, see
//!   [`client.redisson()`][redisson].
//! - `serde`: `Serialize` for the types that inspection returns.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod client;
mod credentials;
mod error;
#[cfg(test)]
mod fuzz_inputs;
#[doc = include_str!("guarantees.md")]
pub mod guarantees {}
mod info;
mod lease;
mod locks;
pub mod observe;
mod options;
mod owner;
mod park;
mod plain;
mod process;
mod protocol;
#[cfg(feature = "redisson")]
pub mod redisson;
mod rng;
mod sync;
mod ticket;
mod time;
mod trace_parent;

pub use client::{Client, Connect, Quorum, Scan, ServerInfo};
pub use credentials::{Credentials, Server};
pub use error::{Error, Loss};
pub use info::{Holder, LockInfo, LockKind, Messages, Process, Run, Term};
pub use lease::{Exclusive, Guard, Lease, Lost, Pending, Shared};
pub use locks::{
    Acquire, Changes, Election, FairMutex, Latch, LatchState, MultiGuard, MultiLock, Mutex, Once,
    OnceGuard, OnceOutcome, PermitCounts, Reentrant, RwLock, Semaphore, SetOutcome, Tick,
};
pub use options::Replicas;
pub use owner::Token;
pub use ticket::Ticket;

//! Distributed locks, backed by the Redis or Valkey you already run.
//!
//! Every lock is a *lease*. The client renews it in the background while you
//! hold the guard. If the client can no longer prove ownership, it invalidates
//! the guard **before** the server can grant the lock to another client.
//!
//! - **Fencing tokens**: each acquisition gets a larger [`Token`] than every
//!   earlier one, so that a resource can reject stale writes.
//! - **No orphans**: an acquire that is cancelled, times out or loses its reply
//!   is rolled back in the background.
//! - **Push-based waiting**: pub/sub wakes waiters; a one-second poll covers
//!   lost messages. A `lock()` future that is kept but not polled does not
//!   block other waiters.
//! - **Typed outcomes**: *busy*, *lost* and *outcome unknown* are never folded
//!   into `false`.
//!
//! # Limitations
//!
//! - **A lock cannot stop a paused process.** A process can be suspended
//!   between checking its lease and performing a write, for longer than the
//!   lease lasts. Send [`Lease::token`] with every write, and let the resource
//!   reject a token that is smaller than the largest it has seen.
//! - **A lock is as durable as its server.** A restart without persistence,
//!   `FLUSHALL` or a failover to a lagging replica can lose a lock, and a
//!   second client can acquire it. The first holder learns this at its next
//!   renewal. Use [`replicas`](Acquire::replicas) or a [`Quorum`] where that is
//!   not acceptable.
//! - **Servers must not evict keys** (`maxmemory-policy noeviction`), and must
//!   not step their clock forward by more than 1 % of the lease.
//! - **[`Mutex`] is unfair.** After a release, the first client to retry
//!   acquires it. [`FairMutex`], [`RwLock`] and [`Semaphore`] are FIFO across
//!   processes.
//! - **Dropping a guard releases in the background.** Call
//!   [`Client::shutdown`] before the program exits, or the last locks stay held
//!   until their leases expire.
//!
//! Within these limits, two conflicting guards are never valid at the same
//! time. [`guarantees`] states what each deployment guarantees, and under which
//! assumptions.
//!
//! # Example
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
//! The folder `examples` of the repository has complete programs, such as a web
//! service that releases its locks on SIGTERM.
//!
//! # Which lock
//!
//! | You need | Use |
//! |---|---|
//! | one holder at a time, or a key shared with other libraries | [`Client::mutex`] |
//! | the same, acquired again by its own holder | [`Mutex::reentrant`] |
//! | one holder at a time in FIFO order, or many contending processes | [`Client::fair_mutex`] |
//! | at most *n* holders, or *n* units of a resource | [`Client::semaphore`] |
//! | many readers or one writer | [`Client::rw_lock`] |
//! | one leader among many processes, and followers that know it | [`Client::election`] |
//! | several locks at once, without deadlock | [`MultiLock`] |
//! | a lock that survives a failover to any replica | [`replicas`](Acquire::replicas) |
//! | a lock that survives the loss of any minority of servers (Redlock) | [`Quorum::mutex`] |
//! | to wait until *n* events have happened, without a holder | [`Client::latch`] |
//! | a lock shared with Java services that use Redisson | [`Client::redisson`] |
//! | to do the work only if no other client does | [`Mutex::try_lock`] |
//! | a job that runs at most once per tick, on hosts whose clocks differ | [`Client::once`] |
//! | to keep other clients out for a while after the work | [`at_least`](TryAcquire::at_least) |
//! | to limit how long a holder that hangs can block other clients | [`at_most`](Acquire::at_most) |
//! | to pass a held lock to another process | [`Guard::hand_over`], [`Client::adopt`] |
//! | locks for threads, without async code | [`blocking`] |
//! | to see who holds a lock and who waits for it | [`Client::inspect`], [`Client::scan`] |
//!
//! Every lock hands out a [`Guard`] with a lease that is renewed and that
//! reports its loss. Every lease has a fencing token, except those of the
//! [`redisson`] objects that have none. A latch has no holder and no lease.
//!
//! A name belongs to one kind of lock at a time. Using it as another kind fails
//! with [`Error::WrongType`].
//!
//! # Cancel safety
//!
//! Every future of this crate can be dropped at any time. Dropping an acquire
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
//! the fork. The child can connect a client of its own. It must not use a tokio
//! runtime of the parent either.
//!
//! # Crate features
//!
//! - `tls` (default): TLS by rustls, for `rediss://` and `valkeys://`.
//! - `ring` (default) or `aws-lc-rs`: the cryptography that rustls uses.
//! - `serde`: `Serialize` for the types that inspection returns.
//!
//! # Layers
//!
//! The source has four layers. Each uses only the layers below it. The module
//! `client` assembles them, and `blocking` wraps the result for threads.
//!
//! - `locks`: the lock types of the public API.
//! - `lease`: when a lock is acquired, renewed, released or lost.
//! - `protocol`: the requests and the Lua scripts; `lua/README.md` describes
//!   the keys and replies.
//! - `backend`: connections, subscriptions, topology and reconnection.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
pub mod blocking;
mod client;
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
mod rng;
mod sync;
mod ticket;
mod time;
mod trace_parent;

pub use client::{Client, ClientBuilder, Quorum, QuorumBuilder, Scan, ServerInfo};
pub use error::{BoxError, Error, Loss};
pub use info::{Holder, LockInfo, LockKind, Run, Term, Waiter};
pub use lease::{
    Fenced, Guard, HasToken, Lease, ReleaseOutcome, Shared, ShutdownOutcome, Unfenced,
};
pub use locks::redisson;
pub use locks::{
    Acquire, Changes, Election, ElectionEvent, FairMutex, GuardType, Latch, LatchState, MultiGuard,
    MultiLock, Mutex, Once, OnceGuard, OnceOutcome, PermitCounts, Reentrant, RwLock, Semaphore,
    SetOutcome, Tick, TryAcquire, WriteGuard,
};
pub use options::Replicas;
pub use owner::Token;
pub use ticket::Ticket;

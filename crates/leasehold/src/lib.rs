//! Distributed locks on the Redis or Valkey you already run.
//!
//! What you hold is a *lease*: it is renewed while your work runs, it can be lost, and when it is, you are
//! told before anybody else can have it.
//!
//! ```no_run
//! # async fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
//! let coupon = client.mutex("coupon:42");
//!
//! // Waits for the lock, renews it while the work runs, drops the work if the lock is lost.
//! let sold = coupon
//!     .run(|lease| async move { format!("sold with token {}", lease.token()) })
//!     .await?;
//! # drop(sold); Ok(()) }
//! ```
//!
//! # What is not promised
//!
//! No lock can stop code that is paused between a check and its effect: send the [`Token`] along with every
//! write, and let the resource refuse smaller ones than it has seen. A server that loses its data can grant a
//! lock twice; the first holder learns of it at its next renewal, and tokens go on rising as long as the
//! server's clock does not go back past the last one. The server must not evict keys. Otherwise: two guards that
//! exclude each other are never valid at the same time. What each deployment promises is told in [`guarantees`].
//!
//! # Which lock
//!
//! | you need | take |
//! |---|---|
//! | one holder at a time; a key shared with other libraries | [`Client::mutex`] |
//! | the same, entered again by its own holder | [`Mutex::reentrant`] |
//! | one holder at a time in the order of asking, or many processes waiting | [`Client::fair_mutex`] |
//! | at most n at a time, or n units of something | [`Client::semaphore`] |
//! | many readers or one writer | [`Client::rw_lock`] |
//! | several locks at once, without deadlock | [`MultiLock`] |
//! | a lock that outlives a failover to any replica | [`replicas`](Acquire::replicas) |
//! | a lock that outlives the loss of any minority of servers | [`Quorum::mutex`] |
//! | to wait until n things have happened (nobody holds anything) | [`Client::latch`] |
//! | a lock that Java services hold with Redisson | [`Client::redisson`] |
//! | to do something only if nobody else does | [`Mutex::try_lock`] |
//! | a job once, on hosts whose clocks differ | [`at_least`](TryAcquire::at_least) |
//! | a bound on a holder that hangs | [`at_most`](Acquire::at_most) |
//! | to see who holds what, and who waits | [`Client::inspect`], [`Client::scan`] |
//!
//! All but the latch hand out leases: renewed, told when lost, and fenced by a token except those of Redisson that
//! have none. A name is of one kind at a time; using it as another is [`Error::WrongType`].
//!
//! # Cancel safety
//!
//! Every future of this crate can be dropped at any time. A dropped acquire gives back whatever it has won, or
//! will win by a request that is on its way; a dropped release goes on in the background.
//!
//! # Layout
//!
//! Four layers, each naming only those below it, and `client`, `quorum`, `inspect` and `examine` which put them together:
//!
//! - `locks`: what a user names, as the calls that make up its life.
//! - `lease`: when a lock is taken, waited for, kept, given back or lost.
//! - `protocol`: what is said to a server; the Lua files are in `lua`, with the protocol in their README.
//! - `backend`: where it is said: connections, subscriptions, reconnection.

mod backend;
mod client;
mod error;
mod rng;
mod sync;
mod time;
#[doc = include_str!("guarantees.md")]
pub mod guarantees {}
mod info;
mod lease;
mod locks;
#[cfg(test)]
mod malformed;
mod options;
mod owner;
mod plain;
mod protocol;

pub use client::{Client, ClientBuilder, Quorum, QuorumBuilder, Scan, ServerInfo};
pub use error::{BoxError, Error, Loss};
pub use info::{Holder, LockInfo, LockKind, Waiter};
pub use lease::{Fenced, Guard, Lease, ReleaseOutcome, ShutdownOutcome, Unfenced};
pub use locks::redisson;
pub use locks::{
    Acquire, FairMutex, GuardType, Latch, LatchState, MultiGuard, MultiLock, Mutex, PermitCounts,
    Reentrant, RwLock, Semaphore, SetOutcome, TryAcquire, WriteGuard,
};
pub use options::Replicas;
pub use owner::Token;

/// Compiles what the README shows.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles what the page on other libraries shows.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/interop.md")]
struct Interop;

//! Redisson's objects, shared with Java services on the same server.
//!
//! A lock that a Java service acquires with Redisson can be acquired here by
//! the same name. The two sides exclude each other and wake each other, and
//! each renews its own leases. [`Client::redisson`](crate::Client::redisson)
//! returns a [`Redisson`], which creates the handles.
//!
//! # Limitations
//!
//! These objects are as safe as Redisson's, not as the other locks of this
//! crate. Use those for locks that only Rust services acquire.
//!
//! - Only the [fenced lock](Redisson::fenced_lock) has tokens. They restart
//!   when the server loses data. The other guards are [`Unfenced`].
//! - A Java client is not notified when it loses a lock.
//! - The permits of a plain [`RSemaphore`] do not expire. A client that
//!   crashes, Java or Rust, never returns them.
//! - A crashed waiter blocks a [fair lock](Redisson::fair_lock) until the wait
//!   timeout has passed.
//!
//! In the repository, `docs/interop.md` lists the settings that both sides must
//! share and the differences from Redisson, and `docs/migrate-redisson.md` the
//! steps of a migration to the other locks of this crate.
//!
//! # Examples
//!
//! ```no_run
//! # async fn example() -> Result<(), leasehold::Error> {
//! let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
//! let redisson = client.redisson();
//! let guard = redisson.lock("invoice:42").lock().await?;
//! // No Java client holds `getLock("invoice:42")` now.
//! guard.release().await?;
//! # Ok(()) }
//! ```

mod calls;
mod context;
mod count_down_latch;
mod factory;
#[cfg(test)]
mod fuzz_inputs;
mod lock;
mod permit_expirable_semaphore;
mod read_write_lock;
mod semaphore;

pub use count_down_latch::RCountDownLatch;
pub use factory::{PubSubMode, Redisson};
pub use lock::RLock;
pub use permit_expirable_semaphore::RPermitExpirableSemaphore;
pub use read_write_lock::RReadWriteLock;
pub use semaphore::RSemaphore;

/// Marks a [`Guard`](crate::Guard) or [`Lease`](crate::Lease) without a fencing
/// token. The protected resource cannot reject an earlier holder's late write.
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}

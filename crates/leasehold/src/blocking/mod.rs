//! The locks for threads: the same locks, with calls that block.
//!
//! # Limitations
//!
//! - **The work of a thread cannot be cancelled.** [`run`](Mutex::run) and
//!   guards report a lost lease, but the thread continues until it checks. Call
//!   [`Lease::check`] before every effect, poll a [`LostSignal`] in loops, or
//!   react in a callback: [`Guard::on_lost`].
//! - **A call cannot be interrupted.** It returns when the lock is acquired or
//!   the call has failed. Set a [`timeout`](Acquire::timeout) on an acquire
//!   that must not wait for long. [`Client::shutdown`] also ends all waiting
//!   calls.
//! - **A call inside an async task blocks its worker thread**, and every other
//!   task on it. The call itself completes. But a task that waits for a lock
//!   never acquires it if the holder is a task that needs the same thread. Use
//!   the [async API](crate) there.
//! - **A blocking client has its own connections and its own thread.** It
//!   shares nothing with a [`Client`](crate::Client) of the async API.
//!
//! The [limitations](crate#limitations) of the crate apply as well.
//!
//! # Threads
//!
//! The client's own thread, the *keeper*, serves the connections and timers of
//! a call, and wakes the calling thread. The call needs no runtime, and works
//! on the threads of any runtime. The keeper itself must not block: a call on
//! its thread, which only code in a destructor or in a log subscriber can make,
//! fails with [`Error::Invalid`]. Callbacks run on other threads and can call
//! every method.
//!
//! Every type has the name and the methods of its async counterpart, except for
//! hand-over. A method that is `async` there blocks here, and an acquire starts
//! with [`acquire`](Acquire::acquire) instead of `.await`. Elections and jobs
//! per tick are async only.
//!
//! # Examples
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::blocking::Client;
//!
//! # fn example() -> Result<(), leasehold::Error> {
//! let client = Client::connect("redis://127.0.0.1/")?;
//! let report = client.mutex("report");
//!
//! let guard = report.lock().timeout(Duration::from_secs(5)).acquire()?;
//! for page in 1..=10 {
//!     guard.check()?; // by the clock alone, without a request
//!     println!("page {page} with token {}", guard.token());
//! }
//! let _ = guard.release()?;
//!
//! if let Some(guard) = report.try_lock().acquire()? {
//!     drop(guard); // released in the background
//! }
//! client.shutdown(Duration::from_secs(5))?;
//! # Ok(()) }
//! ```
//!
//! [`Error::Invalid`]: crate::Error::Invalid
//! [`Lease::check`]: crate::Lease::check

mod acquire;
mod bridge;
mod client;
mod guard;
mod latch;
mod lost_signal;
mod multi_lock;
mod mutex;
mod quorum;
pub mod redisson;
mod rw_lock;
mod semaphore;

pub use acquire::{Acquire, TryAcquire};
pub use client::{Client, ClientBuilder, Scan};
pub use guard::{Guard, WriteGuard};
pub use latch::Latch;
pub use lost_signal::LostSignal;
pub use multi_lock::{MultiGuard, MultiLock};
pub use mutex::{FairMutex, Mutex, Reentrant};
pub use quorum::{Quorum, QuorumBuilder};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;

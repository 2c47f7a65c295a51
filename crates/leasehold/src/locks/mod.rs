//! The lock types of the public API.

mod acquire;
mod election;
mod fair_mutex;
mod handle;
mod latch;
mod multi_lock;
mod mutex;
mod once;
mod reentrant;
mod rw_lock;
mod semaphore;
mod tick;

pub use acquire::Acquire;
pub use election::{Changes, Election};
pub use fair_mutex::FairMutex;
#[cfg(feature = "redisson")]
pub(crate) use handle::{Handle, InvalidName};
pub use latch::{Latch, LatchState, SetOutcome};
pub use multi_lock::{MultiGuard, MultiLock};
pub use mutex::Mutex;
pub use once::{Once, OnceGuard, OnceOutcome};
pub use reentrant::Reentrant;
pub use rw_lock::RwLock;
pub use semaphore::{PermitCounts, Semaphore};
pub use tick::Tick;

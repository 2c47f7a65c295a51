//! The lock types of the public API.

mod acquire;
mod election;
mod fair_mutex;
mod handle;
mod latch;
mod multi_lock;
mod mutex;
mod once;
pub mod redisson;
mod reentrant;
mod rw_lock;
mod semaphore;
mod tick;

pub use acquire::{Acquire, GuardType, TryAcquire};
pub(crate) use acquire::{AcquireRequest, conversions, options, sealed};
pub use election::{Changes, Election, ElectionEvent};
pub use fair_mutex::FairMutex;
pub use latch::{Latch, LatchState, SetOutcome};
pub use multi_lock::{MultiGuard, MultiLock};
pub use mutex::Mutex;
pub use once::{Once, OnceGuard, OnceOutcome};
pub use reentrant::Reentrant;
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::{PermitCounts, Semaphore};
pub use tick::Tick;

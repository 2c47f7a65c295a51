//! What a user names: each kind of lock, as the calls that make up its life.

mod fair_mutex;
mod handle;
mod latch;
mod lock;
mod multi_lock;
mod mutex;
pub mod redisson;
mod reentrant;
mod rw_lock;
mod semaphore;

pub use fair_mutex::FairMutex;
pub use latch::{Latch, LatchState};
pub use lock::{Lock, TryLock};
pub use multi_lock::{MultiGuard, MultiLock};
pub use mutex::Mutex;
pub use reentrant::Reentrant;
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::{Permits, Semaphore};

//! What a user names: each kind of lock, as the calls that make up its life.

mod lock;
mod mutex;
mod reentrant;

pub use lock::{Lock, TryLock};
pub use mutex::Mutex;
pub use reentrant::Reentrant;

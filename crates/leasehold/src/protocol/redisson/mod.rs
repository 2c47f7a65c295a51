//! Redisson's objects, on its own keys and channels, compatible with Redisson
//! 3.24 and later.
//!
//! The naming is Redisson's; `docs/interop.md` describes it. The scripts are
//! this library's. They send absolute values where Redisson's add and subtract,
//! so every step can be repeated, and they use the server's clock where
//! Redisson's use the client's.

mod fair;
mod latch;
mod lock;
mod naming;
mod permits;
mod semaphore;
mod shared;

pub(crate) use fair::FairLockCalls;
pub(crate) use latch::CountDownCalls;
pub(crate) use lock::{LockCalls, Mode};
pub(crate) use naming::{Naming, Object, owner_in, prefixed};
pub(crate) use permits::ExpirableCalls;
pub(crate) use semaphore::SemaphoreCalls;

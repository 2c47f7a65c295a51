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

pub(super) use fair::FairLockCalls;
pub(super) use latch::CountDownCalls;
pub(super) use lock::LockCalls;
pub(super) use naming::{Naming, Object};
pub(super) use permits::ExpirableCalls;
pub(super) use semaphore::SemaphoreCalls;
pub(super) use shared::REPEAT_WITHIN;

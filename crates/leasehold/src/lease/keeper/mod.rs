//! The keeper: one thread per client that does what must happen even if the
//! application is stalled.
//!
//! It renews leases, ends leases at their deadline, cancels acquires of unknown
//! outcome, and releases what was dropped. Callers send it messages through an
//! [`inbox`]; a message that can wait does not wake it.

mod callers;
mod cancel;
mod cleanup;
mod handle;
mod inbox;
mod patience;
mod release;
mod renew;
mod runtime;
mod timers;
mod worker;

pub(super) use callers::{AcquireId, CallerRequest};
pub(super) use cancel::PendingAcquire;
pub(crate) use handle::Keeper;
pub(super) use inbox::InboxSlot;
pub(crate) use runtime::KeeperRuntime;

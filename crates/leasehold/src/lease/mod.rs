//! The life of a lock: acquire, wait, renew, release and loss, for any kind.
//!
//! The [`Engine`] drives any lock [`Kind`](crate::protocol::Kind). Callers
//! acquire and release on their own tasks. Work that must happen even if the
//! application is stalled runs on the [`keeper`]'s thread.
//!
//! # Invariants
//!
//! Time:
//!
//! 1. A lease's deadline is `sent_at + lease - margin`, where `sent_at` is read
//!    before the request is sent, on a clock that includes suspend.
//! 2. Only a confirmed renewal extends the deadline. A failed renewal changes
//!    nothing and is retried until the deadline.
//! 3. Loss is permanent: no later reply makes a lost lease valid again.
//! 4. `lost()` resolves no later than the deadline, and therefore before the
//!    server can grant the lock to another owner.
//! 5. A waiter relies on wake-ups and polls as a fallback. A lost message
//!    delays it by at most one second; it polls after every reconnect.
//!
//! Outcomes:
//!
//! 6. An owner id is sent in at most one acquire; a heartbeat never acquires.
//!    An acquire whose outcome is unknown is cancelled until it can no longer
//!    take effect.
//! 7. An acquire is registered for cancellation before it is sent, so dropping
//!    its future at any point leaves nothing behind.
//! 8. A token below the server time read at connect is never returned; the
//!    counter is raised first.
//! 9. A pushed grant is timed from the waiter's last heartbeat, using the
//!    server's clock. After a reconnect it is confirmed by a heartbeat first.
//! 10. With replica acknowledgement, a lease starts with an acknowledged
//!     renewal, and only acknowledged renewals extend it.
//! 11. A local hand-off keeps the owner and the lease. One guard is valid at a
//!     time, each with a larger token than the one before.
//! 12. A hand-over ends the holder's lease before its request is sent. Both
//!     hand-over and adoption replace the owner, so a ticket gives one holder,
//!     with a larger token than the one before.

mod attempt;
mod context;
mod engine;
mod guard;
mod hand_over;
mod keeper;
#[expect(clippy::module_inception, reason = "the layer is named after it")]
mod lease;
mod owned;
mod quarantine;
mod reentrant;
mod report;
mod retry;
mod revoke;
mod schedule;
mod state;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

pub(crate) use context::Limits;
pub(crate) use engine::Engine;
pub use engine::ShutdownOutcome;
pub use guard::Guard;
pub(crate) use guard::{conclude, until_lost};
pub(crate) use keeper::{Keeper, KeeperRuntime};
pub use lease::{Fenced, HasToken, Lease, Shared, Unfenced};
pub use owned::ReleaseOutcome;
pub(crate) use quarantine::Readmission;
pub(crate) use reentrant::Reentry;
pub(crate) use retry::RetryDelay;
pub(crate) use watch::Watch;

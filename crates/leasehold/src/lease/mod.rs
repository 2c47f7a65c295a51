//! The life of a lock: acquire, wait, renew, release and loss, for any kind.
//!
//! # Roles
//!
//! - A *caller* is a task or a thread of the application. It attempts once by
//!   itself ([`attempt`]), so an uncontended acquire involves no other task. If
//!   the lock is busy, the caller takes a *slot* in the lock's local queue and
//!   polls nothing but that slot. Timeout, span and observers stay with it
//!   ([`acquire`]).
//! - The *waiting task* ([`wait`]) talks to the server for all slots of one
//!   lock: it subscribes, attempts, keeps a position in the server's queue, and
//!   reserves tokens. It runs on the keeper's runtime, from the first slot to
//!   the last.
//! - A *holder* owns an [`OwnedLease`](owned), shared by all clones of a
//!   reentrant handle. A release hands the lease to the next slot, or returns
//!   the lock to the server. What the application sees is a [`Guard`] and the
//!   [`Lease`]s it lends.
//! - The *keeper* ([`keeper`]) renews leases, ends them at their deadline,
//!   releases what was dropped, and cancels acquires that no caller claims. It
//!   has a thread of its own, so it works even if the application is stalled.
//!
//! The holder, the views and the keeper share a [`LeaseState`](state), a single
//! number that says until when the lease is valid, or why it ended.
//!
//! # The states of a slot
//!
//! ```text
//!     the caller takes a slot
//!                │
//!                ▼        granted             claimed
//!   ┌───────► waiting ───────────► granted ───────────► the caller holds
//!   │         │     ▲                 │ │               the lock
//!   │ polled  │     └─────────────────┘ │
//!   │ again   │   lost before the claim │ not claimed within 50 ms:
//!   │         │                         │ the next slot gets the lock
//!   │         │                         ▼
//!   └─────────│─────────────────── dormant
//!             │                         │
//!             ▼                         ▼
//!      the wait fails, or the caller drops it
//! ```
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
//!    the future at any point leaves nothing behind.
//! 8. A token below the server time read at connect is never returned; the
//!    counter is raised first.
//! 9. A pushed grant is timed from the waiter's last heartbeat, using the
//!    server's clock. After a reconnect it is confirmed by a heartbeat first.
//! 10. With replica acknowledgement, a lease starts with an acknowledged
//!     renewal, and only acknowledged renewals extend it. The same request
//!     draws the token, and tokens for local hand-offs are acknowledged too.
//! 11. A local hand-off keeps the owner and the lease. One guard is valid at a
//!     time, each with a larger token than the one before.
//! 12. A hand-over ends the holder's lease before the request is sent. Both
//!     hand-over and adoption replace the owner, so a ticket gives one holder,
//!     with a larger token than the one before.
//! 13. A lock that was granted to a caller which is not polled goes to the next
//!     waiter: 50 ms after the grant, or after the time limit of the request
//!     that acquired it.
//!
//! Progress:
//!
//! 14. A holder that reports within its limit is renewed. A holder that
//!     stops reporting loses the lock within the limit plus one lease after its
//!     last report.

mod acquire;
mod acquire_report;
mod attempt;
mod context;
mod engine;
mod guard;
mod hand_over;
mod keeper;
#[expect(clippy::module_inception, reason = "the layer is named after it")]
mod lease;
mod lost;
mod owned;
mod pending;
mod progress_watch;
mod quarantine;
mod reentrant;
mod report;
mod retry;
mod revoke;
mod schedule;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod wait;
mod watch;

pub(crate) use context::Limits;
pub(crate) use engine::Engine;
pub use guard::Guard;
pub(crate) use guard::{conclude, until_lost};
pub(crate) use keeper::Keeper;
pub use lease::{Exclusive, Lease, Shared};
pub use lost::Lost;
pub use pending::Pending;
pub(crate) use quarantine::Readmission;
pub(crate) use reentrant::Reentry;
pub(crate) use retry::RetryDelay;
pub(crate) use watch::Watch;

//! Injected faults: lost replies, lost leases, clock steps, stalls and full
//! servers.

mod blocked_runtime;
mod clock_steps;
mod hand_over;
mod lease_loss;
mod limits;
pub(crate) mod lost_replies;
mod lost_work;
mod stuck;

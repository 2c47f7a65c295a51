//! Waiters: wake-ups, the queue, local hand-off and cancelled acquires.

mod cancellation;
mod disorder;
mod grants;
mod handover_latency;
pub(crate) mod local_handoff;
mod queue;
mod scale;
mod unpolled;
mod wakeups;

//! The lease layer's own timing, with a paused clock.

mod cancel;
mod ending;
mod hand_over;
#[cfg(not(shuttle))]
mod orders;
mod overdue;
mod progress;
mod queued;
#[cfg(shuttle)]
mod schedules;
pub(crate) mod scripted;
mod simulation;
mod waiting;

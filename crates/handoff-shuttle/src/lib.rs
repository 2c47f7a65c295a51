//! Checks the local hand-off of a lock between tasks of one process, under
//! random schedules that include rare ones; see `tests/schedules.rs`.

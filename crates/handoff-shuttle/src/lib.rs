//! Checks the gate at which tasks of one process leave a lock to each other, under schedules that a
//! machine would hardly ever choose: see `tests/schedules.rs`.

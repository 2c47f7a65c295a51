//! Servers that tests start, kill, pause and restart.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod faults;
mod life;
mod support;

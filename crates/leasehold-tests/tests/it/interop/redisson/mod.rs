//! Redisson's objects, shared with a real Redisson.

mod beyond_redisson;
mod exclusion;
mod faults;
mod sharing;
mod stress;
mod wire;

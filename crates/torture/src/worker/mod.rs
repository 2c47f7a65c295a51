//! A worker: a process that acquires locks through the public API, writes to
//! the store under its tokens, and records its history.

mod cli;
mod forking;
mod hand_over;
mod job;
mod locks;
mod process;
mod runtimes;
mod session;
mod tasks;

pub(crate) use cli::wrapped;
pub(crate) use job::Job;
pub(crate) use process::{unavailable_locks, work};

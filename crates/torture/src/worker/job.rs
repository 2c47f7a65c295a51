//! The job of a worker.

use std::path::PathBuf;

use crate::plan::Plan;

/// What a worker does, as passed on its command line.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    pub(crate) number: usize,
    /// Several URLs separated by spaces are a quorum.
    pub(crate) urls: String,
    pub(crate) store: u16,
    pub(crate) history: PathBuf,
}

/// Returns a lock's name.
pub(super) fn lock_name(lock: u32) -> String {
    format!("torture:{lock}")
}

//! PID files, which allow cleaning up after a killed test run.
//!
//! Only for processes that `leasehold-testkit` does not start: it kills its
//! own when the test process ends.

use std::path::Path;

/// Creates a file named after the PID in the folder `LEASEHOLD_PIDS`.
pub(crate) fn record_pid(pid: u32) {
    if let Some(folder) = std::env::var_os("LEASEHOLD_PIDS") {
        let _ = std::fs::write(Path::new(&folder).join(pid.to_string()), "");
    }
}

/// Deletes the file of [`record_pid`].
pub(crate) fn forget_pid(pid: u32) {
    if let Some(folder) = std::env::var_os("LEASEHOLD_PIDS") {
        let _ = std::fs::remove_file(Path::new(&folder).join(pid.to_string()));
    }
}

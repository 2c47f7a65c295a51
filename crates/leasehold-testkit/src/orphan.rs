//! Kills the server of a test process that crashes.
//!
//! A shell waits for the end of a pipe that only the test process keeps open.
//! The operating system closes the pipe when the process ends in any way.

use std::io::Result;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = r#"read -r line; kill -KILL "$1"; rm -rf "$2""#;

#[derive(Debug)]
pub(crate) struct OrphanKiller {
    shell: Child,
}

impl OrphanKiller {
    /// Kills the process `pid` and deletes `folder` when this process ends.
    pub(crate) fn watch(pid: u32, folder: &Path) -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh", &pid.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the group of the tests, such as Ctrl-C, must not end
            // the shell first.
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }
}

impl Drop for OrphanKiller {
    /// Ends the watch without killing the server.
    fn drop(&mut self) {
        // `wait` closes the pipe, so the shell must be dead before.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

//! Tells `run` that its command was never executed.
//!
//! A command that starts and then exits with 126 or 127, as a shell does, has
//! the same exit status. Without `/proc`, as on macOS, every command counts as
//! started.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;

/// A pipe that the shim writes to if it cannot execute the command.
pub(super) struct StartReport {
    reader: PipeReader,
    writer: PipeWriter,
}

impl StartReport {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer })
    }

    /// Returns where the shim finds the pipe. No process inherits it, so the
    /// command cannot keep it open.
    pub(super) fn path(&self) -> String {
        let pid = std::process::id();
        format!("/proc/{pid}/fd/{}", self.writer.as_raw_fd())
    }

    /// Reads whether the shim has failed. It must have exited or executed the
    /// command.
    pub(super) fn read_failure(self) -> bool {
        let Self { mut reader, writer } = self;
        // The last writer: the read below returns at once.
        drop(writer);
        reader.read(&mut [0]).is_ok_and(|length| length > 0)
    }
}

/// Reports from the shim that the command cannot be executed.
pub(super) fn send_failure(path: &OsStr) {
    // Without a report the command counts as started, and is not run again.
    let _ = File::options()
        .write(true)
        .open(path)
        .and_then(|mut pipe| pipe.write_all(b"\n"));
}

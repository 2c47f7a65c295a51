//! The controlling terminal, which the command gets while it reads from it.
//!
//! The terminal is `/dev/tty`, independent of standard input: programs read
//! passwords there. If only `leasehold run` connects the command to the
//! terminal, the command gets it at start. In a pipeline, other processes may
//! read from it too, and the system would stop them. There the command gets the
//! terminal on demand: when the system stops it for reading.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal. Dropping it takes the terminal back.
pub(super) struct Terminal {
    device: File,
    own_group: Pid,
    lent: Lent,
}

/// Whether and when the command got the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lent {
    No,
    AtStart,
    /// The system may since have stopped other processes for reading.
    OnDemand,
}

/// Blocks the signals that stop a background process for terminal access.
///
/// The system stops the whole process group for the access of one member, and a
/// stopped process cannot renew the lease. Blocking `SIGTTOU` also lets this
/// process take the terminal back. Threads and children inherit the mask;
/// commands must [undo](unblock_stops) it.
pub(super) fn block_stops() {
    // On failure, this process can be stopped and then loses its lock.
    let _ = stop_signals().thread_block();
}

/// Undoes [`block_stops`].
pub(super) fn unblock_stops() {
    let _ = stop_signals().thread_unblock();
}

fn stop_signals() -> SigSet {
    SigSet::from_iter([Signal::SIGTTIN, Signal::SIGTTOU])
}

impl Terminal {
    /// Opens the terminal. Returns `None` in a session without one.
    pub(super) fn open() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty");
        Some(Self {
            device: device.ok()?,
            own_group: getpgrp(),
            lent: Lent::No,
        })
    }

    /// Lends the terminal to a new command, unless other processes of a
    /// pipeline may read from it.
    pub(super) fn lend_at_start(&mut self, group: Pid) -> bool {
        let alone = stdin().is_terminal() && !is_pipe(&stdout());
        alone && self.lend(group, Lent::AtStart)
    }

    /// Lends the terminal to a command that was stopped for access to it.
    /// Returns false while this job is in the background.
    pub(super) fn lend_on_demand(&mut self, group: Pid) -> bool {
        tcgetpgrp(&self.device) == Ok(group) || self.lend(group, Lent::OnDemand)
    }

    pub(super) fn is_lent(&self) -> bool {
        self.lent != Lent::No
    }

    fn lend(&mut self, group: Pid, lent: Lent) -> bool {
        let in_foreground = tcgetpgrp(&self.device) == Ok(self.own_group);
        let done = in_foreground && tcsetpgrp(&self.device, group).is_ok();
        if done {
            self.lent = lent;
        }
        done
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.is_lent() {
            let _ = tcsetpgrp(&self.device, self.own_group);
        }
        if self.lent == Lent::OnDemand {
            // Continues the stopped members of this process's group.
            let _ = kill(Pid::from_raw(0), Signal::SIGCONT);
        }
    }
}

/// Returns whether another process reads this stream. Some shells build
/// pipelines from sockets.
fn is_pipe(stream: &impl AsFd) -> bool {
    let file = stream.as_fd().try_clone_to_owned().map(File::from);
    let kind = file.and_then(|file| Ok(file.metadata()?.file_type()));
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
}

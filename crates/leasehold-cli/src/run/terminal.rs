//! The terminal of the session, which the program has while it reads it: what is typed goes to it, Ctrl-C included.
//!
//! It is `/dev/tty`, whatever standard input is: programs ask for passwords there. A program that the command alone
//! connects to the terminal has it from the start. Others of a pipeline may read it as well, and would be stopped:
//! beside them the program gets it when it asks, and the system asks by stopping the program.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The session's terminal; taken back when dropped, if it was given away.
pub(super) struct Terminal {
    device: File,
    ours: Pid,
    given: Given,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Not,
    AtStart,
    /// Others may have been stopped for reading it since.
    OnDemand,
}

/// Keeps this process running beside others that use the terminal from the background.
///
/// The system stops the whole process group for one of them, and a command that stands still renews nothing. Blocked,
/// `SIGTTOU` also lets this process take the terminal back. What is started later inherits it: threads are to, and
/// programs must [undo](be_stopped) it.
pub(super) fn stay_awake() {
    // Where it fails, the command may be stopped and loses its lock.
    let _ = stops().thread_block();
}

/// Has the system stop this process again for what it does from the background.
pub(super) fn be_stopped() {
    let _ = stops().thread_unblock();
}

fn stops() -> SigSet {
    SigSet::from_iter([Signal::SIGTTIN, Signal::SIGTTOU])
}

impl Terminal {
    /// Opens it; `None` in a session without one.
    pub(super) fn open() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty");
        Some(Self {
            device: device.ok()?,
            ours: getpgrp(),
            given: Given::Not,
        })
    }

    /// Gives it to a program that has just been started, unless others of a pipeline may read it too.
    pub(super) fn give_at_start(&mut self, group: Pid) -> bool {
        let alone = stdin().is_terminal() && !is_pipe(&stdout());
        alone && self.give(group, Given::AtStart)
    }

    /// Gives it to a program that was stopped for want of it; false while this job is in the background.
    pub(super) fn give_on_demand(&mut self, group: Pid) -> bool {
        tcgetpgrp(&self.device) == Ok(group) || self.give(group, Given::OnDemand)
    }

    pub(super) fn is_given(&self) -> bool {
        self.given != Given::Not
    }

    fn give(&mut self, group: Pid, given: Given) -> bool {
        let in_foreground = tcgetpgrp(&self.device) == Ok(self.ours);
        let done = in_foreground && tcsetpgrp(&self.device, group).is_ok();
        if done {
            self.given = given;
        }
        done
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.is_given() {
            let _ = tcsetpgrp(&self.device, self.ours);
        }
        if self.given == Given::OnDemand {
            // The own group, where those are that were stopped.
            let _ = kill(Pid::from_raw(0), Signal::SIGCONT);
        }
    }
}

/// Whether something else reads what is written there. Some shells make pipes of sockets.
fn is_pipe(stream: &impl AsFd) -> bool {
    let file = stream.as_fd().try_clone_to_owned().map(File::from);
    let kind = file.and_then(|file| Ok(file.metadata()?.file_type()));
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
}

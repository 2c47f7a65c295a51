//! The terminal, which belongs to the program while it runs: what is typed goes to it, Ctrl-C included.

use std::io::{IsTerminal, stdin};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// A terminal that is ours to give; taken back when dropped.
pub(super) struct Terminal {
    ours: Pid,
}

impl Terminal {
    /// The terminal, if there is one and it listens to us.
    pub(super) fn ours() -> Option<Self> {
        let ours = getpgrp();
        let listens = stdin().is_terminal() && tcgetpgrp(stdin()) == Ok(ours);
        if listens {
            // Taking it back from the background would stop us otherwise.
            let mut stops = SigSet::empty();
            stops.add(Signal::SIGTTOU);
            stops.thread_block().ok()?;
        }
        listens.then_some(Self { ours })
    }

    pub(super) fn give(&self, group: Pid) {
        let _ = tcsetpgrp(stdin(), group);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = tcsetpgrp(stdin(), self.ours);
    }
}

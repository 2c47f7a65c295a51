//! A server's process, killed on drop.

use std::path::Path;
use std::process::{Child, Command};

use crate::error::StartError;
#[cfg(unix)]
use crate::orphan::OrphanKiller;

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    // Dropped before the child is reaped: the process ID is not reused before
    // that.
    #[cfg(unix)]
    orphan_killer: Option<OrphanKiller>,
}

impl Process {
    /// Starts `command`, whose files are in `folder`.
    pub(crate) fn start(command: &mut Command, folder: &Path) -> Result<Self, StartError> {
        let child = command.spawn().map_err(StartError::io("run the server"))?;
        let mut process = Self {
            child,
            #[cfg(unix)]
            orphan_killer: None,
        };
        process.watch(folder)?;
        Ok(process)
    }

    #[cfg(unix)]
    fn watch(&mut self, folder: &Path) -> Result<(), StartError> {
        let watch = OrphanKiller::watch(self.id(), folder);
        self.orphan_killer = Some(watch.map_err(StartError::io("run `sh`"))?);
        Ok(())
    }

    #[cfg(not(unix))]
    #[expect(clippy::unnecessary_wraps, reason = "can fail on Unix")]
    fn watch(&mut self, _: &Path) -> Result<(), StartError> {
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        #[cfg(unix)]
        drop(self.orphan_killer.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Signals to the process.
#[cfg(unix)]
mod signals {
    use std::io::{Error, ErrorKind, Result};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

    use super::Process;

    /// How long `pause` waits until the process has stopped.
    const STOP_LIMIT: Duration = Duration::from_secs(60);

    impl Process {
        /// Stops the process, and returns when it no longer runs.
        pub(crate) fn pause(&self) -> Result<()> {
            kill_process(self.pid(), Signal::STOP)?;
            // The state is left for the next call, which may find the process
            // stopped already.
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let end = Instant::now() + STOP_LIMIT;
            while waitid(WaitId::Pid(self.pid()), options)?.is_none() {
                if Instant::now() > end {
                    let text = format!("the server did not stop within {STOP_LIMIT:?}");
                    return Err(Error::new(ErrorKind::TimedOut, text));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }

        pub(crate) fn resume(&self) -> Result<()> {
            Ok(kill_process(self.pid(), Signal::CONT)?)
        }

        fn pid(&self) -> Pid {
            Pid::from_child(&self.child)
        }
    }
}

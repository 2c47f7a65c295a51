//! The process between `leasehold run` and its command.
//!
//! `run` starts this executable again with [`SHIM`] as its first argument. The
//! new process asks the system to be killed when `run` exits, and then executes
//! the command in its place.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;

#[cfg(target_os = "linux")]
use nix::sys::signal::{Signal, raise};
#[cfg(target_os = "linux")]
use nix::unistd::{Pid, getppid};

use super::{start_report, terminal};
use crate::exit;
use crate::output::CliError;

/// The first argument of the shim. It is not a subcommand.
pub(super) const SHIM: &str = "exec-with-parent";

/// Replaces this process with the command if it was started as the shim.
///
/// Returns `None` if it was not, and an exit code if the command cannot be
/// executed.
pub(crate) fn exec_command() -> Option<u8> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != SHIM {
        return None;
    }
    let parent = args.next()?.to_str()?.parse().ok()?;
    let report = args.next()?;
    let program = args.next()?;
    die_with_parent(parent);
    terminal::unblock_stops();
    let error = std::process::Command::new(&program).args(args).exec();
    let code = match error.kind() {
        ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_RUNNABLE,
    };
    start_report::send_failure(&report);
    let text = format!("cannot run {}: {error}", program.to_string_lossy());
    Some(CliError::new(code, text).report())
}

/// Asks the system to kill this process when `parent` exits.
#[cfg(target_os = "linux")]
fn die_with_parent(parent: i32) {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    // The parent may have exited before that.
    if getppid() != Pid::from_raw(parent) {
        let _ = raise(Signal::SIGKILL);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_parent: i32) {}

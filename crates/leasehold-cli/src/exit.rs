//! Exit codes, and the mapping from library errors to them.
//!
//! `leasehold run` passes on the exit code of its command. These codes are for
//! all other cases and follow `sysexits.h` where it defines one.

use leasehold::Error;

/// Success, including a held lock with `--skip-ok`.
pub(crate) const OK: u8 = 0;
/// `doctor` found a problem, or the named lock, latch or leader does not exist.
pub(crate) const NO: u8 = 1;
/// Invalid command line or configuration.
pub(crate) const USAGE: u8 = 64;
/// The server is unreachable, or its reply is unusable.
pub(crate) const UNREACHABLE: u8 = 69;
/// Writing to standard output failed.
pub(crate) const NOT_PRINTED: u8 = 74;
/// Another client holds the lock, and the wait timed out; or another client has
/// run the period.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The server denied permission.
pub(crate) const DENIED: u8 = 77;
/// The command ran longer than `--at-most`.
pub(crate) const TOO_LONG: u8 = 124;
/// The command exists but cannot be executed.
pub(crate) const NOT_RUNNABLE: u8 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the code of a command or a wait that a signal terminated.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(255)
}

/// Returns the code of a library error.
pub(crate) fn of(error: &Error) -> u8 {
    match error {
        Error::Timeout { .. } | Error::Busy { .. } => BUSY,
        Error::Lost { .. } => LOST,
        Error::Denied(_) => DENIED,
        Error::Invalid { .. } | Error::WrongType { .. } => USAGE,
        _ => UNREACHABLE,
    }
}

/// The table in `--help` and the man pages.
pub(crate) const TABLE: &str = "\
Exit status:
  The command's own status, or 128+N if signal N terminated it. Otherwise:
    0  success; or busy, with --skip-ok
   64  invalid command line or configuration, or a name of another kind of lock
   69  the server is unreachable
   75  busy: another client holds the lock, or has run the period of --once-per
       (-E sets another status)
   76  the lock was lost while the command ran; it was stopped, unless
       --on-lost is ignore
   77  the server denied permission
  124  the command ran longer than --at-most and was stopped
  126  the command cannot be executed
  127  the command was not found";

//! How the command ends: every exit code there is, and which error leads to which.
//!
//! A program that ran ends with its own code, whatever it is; these are for everything else. They follow `sysexits.h`
//! where it has a word for it.

use leasehold::Error;

/// All went well; or the lock was busy and `--skip-ok` was given.
pub(crate) const OK: u8 = 0;
/// Something was found to be wrong: by `doctor`, or a lock that is not there.
pub(crate) const NO: u8 = 1;
/// The command line or the configuration makes no sense.
pub(crate) const USAGE: u8 = 64;
/// The server cannot be reached, or does not answer as one should.
pub(crate) const UNREACHABLE: u8 = 69;
/// What was asked for could not be printed.
pub(crate) const NOT_PRINTED: u8 = 74;
/// The lock is held by another, and the wait is over.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while the program ran; whatever the program then said.
pub(crate) const LOST: u8 = 76;
/// The server denies access.
pub(crate) const DENIED: u8 = 77;
/// The program ran longer than `--at-most`.
pub(crate) const TOO_LONG: u8 = 124;
/// The program was found and cannot be run.
pub(crate) const NOT_RUNNABLE: u8 = 126;
/// There is no such program.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code of a program or a wait that a signal has ended.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(255)
}

/// The code for an error of the library.
pub(crate) fn of(error: &Error) -> u8 {
    match error {
        Error::Timeout { .. } => BUSY,
        Error::Lost { .. } => LOST,
        Error::Denied(_) => DENIED,
        Error::Invalid { .. } | Error::WrongType { .. } => USAGE,
        _ => UNREACHABLE,
    }
}

/// The table in `--help` and the manual page.
pub(crate) const TABLE: &str = "\
Exit status:
  the program's own code, or 128+N when signal N has ended it; otherwise
    0  done; or busy, with --skip-ok
   64  the command line or the configuration makes no sense
   69  the server cannot be reached
   75  busy: held by another for as long as we waited (-E sets another code)
   76  the lock was lost while the program ran, and the program was stopped
   77  the server denies access
  124  the program ran longer than --at-most, and was stopped
  126  the program cannot be run
  127  there is no such program";

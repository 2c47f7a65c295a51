//! Why a server does not start.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why a server does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// No server is installed. The message names what to install.
    NotInstalled,
    /// The program that the test or `LEASEHOLD_TESTKIT_SERVER` names does not
    /// exist.
    #[non_exhaustive]
    NoProgram {
        /// The program's path.
        program: PathBuf,
    },
    /// The server exited before it was ready, for example because of an
    /// unknown option.
    #[non_exhaustive]
    Exited {
        /// The program's path.
        program: PathBuf,
        /// The server's log.
        log: String,
    },
    /// The server was not ready in time.
    #[non_exhaustive]
    Timeout {
        /// The program's path.
        program: PathBuf,
        /// The limit of the wait.
        limit: Duration,
        /// The server's log.
        log: String,
    },
    /// A call of the operating system failed.
    #[non_exhaustive]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The error of the call.
        error: io::Error,
    },
}

impl StartError {
    /// Returns a function that adds the failed step to an error.
    pub(crate) fn io(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { step, error }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str(
                "neither `redis-server` nor `valkey-server` is in `PATH`; install one \
                 (Debian and Ubuntu: `apt-get install redis-server`, macOS: `brew install redis`) \
                 or set `LEASEHOLD_TESTKIT_SERVER` to the path of one",
            ),
            Self::NoProgram { program } => {
                write!(
                    f,
                    "the server program `{}` does not exist",
                    program.display()
                )
            }
            Self::Exited { program, log } => {
                let program = program.display();
                write!(f, "`{program}` exited before it was ready; its log:\n{log}")
            }
            Self::Timeout {
                program,
                limit,
                log,
            } => {
                let program = program.display();
                write!(
                    f,
                    "`{program}` was not ready within {limit:?}; its log:\n{log}"
                )
            }
            Self::Io { step, error } => write!(f, "cannot {step}: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

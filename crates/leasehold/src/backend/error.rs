//! Why there is no usable answer.

use std::fmt;

use crate::error::BoxError;
use crate::plain::plain;

/// An error that the server answered: the command it answers changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", plain(message))]
pub(crate) struct ServerError {
    pub(crate) kind: ServerErrorKind,
    pub(crate) message: String,
}

/// Refusals by what a caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerErrorKind {
    /// Not now: loading, read-only, busy, cluster down. Trying again is right.
    Temporary,
    OutOfMemory,
    WrongType,
    /// Wrong password, or the ACL forbids it.
    Denied,
    /// The server does not know this script; send its source.
    NoScript,
    /// Too few of several nodes can vote; what a count comes to, not an error of a server.
    TooFewVote,
    /// Two of several addresses lead to one server; what a comparison shows, not an error of a server.
    SameServer,
    /// More was asked for than can ever be had; what a script answers, not an error of the server.
    TooMuch,
    Other,
}

impl ServerError {
    pub(crate) fn new(code: &str, detail: &str) -> Self {
        Self {
            kind: ServerErrorKind::of(code, detail),
            message: format!("{code} {detail}").trim_end().to_owned(),
        }
    }
}

impl ServerErrorKind {
    fn of(code: &str, detail: &str) -> Self {
        match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN"
            | "NOREPLICAS" | "MISCONF" | "MOVED" | "ASK" => Self::Temporary,
            "OOM" => Self::OutOfMemory,
            "WRONGTYPE" => Self::WrongType,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::Denied,
            "NOSCRIPT" => Self::NoScript,
            _ => Self::of_detail(detail),
        }
    }

    /// Errors that a command raises inside a script come back as `ERR` with the code in the text.
    fn of_detail(detail: &str) -> Self {
        if detail.contains("max number of clients") {
            Self::Temporary
        } else if detail.contains("WRONGTYPE") {
            Self::WrongType
        } else if detail.contains("OOM command") {
            Self::OutOfMemory
        } else if [
            "can't run this command",
            "can't access",
            "can't publish",
            "ACL error",
        ]
        .iter()
        .any(|denial| detail.contains(denial))
        {
            Self::Denied
        } else {
            Self::Other
        }
    }
}

/// Why there is no usable answer.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// No connection could be had: nothing was sent.
    Unreachable(BoxError),
    /// Sent, perhaps executed, perhaps yet to be executed: nobody knows.
    Unknown(BoxError),
    /// Answered with an error: not executed.
    Refused(ServerError),
    /// Executed and answered, but fewer replicas than wanted have confirmed it in time.
    NotReplicated { acknowledged: u32, wanted: u32 },
    /// Answered, but not in a form that this protocol knows.
    Malformed(String),
    /// The client was shut down.
    ShutDown,
}

impl RequestError {
    /// Whether the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unknown(_) | Self::NotReplicated { .. } => true,
            Self::Refused(error) => matches!(
                error.kind,
                ServerErrorKind::Temporary | ServerErrorKind::TooFewVote
            ),
            Self::Malformed(_) | Self::ShutDown => false,
        }
    }

    /// Whether a request that must be executed should be sent again: all but what is refused for good.
    pub(crate) fn should_retry(&self) -> bool {
        self.is_transient() || matches!(self, Self::Malformed(_))
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(cause) | Self::Unknown(cause) => cause.fmt(f),
            Self::Refused(error) => error.fmt(f),
            Self::NotReplicated {
                acknowledged,
                wanted,
            } => write!(f, "{acknowledged} of {wanted} replicas have it in time"),
            Self::Malformed(what) => f.write_str(what),
            Self::ShutDown => f.write_str("closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_by_what_to_do_next() {
        for (code, detail, kind) in [
            ("LOADING", "Redis is loading", ServerErrorKind::Temporary),
            (
                "ERR",
                "max number of clients reached",
                ServerErrorKind::Temporary,
            ),
            ("OOM", "command not allowed", ServerErrorKind::OutOfMemory),
            ("WRONGTYPE", "Operation against", ServerErrorKind::WrongType),
            (
                "NOPERM",
                "this user has no permissions",
                ServerErrorKind::Denied,
            ),
            (
                "ERR",
                "The user executing the script can't run this command",
                ServerErrorKind::Denied,
            ),
            (
                "ERR",
                "ACL error in script: User x has no permissions to run the 'get' command",
                ServerErrorKind::Denied,
            ),
            ("NOSCRIPT", "No matching script", ServerErrorKind::NoScript),
            ("ERR", "syntax error", ServerErrorKind::Other),
        ] {
            assert_eq!(ServerError::new(code, detail).kind, kind, "{code} {detail}");
        }
    }
}

//! What comes back: a server's answer, or the reason why there is none.

use std::fmt;

use crate::error::BoxError;
use crate::plain::plain;

/// One reply of a server.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    List(Vec<Reply>),
    Refused(ServerError),
    /// What each of several nodes has answered, in their order; nothing from those that have not.
    PerNode(Vec<Option<Reply>>),
}

impl Reply {
    /// The answer as a number, whether sent as one or as digits.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub(super) fn is_refused(&self, kind: ServerErrorKind) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.kind == kind)
    }

    /// The value that follows `name`, in an answer of names and values.
    pub(super) fn field(&self, name: &str) -> Option<&Reply> {
        let mut pairs = self.list()?.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].text() == Some(name))?;
        pair.get(1)
    }

    pub(crate) fn list(&self) -> Option<&[Reply]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }
}

impl fmt::Debug for Reply {
    /// Shows the shape only: a holder's value holds its owner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::List(items) => f.debug_list().entries(items).finish(),
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::PerNode(replies) => f.debug_list().entries(replies).finish(),
        }
    }
}

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
            "ACL failure",
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
            Self::Refused(refusal) => matches!(
                refusal.kind,
                ServerErrorKind::Temporary | ServerErrorKind::TooFewVote
            ),
            Self::Malformed(_) | Self::ShutDown => false,
        }
    }

    /// Whether a request that must be executed should be sent again: all but what is refused for good.
    pub(crate) fn should_retry(&self) -> bool {
        self.is_transient() || matches!(self, Self::Malformed(_))
    }

    pub(crate) fn malformed(what: &str, reply: &[Reply]) -> Self {
        Self::Malformed(format!("unexpected answer to {what}: {reply:?}"))
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(cause) | Self::Unknown(cause) => cause.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
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
                "ACL failure in script: User x has no permissions to run the 'get' command",
                ServerErrorKind::Denied,
            ),
            ("NOSCRIPT", "No matching script", ServerErrorKind::NoScript),
            ("ERR", "syntax error", ServerErrorKind::Other),
        ] {
            assert_eq!(ServerError::new(code, detail).kind, kind, "{code} {detail}");
        }
    }

    #[test]
    fn debug_of_a_reply_shows_no_content() {
        let shown = format!("{:?}", Reply::List(vec![Reply::Bytes(b"secret".to_vec())]));
        assert_eq!(shown, "[6 bytes]");
    }
}

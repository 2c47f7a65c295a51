//! Why a request has no usable reply.

use std::fmt;

use crate::error::BoxError;
use crate::plain::plain;

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", plain(message))]
pub(crate) struct ServerError {
    pub(crate) kind: ServerErrorKind,
    pub(crate) message: String,
}

/// Error replies, classified by what the caller can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerErrorKind {
    /// The server cannot serve the command now: it is loading, read-only, busy,
    /// or its cluster is down. The caller retries.
    Temporary,
    OutOfMemory,
    WrongType,
    /// The password is wrong, or an ACL denies the command.
    Denied,
    /// The server does not know the script; the connection sends the source.
    NoScript,
    /// Fewer than a majority of a quorum's nodes can serve the request.
    /// Computed by this client.
    NoMajority,
    /// Two addresses of a quorum lead to the same server. Computed by this
    /// client.
    SameServer,
    /// The request asks for more than the server can ever grant. Returned by a
    /// script.
    OutOfRange,
    /// The server lacks what every client needs. Computed by this client.
    Unsupported,
    Other,
}

/// What a replica replies to `WAIT`. It has no code of its own.
pub(super) const WAIT_ON_REPLICA: &str = "WAIT cannot be used with replica instances";

impl ServerError {
    pub(crate) fn new(code: &str, detail: &str) -> Self {
        Self {
            kind: ServerErrorKind::classify(code, detail),
            message: format!("{code} {detail}").trim_end().to_owned(),
        }
    }

    /// Returns whether the server does not know the command, or does not allow
    /// it to this user. A proxy words this as it likes, so every error that we
    /// don't know counts.
    pub(crate) fn lacks_command(&self) -> bool {
        matches!(self.kind, ServerErrorKind::Denied | ServerErrorKind::Other)
    }

    /// Returns whether the error proves that the server did not execute the
    /// command.
    ///
    /// A server checks for the errors that we classify before it executes a
    /// command. Any other text may be a proxy's, which had already passed the
    /// command on. An error raised inside a script proves nothing either,
    /// because the script may have written before; the server adds where it
    /// was raised, after `script: `.
    pub(crate) fn proves_unexecuted(&self) -> bool {
        self.kind != ServerErrorKind::Other && !self.message.contains("script: ")
    }
}

impl ServerErrorKind {
    fn classify(code: &str, detail: &str) -> Self {
        match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN"
            | "NOREPLICAS" | "MISCONF" | "MOVED" | "ASK" => Self::Temporary,
            "OOM" => Self::OutOfMemory,
            "WRONGTYPE" => Self::WrongType,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::Denied,
            "NOSCRIPT" => Self::NoScript,
            _ => Self::classify_detail(detail),
        }
    }

    /// Classifies an error that a command raised inside a script. The server
    /// returns it as `ERR`, with the original code in the text.
    fn classify_detail(detail: &str) -> Self {
        if detail.contains("max number of clients") || detail.contains(WAIT_ON_REPLICA) {
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

/// Why a request has no usable reply.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// No connection could be made. Nothing was sent.
    Unreachable(BoxError),
    /// No reply arrived. The request may have been executed, or may still be.
    Unknown(BoxError),
    /// The server replied with an error. Unless
    /// [`proves_unexecuted`](ServerError::proves_unexecuted), a proxy may have
    /// made it up after the server executed the request.
    Refused(ServerError),
    /// The request was executed, but fewer replicas than wanted acknowledged it
    /// in time.
    NotReplicated { acknowledged: u32, wanted: u32 },
    /// The server at this address has no replicas, though some must
    /// acknowledge. Nothing was sent.
    NoReplicas(String),
    /// The server refused `command`, without which no replica can acknowledge.
    /// What the request wrote before is executed.
    CannotAcknowledge {
        server: String,
        command: &'static str,
        refusal: ServerError,
    },
    /// The reply has a form that the protocol does not define.
    Malformed(String),
    /// The client was shut down.
    ShutDown,
}

impl RequestError {
    /// Returns the same error for another task.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Unreachable(cause) => Self::Unreachable(cause.to_string().into()),
            Self::Unknown(cause) => Self::Unknown(cause.to_string().into()),
            Self::Refused(error) => Self::Refused(error.clone()),
            Self::NotReplicated {
                acknowledged,
                wanted,
            } => Self::NotReplicated {
                acknowledged: *acknowledged,
                wanted: *wanted,
            },
            Self::NoReplicas(server) => Self::NoReplicas(server.clone()),
            Self::CannotAcknowledge {
                server,
                command,
                refusal,
            } => Self::CannotAcknowledge {
                server: server.clone(),
                command,
                refusal: refusal.clone(),
            },
            Self::Malformed(what) => Self::Malformed(what.clone()),
            Self::ShutDown => Self::ShutDown,
        }
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unknown(_) | Self::NotReplicated { .. } => true,
            Self::Refused(error) => matches!(
                error.kind,
                ServerErrorKind::Temporary | ServerErrorKind::NoMajority
            ),
            // Waiting does not help: an operator must set a replica up first,
            // or another server.
            Self::NoReplicas(_)
            | Self::CannotAcknowledge { .. }
            | Self::Malformed(_)
            | Self::ShutDown => false,
        }
    }

    /// Returns whether the server does not know the command, or does not allow
    /// it to this user.
    pub(crate) fn lacks_command(&self) -> bool {
        matches!(self, Self::Refused(error) if error.lacks_command())
    }

    /// Returns whether nothing was executed, and nothing will be.
    pub(crate) fn proves_unexecuted(&self) -> bool {
        matches!(self, Self::Refused(error) if error.proves_unexecuted())
    }

    /// Returns whether the request was sent, and may have been executed.
    pub(crate) fn may_be_executed(&self) -> bool {
        !self.proves_unexecuted() && !matches!(self, Self::Unreachable(_))
    }

    /// Returns whether a request that must be executed should be sent again:
    /// after every error except a permanent one.
    pub(crate) fn should_retry(&self) -> bool {
        self.is_transient() || matches!(self, Self::Malformed(_)) || self.is_unclassified()
    }

    /// Returns whether a server, or a proxy, replied with an error that we
    /// don't know, so that we cannot tell whether it passes.
    pub(crate) fn is_unclassified(&self) -> bool {
        matches!(self, Self::Refused(error) if error.kind == ServerErrorKind::Other)
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
            } => write!(
                f,
                "{acknowledged} of {wanted} replicas acknowledged the write in time"
            ),
            Self::NoReplicas(server) => write!(
                f,
                "{server} has no replicas that could acknowledge a lock; \
                 connect one, or require none"
            ),
            Self::CannotAcknowledge {
                server,
                command,
                refusal,
            } => write!(
                f,
                "{server} does not support `{command}`, without which no replica can \
                 acknowledge a lock: {refusal}; use a server that does, or require none"
            ),
            Self::Malformed(what) => f.write_str(what),
            Self::ShutDown => f.write_str("the client was shut down"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_are_classified() {
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
}

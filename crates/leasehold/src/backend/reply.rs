//! Replies of a server.

use std::fmt;
use std::sync::Arc;

use super::error::{RequestError, ServerError, ServerErrorKind};

/// A reply to one command.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    List(Vec<Reply>),
    Refused(ServerError),
    /// The reply of each node of a quorum, in node order.
    PerNode(Vec<NodeReply>),
}

/// The reply of one node of a quorum, or why there is none.
pub(crate) type NodeReply = Result<Reply, Arc<str>>;

impl Reply {
    /// Returns the reply as an integer, whether sent as one or as decimal
    /// digits.
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

    /// Returns the replicas in a master's reply to `ROLE`: host, port and
    /// offset of each.
    pub(super) fn replicas(&self) -> Result<&[Self], RequestError> {
        let replicas = self.list().and_then(|parts| parts.get(2)?.list());
        replicas.ok_or_else(|| RequestError::malformed("ROLE", std::slice::from_ref(self)))
    }

    /// Returns the clock in a reply to `TIME`, in microseconds.
    pub(crate) fn time(&self) -> Option<u64> {
        let [seconds, micros] = self.list()? else {
            return None;
        };
        let seconds = u64::try_from(seconds.int()?).ok()?;
        let micros = u64::try_from(micros.int()?).ok()?;
        seconds.checked_mul(1_000_000)?.checked_add(micros)
    }

    pub(super) fn is_refused(&self, kind: ServerErrorKind) -> bool {
        matches!(self, Self::Refused(error) if error.kind == kind)
    }

    /// Returns the value that follows `name` in a list of names and values.
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
    /// Shows the shape only. A lock's value contains the owner id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::List(items) => f.debug_list().entries(items).finish(),
            Self::Refused(error) => write!(f, "{error}"),
            Self::PerNode(replies) => f.debug_list().entries(replies).finish(),
        }
    }
}

impl RequestError {
    /// Creates the error for a reply that `command` should never have.
    pub(crate) fn malformed(command: &str, reply: &[Reply]) -> Self {
        Self::Malformed(format!("unexpected reply to {command}: {reply:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_omits_content() {
        let shown = format!("{:?}", Reply::List(vec![Reply::Bytes(b"secret".to_vec())]));
        assert_eq!(shown, "[6 bytes]");
    }
}

//! What can go wrong, one variant per reaction.

use std::time::Duration;

use crate::info::Holder;
use crate::plain::plain;

/// Why a lock could not be had, kept or given back.
///
/// Each variant says what may have changed on the server and what to do next. That a lock is held by
/// somebody else is no error of `try_lock`: it answers `None`. Displayed, an error is one line: what others have written
/// is escaped in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait ended before the lock was free.
    ///
    /// Nothing is held and nothing was left behind. Try again later, or look at the holder.
    #[error("waited {waited:?} for `{}`{}{}", plain(name), held_by(holder.as_deref()), place(*position))]
    Timeout {
        /// The lock waited for.
        name: String,
        /// How long.
        waited: Duration,
        /// Who held it when last asked.
        holder: Option<Box<Holder>>,
        /// The place in line, from 1, where the kind has a line.
        position: Option<u64>,
    },

    /// The lease has ended while it was believed to be held.
    ///
    /// Somebody else may hold the lock already. Stop the protected work and start over; what was
    /// written with an older token is for the resource to refuse.
    #[error("the lease on `{}` is lost: {loss}", plain(name))]
    Lost {
        /// The lock that was lost.
        name: String,
        /// How it came about.
        loss: Loss,
    },

    /// No server could be reached, or it takes no requests now (loading, read-only, busy).
    ///
    /// Nothing has changed on the server. Trying again later is right.
    #[error("the server cannot be reached")]
    Unavailable(#[source] BoxError),

    /// A request was sent and no answer came back.
    ///
    /// It may have been executed. After an acquire nothing is held: the client goes on cancelling
    /// it until it can no longer take effect. After a release the client goes on releasing; the lock
    /// is free at the latest when the lease ends. Trying again is safe.
    #[error("no answer from the server, the outcome is unknown")]
    OutcomeUnknown(#[source] BoxError),

    /// Fewer replicas than asked for have confirmed in time that they have the lock.
    ///
    /// It was granted, and is given back in the background; nothing is held. Look whether a replica is down or
    /// lags behind; then try again, with more time or fewer replicas if that is acceptable.
    #[error("{acknowledged} replicas have the lock in time, {wanted} are asked for")]
    NotReplicated {
        /// How many have confirmed.
        acknowledged: u32,
        /// How many were asked for.
        wanted: u32,
    },

    /// Too few of the nodes of a quorum can vote: they are out of reach, or were started again and must first let
    /// every lease from before end.
    ///
    /// What was granted by some is given back; nothing is held. If the nodes are up, it passes by itself, unless
    /// fewer than a majority still know what they granted: then see
    /// [`QuorumBuilder::found`](crate::QuorumBuilder::found).
    #[error("too few nodes can vote")]
    NoQuorum(#[source] BoxError),

    /// The server's memory is full and its policy is to refuse writes.
    ///
    /// Nothing has changed. Locks that are held stay held: renewal and release need no memory.
    /// Free some memory on the server.
    #[error("the server is out of memory")]
    OutOfMemory(#[source] BoxError),

    /// The lock's key holds something that is not a lock, or a lock of another kind.
    ///
    /// Nothing has changed. Choose another name or prefix.
    #[error("the key of `{}` holds data or a lock of another kind", plain(name))]
    WrongType {
        /// The lock whose key is in use.
        name: String,
    },

    /// The server refused the credentials, or its ACL forbids a command, key or channel.
    ///
    /// Nothing has changed. The README has the rule that suffices.
    #[error("the server denies access")]
    Denied(#[source] BoxError),

    /// The server answered what this library does not understand.
    ///
    /// What has changed depends on the source. Please report it.
    #[error("the server gave an unexpected answer")]
    Unexpected(#[source] BoxError),

    /// An argument is out of its range, or more was asked for than there is; nothing has changed.
    #[error("invalid {what}: {}", plain(why))]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },

    /// The client was shut down.
    ///
    /// All it held was released, or will end with its lease. Connect a new one.
    #[error("the client was shut down")]
    ShutDown,
}

/// An underlying error; its type is not part of the interface.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a lease came to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed before the deadline: the server was out of reach or too slow, the
    /// process was paused, or the lease was fixed and has run out.
    #[error("no renewal was confirmed in time")]
    Expired,
    /// Somebody deleted or overwrote the lock on the server, or the server lost its data.
    #[error("the server no longer has it in our name")]
    Revoked,
    /// The limit set with [`at_most`](crate::Acquire::at_most) was reached.
    #[error("its time limit was reached")]
    AtMost,
    /// [`Client::shutdown`](crate::Client::shutdown) gave it back.
    #[error("the client was shut down")]
    ShutDown,
}

impl Error {
    /// Returns whether the same call can succeed later without a change by
    /// the caller.
    ///
    /// True for a timeout, an outage, a missing acknowledgement or vote, an
    /// unknown outcome, and a server whose memory is full. False for a lost
    /// lease: the protected work must start over.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Unavailable(_)
            | Self::OutcomeUnknown(_)
            | Self::NotReplicated { .. }
            | Self::NoQuorum(_)
            | Self::OutOfMemory(_) => true,
            Self::Lost { .. }
            | Self::WrongType { .. }
            | Self::Denied(_)
            | Self::Unexpected(_)
            | Self::Invalid { .. }
            | Self::ShutDown => false,
        }
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Invalid { what, why }
    }
}

fn held_by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(", which is held by {holder}"))
}

fn place(position: Option<u64>) -> String {
    position.map_or_else(String::new, |position| {
        format!("; number {position} in line")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line_whatever_names_have() {
        let name = || "a\nb".to_owned();
        let loss = Loss::Expired;
        for error in [
            Error::Lost { name: name(), loss },
            Error::WrongType { name: name() },
            Error::invalid("name", name()),
            Error::Timeout {
                name: name(),
                waited: Duration::ZERO,
                holder: None,
                position: None,
            },
        ] {
            let text = error.to_string();
            assert!(text.contains(r"a\nb") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_timeout_names_the_holder() {
        let error = Error::Timeout {
            name: "coupon".to_owned(),
            waited: Duration::from_millis(500),
            holder: Some(Box::new(Holder::default())),
            position: Some(3),
        };
        assert_eq!(
            error.to_string(),
            "waited 500ms for `coupon`, which is held by a client of another library; number 3 in line"
        );
    }
}

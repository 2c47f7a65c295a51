//! The errors of the public API, one variant per reaction.

use std::time::Duration;

use crate::info::Holder;
use crate::plain::plain;

/// An error of a lock operation.
///
/// Each variant documents what may have changed on the server and how to react.
/// A lock that is busy is an error too, [`Busy`](Self::Busy), so `?` cannot
/// skip over it.
///
/// The `Display` form is one line, and complete: it names the server and the
/// cause, and `source` returns `None`. Text written by other clients is
/// escaped.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::Client;
/// use leasehold::Error;
///
/// # async fn example(client: Client) -> Result<(), Error> {
/// let limit = Duration::from_secs(1);
/// match client.mutex("report").lock().timeout(limit).await {
///     Ok(guard) => println!("acquired with token {}", guard.token()),
///     Err(Error::Timeout { holder: Some(holder), .. }) => {
///         println!("held by {holder}");
///     }
///     Err(error) if error.is_transient() => println!("retry: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The timeout elapsed before the lock was acquired.
    ///
    /// Nothing is held, and nothing was left on the server. Try again later, or
    /// inspect the holder.
    #[error(
        "timed out after {:.1?} waiting for `{}`{}{}",
        waited, plain(name), held_by(holder.as_deref()), queue_position(*position)
    )]
    Timeout {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
        /// The holder at the last attempt, if known.
        holder: Option<Box<Holder>>,
        /// The position in the queue, from 1, if the lock has a queue.
        position: Option<u64>,
    },

    /// The lock is busy, and the call doesn't wait: `try_lock` and the like.
    /// Another owner holds it, or waiters are first in the queue.
    ///
    /// Nothing is held, and nothing was left on the server. Skip the work, as
    /// [`run_or_skip`](crate::Acquire::run_or_skip) does, or try again later.
    #[error("`{}` is busy{}", plain(name), held_by(holder.as_deref()))]
    Busy {
        /// The lock's name.
        name: String,
        /// The holder, if known.
        holder: Option<Box<Holder>>,
    },

    /// The lease was lost while the guard was held.
    ///
    /// Another client may hold the lock already. Stop the protected work and
    /// start over. The resource must reject writes with an older token.
    #[error("lost the lease on `{}`: {loss}", plain(name))]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the lease was lost.
        loss: Loss,
    },

    /// The ticket of a hand-over no longer holds the lock: a process adopted
    /// it, it expired, or the lock was revoked.
    ///
    /// Nothing changed. Another client may hold the lock. Acquire it as any
    /// client does, or ask for a new ticket.
    #[error(
        "the ticket for `{}` was adopted, has expired or was revoked",
        plain(name)
    )]
    TicketSpent {
        /// The lock's name.
        name: String,
    },

    /// The server is unreachable, or rejects requests at the moment because it
    /// is loading, read-only or busy; or there are no valid
    /// [credentials](crate::Connect::credentials) at the moment.
    ///
    /// Nothing changed on the server. Try again later.
    #[error("the server is unavailable: {0}")]
    Unavailable(BoxError),

    /// A request was sent and no reply arrived.
    ///
    /// The server may have executed it. After an acquire, nothing is held: the
    /// client cancels the request in the background until it can no longer
    /// take effect. After a release, the client keeps releasing, and the lock
    /// is free when the lease expires at the latest. After a hand-over, there
    /// is no ticket, and the client releases the lock. Trying again is safe.
    #[error("no reply from the server, so the request may have been executed: {0}")]
    OutcomeUnknown(BoxError),

    /// Too few replicas acknowledged the lock in time.
    ///
    /// The lock was granted and is released again; nothing is held. Waiters
    /// retry, as through an [outage](crate::Connect::max_outage). Check
    /// whether a replica is down or lags behind. Then try again, with a
    /// longer timeout or fewer replicas if that is acceptable.
    #[error("{acknowledged} of {wanted} replicas acknowledged the lock in time")]
    NotReplicated {
        /// How many replicas acknowledged the lock.
        acknowledged: u32,
        /// How many replicas were required.
        wanted: u32,
    },

    /// Fewer than a majority of the quorum's nodes can vote, because they are
    /// unreachable or restarted recently.
    ///
    /// Votes that were granted are released; nothing is held. A node that
    /// restarted votes again once every lease from before has expired. If a
    /// majority lost its data, see
    /// [`Connect::bootstrap`](crate::Connect::bootstrap).
    #[error("fewer than a majority of the quorum's nodes can vote: {0}")]
    NoQuorum(BoxError),

    /// The server is out of memory and rejects writes.
    ///
    /// Nothing changed. Held locks stay held, because renewal and release need
    /// no memory. Free memory on the server.
    #[error("the server is out of memory: {0}")]
    OutOfMemory(BoxError),

    /// The lock's key holds a different kind of lock, or other data.
    ///
    /// Nothing changed. Choose another name or prefix.
    #[error(
        "the key of `{}` holds a different kind of lock, or other data",
        plain(name)
    )]
    WrongType {
        /// The lock's name.
        name: String,
    },

    /// The server rejected the credentials in the URL, or the ACL forbids a
    /// command, key or channel.
    ///
    /// Nothing changed. The [guide][servers] lists the permissions that a
    /// client needs.
    ///
    /// [servers]: https://github.com/leasehold/leasehold/blob/main/docs/servers.md#permissions
    #[error("the server denied permission: {0}")]
    Denied(BoxError),

    /// The server sent a reply that this library does not understand.
    ///
    /// What changed depends on the source. Please report it.
    #[error("the server sent an unexpected reply: {0}")]
    Unexpected(BoxError),

    /// An argument is invalid, or the call is not possible here: on a client's
    /// thread, in a forked process with its parent's client, or on a server
    /// that lacks something. Nothing changed.
    ///
    /// Correct what the message names.
    #[error("invalid `{what}`: {}", plain(why))]
    Invalid {
        /// The name of the argument; `thread`, `process`, `replicas` or
        /// `server` in those cases.
        what: &'static str,
        /// The value and the limit that it violates.
        why: String,
    },

    /// The client was shut down.
    ///
    /// All locks were released, or expire with their leases. Connect a new
    /// client.
    #[error("the client was shut down")]
    ShutDown,

    /// [`Client::shutdown`](crate::Client::shutdown) could not release all
    /// locks in time.
    ///
    /// They expire with their leases. Until then, other clients wait for them.
    #[error("not all locks were released in time")]
    Unreleased,
}

/// An underlying error. The text names the server, and is part of the text of
/// an [`Error`].
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed before the deadline. The server was unreachable
    /// or too slow, the process was suspended, or a
    /// [`fixed_lease`](crate::Acquire::fixed_lease) ran out.
    #[error("no renewal was confirmed before its deadline")]
    Expired,
    /// The lock was deleted or overwritten on the server, or the server lost
    /// its data.
    #[error("another client revoked the lock, or its key is gone")]
    Revoked,
    /// The limit set with [`at_most`](crate::Acquire::at_most) was reached.
    #[error("its `at_most` limit was reached")]
    AtMost,
    /// [`Client::shutdown`](crate::Client::shutdown) released it.
    #[error("the client was shut down")]
    ShutDown,
    /// The holder was stuck: it did not report progress within the limit of
    /// [`progress_within`](crate::Acquire::progress_within), so the lease was
    /// no longer renewed.
    #[error("its holder is stuck: it reports no progress")]
    Stuck,
}

impl Error {
    /// Returns whether the same call can succeed later without a change by the
    /// caller.
    ///
    /// True for a busy lock, a timeout, an outage, a missing acknowledgement or
    /// vote, an unknown outcome, and a server without free memory. False for a
    /// lost lease: the protected work must start over.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let guard = loop {
    ///     match client.mutex("report").try_lock().wait() {
    ///         Err(error) if error.is_transient() => eprintln!("{error}"),
    ///         outcome => break outcome?,
    ///     }
    ///     std::thread::sleep(Duration::from_secs(10));
    /// };
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Busy { .. }
            | Self::Unavailable(_)
            | Self::OutcomeUnknown(_)
            | Self::NotReplicated { .. }
            | Self::NoQuorum(_)
            | Self::OutOfMemory(_) => true,
            Self::Lost { .. }
            | Self::TicketSpent { .. }
            | Self::WrongType { .. }
            | Self::Denied(_)
            | Self::Unexpected(_)
            | Self::Invalid { .. }
            | Self::ShutDown
            | Self::Unreleased => false,
        }
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Invalid { what, why }
    }
}

fn held_by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(", held by {holder}"))
}

fn queue_position(position: Option<u64>) -> String {
    position.map_or_else(String::new, |position| {
        format!(" (queue position {position})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_escapes_names_to_one_line() {
        let name = || "a\nb".to_owned();
        let loss = Loss::Expired;
        for error in [
            Error::Lost { name: name(), loss },
            Error::WrongType { name: name() },
            Error::TicketSpent { name: name() },
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
    fn timeout_names_holder_and_position() {
        let error = Error::Timeout {
            name: "coupon".to_owned(),
            waited: Duration::from_millis(500),
            holder: Some(Box::new(Holder::default())),
            position: Some(3),
        };
        assert_eq!(
            error.to_string(),
            "timed out after 500.0ms waiting for `coupon`, held by a client of another library \
             (queue position 3)"
        );
    }
}

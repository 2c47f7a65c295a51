//! The outcomes that calls return to the lease layer.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::ServerError;
use crate::info::Holder;
use crate::owner::{Owner, Token};

/// The value that the server stores for one owner, and compares.
pub(crate) type LockValue = Arc<[u8]>;

/// The reply to an acquire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// The owner holds the lock, with this token from the counter.
    Held { token: Token },
    /// The owner holds the lock, perhaps only on some nodes, but cannot use it
    /// for this reason. It must be released.
    Unusable { refusal: ServerError },
    /// No owner has a majority of the nodes. The lock must be released, and the
    /// acquire retried.
    Split,
    /// Another owner holds the lock.
    Busy { holder: Holder },
    /// Another owner holds the lock on a majority of the nodes, and this owner
    /// perhaps on some others. It must be released.
    Outvoted { holder: Holder },
}

/// The reply to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewReply {
    /// The lease lasts at least as long as requested.
    Renewed,
    /// The lease is renewed, but some nodes of the quorum miss the lock.
    OnMajority,
    /// The owner does not hold the lock; nothing was changed.
    NotOwner,
}

/// The reply to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// The lock is free, or will be once `hold_for` is over. `notified` counts
    /// the connections that received the wake-up, if the server reports it.
    Released { notified: u64 },
    /// The owner did not hold the lock; nothing was changed.
    NotOwner,
}

/// The reply to a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOverReply {
    /// The ticket's owner has replaced the caller's.
    HandedOver,
    /// The caller did not hold the lock; nothing was changed.
    NotOwner,
}

/// The reply to an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdoptReply {
    /// The caller's owner has replaced that of the ticket, with this token.
    Adopted { token: Token },
    /// The ticket's owner does not hold the lock; nothing was changed.
    Spent,
}

/// The status of an owner of a lock with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueStatus {
    /// The owner holds the lock.
    Holds { token: Token, remaining: Duration },
    /// The owner waits.
    Waits {
        /// The number of waiters before it.
        ahead: u64,
        /// The server's clock at the reply, in microseconds.
        server_now: u64,
        /// The ticket that orders the queue entry, if the reply has it. A
        /// waiter that loses the entry re-enters with it at the same position.
        ticket: Option<u64>,
        /// One of the holders.
        holder: Holder,
    },
    /// The server does not know the owner.
    Gone { holder: Holder },
}

impl QueueStatus {
    /// Returns the outcome for an owner that does not wait.
    pub(crate) fn into_acquire_reply(self) -> AcquireReply {
        match self {
            Self::Holds { token, .. } => AcquireReply::Held { token },
            Self::Waits { holder, .. } | Self::Gone { holder } => AcquireReply::Busy { holder },
        }
    }
}

/// The message that grants a lock to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) owner: Owner,
    pub(crate) token: Token,
    /// When the first lease ends, by the server's clock in microseconds.
    pub(crate) end: u64,
}

impl Grant {
    /// Reads a published grant: `OWNER TOKEN END`.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(message).ok()?.split(' ');
        let grant = Self {
            owner: words.next()?.parse().ok()?,
            token: Token::new(words.next()?.parse().ok()?),
            end: words.next()?.parse().ok()?,
        };
        // Anyone can publish on the channel: what is not exactly a grant is
        // ignored.
        words.next().is_none().then_some(grant)
    }
}

/// The reply to a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockStatus {
    /// No owner holds the lock.
    Free,
    /// An owner holds it. `remaining` is `None` if the key has no expiry.
    Held { remaining: Option<Duration> },
}

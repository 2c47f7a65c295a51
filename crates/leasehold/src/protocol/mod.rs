//! What is said to a server: typed calls that are built without I/O, and the scripts they use.
//!
//! A [`Call`] is a value: commands and the reader of their answers. Building one sends nothing, so a
//! kind can be tested by looking at its calls. The keys, values and answers are described for readers
//! of any language in `lua/README.md`.
//!
//! # Invariants
//!
//! 1. Every step is idempotent under its owner: an acquire repeated by the same owner answers *held*,
//!    a release of what is not ours changes nothing.
//! 2. The first write of an acquire carries its expiry.
//! 3. A release uses no command that fails when the server's memory is full.
//! 4. Names reach the server only as arguments, never inside a script's text.

mod call;
mod inspect;
mod keys;
mod kind;
mod latch;
mod pttl;
mod queued;
mod quorum;
mod record;
pub(crate) mod redisson;
mod script;
mod server_report;
mod single_key;
mod tally;
mod token;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use call::Call;
#[cfg(test)]
pub(crate) use inspect::More;
pub(crate) use inspect::{LockSnapshot, Participant, Probe, is_connected, page};
pub(crate) use keys::{Counters, Keyspace, QueueKeys, process_channel};
pub(crate) use kind::{
    ChannelName, GrantDelivery, Keys, Kind, LocalHandoff, Notified, ServerQueue, WaitStrategy,
};
pub(crate) use latch::LatchCalls;
pub(crate) use queued::{QueueParams, Queued};
pub(crate) use quorum::{Electorate, NodeStatus, QuorumLock, too_few};
pub(crate) use server_report::{Report, clock, report};
pub(crate) use single_key::SingleKey;
pub(crate) use token::TokenBlock;

use crate::backend::ServerError;
use crate::info::Holder;
use crate::owner::{Owner, Token};

/// What stands on the server in the name of one owner, and is compared there.
pub(crate) type LockValue = Arc<[u8]>;

/// The answer to an acquire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// It is ours, with this number from the counter.
    Held { token: Token },
    /// It is ours, or ours in part, but of no use for this reason; it must be given back.
    Unusable { refusal: ServerError },
    /// Of several nodes some gave it to us and some did not; it must be given back and tried again.
    Split,
    /// Somebody else's.
    Busy { holder: Holder },
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewReply {
    /// The lease lasts at least as long as was asked.
    Renewed,
    /// It does, but some of several nodes do not have it.
    OnMajority,
    /// This owner does not hold it; nothing was changed.
    NotOwner,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// It was ours and is free, or will be at the end of the time it was to be kept. So many connections were told,
    /// as far as the server says.
    Released { notified: u64 },
    /// It was not ours; nothing was changed.
    NotOwner,
}

/// How an owner stands with a lock that has a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueStatus {
    /// It holds the lock, for this long still.
    Holds { token: Token, left: Duration },
    /// It waits.
    Waits {
        /// How many are served before it.
        ahead: u64,
        /// The server's clock when it answered, in microseconds.
        server_now: u64,
        /// What its place goes by, where the reply says it: a waiter that lost the place gets it back by that.
        ticket: Option<u64>,
        /// One of those who hold the lock.
        holder: Holder,
    },
    /// The server does not know it, any more or at all.
    Gone { holder: Holder },
}

/// What one who waits is told when the lock was given to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) owner: Owner,
    pub(crate) token: Token,
    /// When its first lease ends, by the server's clock in microseconds.
    pub(crate) end: u64,
}

/// The answer to a look at a lock that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockStatus {
    /// Nobody holds it.
    Free,
    /// Held; for how long still, unless renewed, where it expires at all.
    Held { left: Option<Duration> },
}

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
mod expiry;
mod keys;
mod kind;
mod latched;
mod lean;
mod queued;
mod record;
pub(crate) mod redisson;
mod report;
mod script;
mod sight;
mod tally;
mod token;
mod voted;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use call::Call;
pub(crate) use keys::{Counters, Keyspace, QueueKeys, process_channel};
pub(crate) use kind::{Announced, HandOn, Hints, Keys, Kind, Line, Told, Waiting};
pub(crate) use latched::Latched;
pub(crate) use lean::Lean;
pub(crate) use queued::{Queued, Share};
pub(crate) use report::{Report, clock, report};
#[cfg(test)]
pub(crate) use sight::More;
pub(crate) use sight::{First, Sight, Stood, is_connected, page};
pub(crate) use token::TokenBlock;
pub(crate) use voted::{Roll, Seat, Voted, too_few};

use crate::backend::Refusal;
use crate::info::Holder;
use crate::owner::{Owner, Token};

/// What stands on the server in the name of one owner, and is compared there.
pub(crate) type Mark = Arc<[u8]>;

/// The answer to an acquire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// It is ours, with this number from the counter.
    Held { token: Token },
    /// It is ours, or ours in part, but of no use for this reason; it must be given back.
    Void { refusal: Refusal },
    /// Of several nodes some gave it to us and some did not; it must be given back and tried again.
    Split,
    /// Somebody else's.
    Busy { holder: Holder },
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The lease lasts at least as long as was asked.
    Kept,
    /// It does, but some of several nodes do not have it.
    KeptInPart,
    /// It was not ours any more; nothing was changed.
    Gone,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// It was ours and is free, or will be at the end of the time it was to be kept. So many connections were told,
    /// as far as the server says.
    Freed { told: u64 },
    /// It was not ours; nothing was changed.
    NotOurs,
}

/// How an owner stands with a lock that has a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
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
pub(crate) enum Glance {
    /// Nobody holds it.
    Free,
    /// Held; for how long still, unless renewed, where it expires at all.
    Held { left: Option<Duration> },
}

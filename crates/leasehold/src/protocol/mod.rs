//! The wire protocol: typed calls that are built without I/O, and the scripts
//! they use.
//!
//! A [`Call`] is a value: commands and the function that reads their replies.
//! Building one sends nothing, so a kind can be tested by inspecting the calls.
//! `lua/README.md` describes the keys, values and replies for readers of any
//! language.
//!
//! # Invariants
//!
//! 1. Every step is idempotent for an owner: a repeated acquire returns *held*,
//!    and releasing a lock of another owner changes nothing.
//! 2. An acquire's first write carries an expiry.
//! 3. A release uses no command that fails when the server's memory is full.
//! 4. Names reach the server only as arguments, never in a script's text.

pub(crate) mod call;
mod election;
mod inspect;
pub(crate) mod keys;
pub(crate) mod kind;
mod latch;
mod once;
pub(crate) mod outcome;
pub(crate) mod pttl;
mod queue_reply;
mod queued;
mod quorum;
mod record;
mod redisson_hash;
pub(crate) mod script;
mod server_report;
mod single_key;
mod tally;
pub(crate) mod token;

pub(crate) use call::Call;
pub(crate) use election::ElectionCalls;
#[cfg(test)]
pub(crate) use inspect::FollowUp;
pub(crate) use inspect::{LockSnapshot, Participant, Probe, is_connected, page};
pub(crate) use keys::{Counters, Keyspace, QueueKeys, process_channel};
pub(crate) use kind::{GrantDelivery, HandOver, Kind, Notified, ServerQueue, WaitStrategy};
pub(crate) use latch::LatchCalls;
pub(crate) use once::{Claim, OnceCalls};
pub(crate) use outcome::{
    AcquireReply, AdoptReply, Grant, HandOverReply, LockStatus, LockValue, QueueStatus,
    ReleaseReply, RenewReply,
};
pub(crate) use queued::{QueueParams, Queued};
pub(crate) use quorum::{Electorate, NodeStatus, QuorumLock, too_few};
pub(crate) use record::Description;
#[cfg(feature = "redisson")]
pub(crate) use redisson_hash::{Mode, owner_in, prefixed};
pub(crate) use server_report::{Report, clock, report};
pub(crate) use single_key::SingleKey;
pub(crate) use token::TokenBlock;

//! The wire protocol: typed calls that are built without I/O, and the scripts
//! they use.
//!
//! A [`Call`] is a value: commands and the function that reads their replies.
//! Building one sends nothing, so a kind can be tested by inspecting its calls.
//! `lua/README.md` describes the keys, values and replies for readers of any
//! language.
//!
//! # Invariants
//!
//! 1. Every step is idempotent for its owner: a repeated acquire returns
//!    *held*, and releasing a lock of another owner changes nothing.
//! 2. The first write of an acquire carries its expiry.
//! 3. A release uses no command that fails when the server's memory is full.
//! 4. Names reach the server only as arguments, never in the text of a script.

mod call;
mod election;
mod inspect;
mod keys;
mod kind;
mod latch;
mod once;
mod outcome;
mod pttl;
mod queue_reply;
mod queued;
mod quorum;
mod record;
pub(crate) mod redisson;
mod script;
mod server_report;
mod single_key;
mod tally;
mod token;

pub(crate) use call::Call;
pub(crate) use election::ElectionCalls;
#[cfg(test)]
pub(crate) use inspect::FollowUp;
pub(crate) use inspect::{LockSnapshot, Participant, Probe, is_connected, page};
pub(crate) use keys::{Counters, Keyspace, QueueKeys, process_channel};
pub(crate) use kind::{GrantDelivery, HandOver, Keys, Kind, Notified, ServerQueue, WaitStrategy};
pub(crate) use latch::LatchCalls;
pub(crate) use once::{Claim, OnceCalls};
pub(crate) use outcome::{
    AcquireReply, AdoptReply, Grant, HandOverReply, LockStatus, LockValue, QueueStatus,
    ReleaseReply, RenewReply,
};
pub(crate) use queued::{QueueParams, Queued};
pub(crate) use quorum::{Electorate, NodeStatus, QuorumLock, too_few};
pub(crate) use record::Description;
pub(crate) use server_report::{Report, clock, report};
pub(crate) use single_key::SingleKey;
pub(crate) use token::TokenBlock;

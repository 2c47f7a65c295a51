//! `PTTL`: the remaining lease of a lock.

use std::time::Duration;

use super::call::{Call, read};
use super::outcome::LockStatus;
use crate::backend::{Batch, Reply};

/// Reads whether `key` exists, and the remaining time to live.
pub(crate) fn poll_key(key: &[u8]) -> Call<LockStatus> {
    let command = Batch::new("PTTL").arg(key);
    let status = |reply: &Reply| match reply.int()? {
        -2 => Some(LockStatus::Free),
        millis => Some(LockStatus::Held {
            remaining: remaining(millis),
        }),
    };
    Call::new(command, read("PTTL", status))
}

/// Converts a reply to a duration. A negative one stands for no key, or a key
/// without expiry.
pub(crate) fn remaining(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

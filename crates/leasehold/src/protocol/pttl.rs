//! `PTTL`: the remaining lease of a lock.

use std::time::Duration;

use super::call::{Call, first};
use super::outcome::LockStatus;
use crate::backend::{Command, RequestError};

/// Reads whether `key` exists, and its remaining time to live.
pub(super) fn poll_key(key: &[u8]) -> Call<LockStatus> {
    let commands = vec![Command::new("PTTL").arg(key)];
    Call::new(commands, |replies| match first("PTTL", replies)?.int() {
        Some(-2) => Ok(LockStatus::Free),
        Some(millis) => Ok(LockStatus::Held {
            remaining: remaining(millis),
        }),
        None => Err(RequestError::malformed("PTTL", &[])),
    })
}

/// Converts a reply to a duration. A negative one stands for no key, or a key
/// without expiry.
pub(super) fn remaining(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

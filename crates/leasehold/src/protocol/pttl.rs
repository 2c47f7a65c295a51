//! How long a key lasts, as one who waits for its end wants to know it: what `PTTL` answers.

use std::time::Duration;

use super::call::first;
use super::{Call, LockStatus};
use crate::backend::{Command, RequestError};

/// How long what is at `key` lasts still.
pub(super) fn glance_at(key: &[u8]) -> Call<LockStatus> {
    let commands = vec![Command::new("PTTL").arg(key)];
    Call::new(commands, |replies| match first("PTTL", replies)?.int() {
        Some(-2) => Ok(LockStatus::Free),
        Some(left) => Ok(LockStatus::Held {
            left: time_left(left),
        }),
        None => Err(RequestError::malformed("PTTL", &[])),
    })
}

/// The answer as a duration; negative numbers mean gone or without expiry.
pub(super) fn time_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

//! The replies of the queue's scripts, as `queue/prelude.lua` lists them.

use std::time::Duration;

use super::outcome::QueueStatus;
use super::record;
use crate::backend::{Reply, RequestError, ServerError, ServerErrorKind};
use crate::info::Holder;
use crate::owner::Token;

/// The usage of a lock with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueStats {
    /// How much of the capacity is in use.
    pub(crate) used: u64,
    /// The capacity, if the server knows it.
    pub(crate) capacity: Option<u64>,
    /// The number of waiters.
    pub(crate) waiters: u64,
    pub(crate) holder: Option<Holder>,
}

/// Reads a status; `None` if malformed.
pub(super) fn read_status(reply: &Reply) -> Option<Result<QueueStatus, RequestError>> {
    let Reply::List(parts) = reply else {
        return None;
    };
    let number = |at: usize| u64::try_from(parts.get(at)?.int()?).ok();
    let now = number(2)?;
    Some(Ok(match number(0)? {
        0 => QueueStatus::Gone {
            holder: holder(parts.get(4)?, number(5)?, now)?,
        },
        1 => QueueStatus::Holds {
            token: Token::new(number(1)?),
            remaining: Duration::from_micros(number(3)?.saturating_sub(now)),
        },
        2 => QueueStatus::Waits {
            ahead: number(1)?,
            server_now: now,
            ticket: number(3).filter(|ticket| *ticket > 0),
            holder: holder(parts.get(4)?, number(5)?, now)?,
        },
        // A refusal, not a status: waiting would not help.
        3 => {
            return Some(Err(RequestError::Refused(ServerError {
                kind: ServerErrorKind::OutOfRange,
                message: format!("above the capacity of {}", number(1)?),
            })));
        }
        _ => return None,
    }))
}

/// Reads the reply of `queue/stats.lua`; `None` if malformed.
pub(super) fn read_stats(reply: &Reply) -> Option<QueueStats> {
    let Reply::List(parts) = reply else {
        return None;
    };
    let number = |at: usize| u64::try_from(parts.get(at)?.int()?).ok();
    let used = number(0)?;
    let holder = holder(parts.get(4)?, number(5)?, number(2)?)?;
    Some(QueueStats {
        used,
        // Zero stands for a lock that no client uses, whose capacity the server
        // does not know.
        capacity: number(1).filter(|capacity| *capacity > 0),
        waiters: number(3)?,
        holder: (used > 0).then_some(holder),
    })
}

/// Reads the value and the holder in the reply of `queue/stats.lua`, if the
/// lock is held; `None` if malformed.
pub(super) fn read_holder(reply: &Reply) -> Option<Option<(Vec<u8>, Holder)>> {
    let parts = reply.list()?;
    let number = |at: usize| u64::try_from(parts.get(at)?.int()?).ok();
    let read = participant(parts.get(4)?, number(5)?, number(2)?)?;
    Some((number(0)? > 0).then_some(read))
}

/// Reads the holder in an entry; all fields are empty if the entry is.
fn holder(entry: &Reply, end: u64, now: u64) -> Option<Holder> {
    participant(entry, end, now).map(|(_, holder)| holder)
}

/// Reads the value in an entry, and the owner as a holder. The entry is `WEIGHT
/// FIRST_LEASE TOKEN SINCE CHANNEL VALUE`.
pub(super) fn participant(entry: &Reply, end: u64, now: u64) -> Option<(Vec<u8>, Holder)> {
    let Reply::Bytes(entry) = entry else {
        return None;
    };
    let mut parts = entry.splitn(6, |byte| *byte == b' ');
    let held_since = parts.nth(3).and_then(|since| {
        let since: u64 = std::str::from_utf8(since).ok()?.parse().ok()?;
        let since = Duration::from_micros((since > 0).then_some(since)?);
        std::time::UNIX_EPOCH.checked_add(since)
    });
    // A release with `hold_for` replaces the channel by `-`, and a hand-over by
    // `>`.
    let channel = parts.next();
    let value = parts.next().unwrap_or_default();
    let mut written = record::read(value);
    // The value of a waiter says since when it waits.
    written.process.since = held_since.or(written.process.since);
    let holder = Holder {
        lease_remaining: (end > 0).then(|| Duration::from_micros(end.saturating_sub(now))),
        released: channel == Some(b"-"),
        handed_over: channel == Some(b">"),
        ..written
    };
    Some((value.to_vec(), holder))
}

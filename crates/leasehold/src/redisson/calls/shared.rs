//! What the objects share: scripts for counts and deletion, and the readers of
//! replies.

use std::time::Duration;

use super::naming::Object;
use crate::backend::{Batch, Reply, RequestError};
use crate::info::{Holder, Process};
use crate::owner::Token;
use crate::protocol::call::{Call, read, read_done};
use crate::protocol::outcome::{AcquireReply, LockStatus, ReleaseReply, RenewReply};
use crate::protocol::owner_in;
use crate::protocol::pttl::remaining;
use crate::protocol::script::{digits, script};

script!(SET, "redisson/set.lua");
script!(DELETE, "redisson/delete.lua");

/// The token of an object without tokens; never shown.
pub(super) const NO_TOKEN: u64 = 0;

/// The lifetime of a deduplication key.
pub(super) const DEDUP_TTL: Duration = Duration::from_secs(60);

/// How long a step can be repeated: a repetition that is 15 s late must still
/// find the key.
pub(crate) const REPEAT_WITHIN: Duration = Duration::from_secs(45);

pub(super) fn read_number(replies: Vec<Reply>) -> Result<i64, RequestError> {
    read("a number", Reply::int)(replies)
}

pub(super) fn renewed(done: bool) -> RenewReply {
    match done {
        true => RenewReply::Renewed,
        false => RenewReply::NotOwner,
    }
}

pub(super) fn released(done: bool) -> ReleaseReply {
    match done {
        // The number is used after local hand-offs, which Redisson's objects
        // don't have.
        true => ReleaseReply::Released { notified: 0 },
        false => ReleaseReply::NotOwner,
    }
}

/// Returns the outcome of acquiring permits, which name no holder.
pub(super) fn permits_acquired(done: bool) -> AcquireReply {
    match done {
        true => AcquireReply::Held {
            token: Token::new(NO_TOKEN),
        },
        false => AcquireReply::Busy {
            holder: Holder::default(),
        },
    }
}

/// Reads whether `wanted` permits are available.
pub(super) fn poll_permits(available: Call<i64>, wanted: u32) -> Call<LockStatus> {
    available.map(move |available| match available >= i64::from(wanted) {
        true => LockStatus::Free,
        // No single expiry tells when enough permits are free.
        false => LockStatus::Held { remaining: None },
    })
}

/// Sets the number of `object` if it is absent, and announces it.
pub(super) fn set(object: &Object, channel: &str, number: u32, message: &[u8]) -> Call<bool> {
    let keys = [object.key(), channel.as_bytes()];
    let args = [&digits(number.into())[..], object.publish(), message];
    Call::script(&SET, &keys, &args, read_done)
}

/// Deletes the object's own key, and wakes the waiters. Returns false if it did
/// not exist.
pub(super) fn delete(object: &Object, channel: &str) -> Call<bool> {
    let keys = [object.key(), channel.as_bytes()];
    Call::script(&DELETE, &keys, &[object.publish()], read_done)
}

/// Reads 1 for held, or the remaining lease and fields of the hash.
pub(super) fn read_acquired(replies: Vec<Reply>) -> Result<AcquireReply, RequestError> {
    read("an acquire", |reply| match reply {
        Reply::Int(1) => Some(AcquireReply::Held {
            token: Token::new(NO_TOKEN),
        }),
        Reply::List(parts) if parts.len() > 1 => Some(AcquireReply::Busy {
            holder: holder(&parts[0], &parts[1..]),
        }),
        _ => None,
    })(replies)
}

/// Reads a holder from some fields of the hash and the reply to `PTTL`.
pub(super) fn holder(pttl: &Reply, fields: &[Reply]) -> Holder {
    let owner = fields.iter().find_map(|field| match field.text() {
        Some("mode") | None => None,
        Some(field) => Some(owner_in(field)),
    });
    Holder {
        released: owner.as_ref().is_some_and(|(_, released)| *released),
        process: Process {
            redisson: owner.map(|(owner, _)| owner),
            ..Process::default()
        },
        lease_remaining: pttl.int().and_then(remaining),
        ..Holder::default()
    }
}

/// Reads one of the holders in the hash at `key`.
pub(super) fn holder_at(key: &[u8]) -> Call<Option<Holder>> {
    // Two fields: one of them may be `mode`.
    let fields = Batch::new("HRANDFIELD").arg(key).arg("2");
    let commands = fields.then("PTTL").arg(key);
    Call::new(commands, |replies| match replies.as_slice() {
        [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
        [Reply::List(fields), _] if fields.is_empty() => Ok(None),
        [Reply::List(fields), pttl] => Ok(Some(holder(pttl, fields))),
        [Reply::Nil, _] => Ok(None),
        _ => Err(RequestError::malformed("HRANDFIELD", &replies)),
    })
}

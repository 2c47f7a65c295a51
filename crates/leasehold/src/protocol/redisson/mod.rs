//! Redisson's objects, on its own keys and channels, as a Redisson of any version since 3.24 leaves and finds them.
//!
//! The naming is Redisson's and is described in `docs/interop.md`; the scripts are ours. They send absolute values
//! where Redisson's add and subtract, so every step can be repeated, and use the server's clock where Redisson's
//! use the client's.

mod counted;
mod fair;
mod latch;
mod lock;
mod naming;
mod permits;
mod read_write;

pub(crate) use counted::SemaphoreCalls;
pub(crate) use fair::FairLockCalls;
pub(crate) use latch::CountDownCalls;
pub(crate) use lock::LockCalls;
use naming::kept;
pub(crate) use naming::{Naming, Object, owner_in, prefixed};
pub(crate) use permits::ExpirableCalls;
pub(crate) use read_write::{Mode, ReadWriteCalls};

use std::time::Duration;

use super::call::first;
use super::pttl::{glance_at, time_left};
use super::script::{digits, script};
use super::{AcquireReply, Call, Keys, LockStatus, ReleaseReply, RenewReply};
use crate::backend::{Command, Reply, RequestError};
use crate::info::Holder;
use crate::options::millis_up;
use crate::owner::Token;

script!(SET, "redisson/set.lua");
script!(DELETE, "redisson/delete.lua");

/// What is held without a token; never shown.
const NO_TOKEN: u64 = 0;

/// How long it is noted that a step was done, for whoever asks again: longer than a request can be late.
const NOTED: Duration = Duration::from_secs(20);

fn millis(duration: Duration) -> Vec<u8> {
    digits(millis_up(duration))
}

/// 1 for done, 0 for not.
fn read_done(replies: Vec<Reply>) -> Result<bool, RequestError> {
    match first("a script", replies)?.int() {
        Some(done @ (0 | 1)) => Ok(done == 1),
        _ => Err(RequestError::malformed("a script", &[])),
    }
}

fn read_number(replies: Vec<Reply>) -> Result<i64, RequestError> {
    let reply = first("a number", replies)?;
    let number = reply.int();
    number.ok_or_else(|| RequestError::malformed("a number", &[reply]))
}

fn renewed(done: bool) -> RenewReply {
    match done {
        true => RenewReply::Renewed,
        false => RenewReply::NotOwner,
    }
}

fn freed(done: bool) -> ReleaseReply {
    match done {
        true => ReleaseReply::Released { notified: 0 },
        false => ReleaseReply::NotOwner,
    }
}

/// Permits do not tell who holds them.
fn taken(done: bool) -> AcquireReply {
    match done {
        true => AcquireReply::Held {
            token: Token::new(NO_TOKEN),
        },
        false => AcquireReply::Busy {
            holder: Holder::default(),
        },
    }
}

/// Whether there are as many permits as are wanted.
fn enough(available: Call<i64>, wanted: u32) -> Call<LockStatus> {
    available.map(move |available| match available >= i64::from(wanted) {
        true => LockStatus::Free,
        false => LockStatus::Held { left: None },
    })
}

/// Sets the number at `key` if there is none, and announces it.
fn set(object: &Object, channel: &str, number: u32, message: &[u8]) -> Call<bool> {
    let keys = [object.key(), channel.as_bytes()];
    let args = [&digits(number.into())[..], object.publish(), message];
    Call::script(&SET, &keys, &args, read_done)
}

/// Deletes what is at the object's own key, and wakes those who wait; false when there was nothing.
fn delete(object: &Object, channel: &str) -> Call<bool> {
    let keys = [object.key(), channel.as_bytes()];
    Call::script(&DELETE, &keys, &[object.publish()], read_done)
}

/// 1 for ours, or the time left and fields of the hash.
fn read_acquired(replies: Vec<Reply>) -> Result<AcquireReply, RequestError> {
    let reply = first("an acquire", replies)?;
    match &reply {
        Reply::Int(1) => Ok(AcquireReply::Held {
            token: Token::new(NO_TOKEN),
        }),
        Reply::List(parts) if parts.len() > 1 => Ok(AcquireReply::Busy {
            holder: holder(&parts[0], &parts[1..]),
        }),
        _ => Err(RequestError::malformed("an acquire", &[reply])),
    }
}

/// Who has one of `fields`, and for how long still.
fn holder(left: &Reply, fields: &[Reply]) -> Holder {
    let owner = fields.iter().find_map(|field| match field.text() {
        Some("mode") | None => None,
        Some(field) => Some(owner_in(field)),
    });
    Holder {
        released: owner.as_ref().is_some_and(|(_, kept)| *kept),
        redisson: owner.map(|(owner, _)| owner),
        lease_remaining: left.int().and_then(time_left),
        ..Holder::default()
    }
}

/// One of those who have a field in the hash at `key`.
fn holder_at(key: &[u8]) -> Call<Option<Holder>> {
    let commands = vec![
        Command::new("HRANDFIELD").arg(key).arg("2"),
        Command::new("PTTL").arg(key),
    ];
    Call::new(commands, |replies| match replies.as_slice() {
        [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
        [Reply::List(fields), _] if fields.is_empty() => Ok(None),
        [Reply::List(fields), left] => Ok(Some(holder(left, fields))),
        [Reply::Nil, _] => Ok(None),
        _ => Err(RequestError::malformed("HRANDFIELD", &replies)),
    })
}

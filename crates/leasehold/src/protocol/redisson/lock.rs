//! Redisson's lock and fenced lock: a hash with one field, which maps the owner
//! to its hold count.

use std::time::Duration;

use super::super::call::{Call, first};
use super::super::kind::{ChannelName, HoldCount, Keys, Kind, Notified, WaitStrategy};
use super::super::outcome::{AcquireReply, LockStatus, LockValue, ReleaseReply, RenewReply};
use super::super::pttl::poll_key;
use super::super::script::{digits, script};
use super::super::token;
use super::naming::{Object, released_owner};
use super::shared::{
    delete, holder, holder_at, millis, read_acquired, read_done, released, renewed,
};
use crate::backend::{Capabilities, Reply, RequestError};
use crate::info::Holder;
use crate::owner::Owner;

script!(ACQUIRE, "redisson/lock_acquire.lua");
script!(ACQUIRE_FENCED, "redisson/fenced_acquire.lua");
script!(
    RENEW,
    "redisson/renew_prelude.lua",
    "redisson/lock_renew.lua"
);
script!(RELEASE, "redisson/lock_release.lua");
script!(SET_HOLD_COUNT, "redisson/lock_set_hold_count.lua");

/// The calls of a lock.
#[derive(Debug)]
pub(crate) struct LockCalls {
    object: Object,
    channel: String,
    /// The key of a fenced lock's token counter.
    token: Option<String>,
}

impl LockCalls {
    pub(crate) fn plain(object: Object) -> Self {
        Self {
            channel: object.prefixed("redisson_lock__channel"),
            token: None,
            object,
        }
    }

    pub(crate) fn fenced(object: Object) -> Self {
        Self {
            token: Some(object.prefixed("redisson_lock_token")),
            ..Self::plain(object)
        }
    }

    /// Revokes the lock from its holder. Returns false if it was free.
    pub(crate) fn force_unlock(&self) -> Call<bool> {
        delete(&self.object, &self.channel)
    }
}

/// Writes the hold count of `owner` in the hash at `key`.
pub(super) fn set_hold_count(key: &[u8], owner: &[u8], holds: u32) -> Call<RenewReply> {
    let args = [owner, &digits(holds.into())];
    Call::script(&SET_HOLD_COUNT, &[key], &args, read_done).map(renewed)
}

/// Extends the lease of `owner` in the hash at `key`.
pub(super) fn renew(key: &[u8], owner: &[u8], lease: Duration) -> Call<RenewReply> {
    Call::script(&RENEW, &[key], &[owner, &millis(lease)], read_done).map(renewed)
}

impl Kind for LockCalls {
    fn label(&self) -> &'static str {
        "redisson_lock"
    }

    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        let args = [&value[..], &millis(lease)];
        match &self.token {
            None => Call::script(&ACQUIRE, &[self.key()], &args, read_acquired),
            Some(token) => {
                let keys = [self.key(), token.as_bytes()];
                Call::script(&ACQUIRE_FENCED, &keys, &args, read_fenced)
            }
        }
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        renew(self.key(), value, lease)
    }

    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        let keys = [self.key(), self.channel.as_bytes()];
        let args = [
            value,
            &millis(hold_for.unwrap_or_default()),
            self.object.publish(),
            &released_owner(value),
        ];
        Call::script(&RELEASE, &keys, &args, read_done).map(released)
    }

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }

    fn hold_count(&self) -> Option<&dyn HoldCount> {
        Some(self)
    }
}

impl HoldCount for LockCalls {
    fn set_hold_count(&self, value: &[u8], holds: u32) -> Call<RenewReply> {
        set_hold_count(self.key(), value, holds)
    }
}

impl Notified for LockCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.channel_name(&self.channel)
    }

    fn poll(&self) -> Call<LockStatus> {
        poll_key(self.key())
    }
}

/// Reads the token, or the remaining lease and a field of the hash.
fn read_fenced(replies: Vec<Reply>) -> Result<AcquireReply, RequestError> {
    let reply = first("an acquire", replies)?;
    match reply.list() {
        Some([number]) => Ok(AcquireReply::Held {
            token: token::read(number)?,
        }),
        Some([pttl, fields @ ..]) => Ok(AcquireReply::Busy {
            holder: holder(pttl, fields),
        }),
        _ => Err(RequestError::malformed("an acquire", &[reply])),
    }
}

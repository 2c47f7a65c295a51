//! Redisson's lock and fenced lock: a hash with one field, the owner's, that counts how often it was entered.

use std::time::Duration;

use super::super::call::first;
use super::super::script::script;
use super::super::{
    AcquireReply, Call, ChannelName, Keys, Kind, LockStatus, LockValue, Notified, ReleaseReply,
    RenewReply, WaitStrategy, token,
};
use super::{
    Object, delete, digits, freed, glance_at, holder, holder_at, kept, millis, read_acquired,
    read_done, renewed,
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
script!(RECOUNT, "redisson/lock_set_hold_count.lua");

/// The calls of one lock.
#[derive(Debug)]
pub(crate) struct LockCalls {
    object: Object,
    channel: String,
    /// Where the fenced one counts its holders.
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

    /// Takes it away from whoever holds it; false when nobody does.
    pub(crate) fn force(&self) -> Call<bool> {
        delete(&self.object, &self.channel)
    }
}

/// Writes how often `owner` has entered the lock at `key`, a hash with a field for it.
pub(super) fn set_hold_count(key: &[u8], owner: &[u8], entries: u32) -> Call<RenewReply> {
    let args = [owner, &digits(entries.into())];
    Call::script(&RECOUNT, &[key], &args, read_done).map(renewed)
}

/// Makes the lease of `owner` last at least `lease` from now, in the hash at `key`.
pub(super) fn renew(key: &[u8], owner: &[u8], lease: Duration) -> Call<RenewReply> {
    Call::script(&RENEW, &[key], &[owner, &millis(lease)], read_done).map(renewed)
}

impl Kind for LockCalls {
    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, mark: &LockValue, lease: Duration, _look: bool) -> Call<AcquireReply> {
        let args = [&mark[..], &millis(lease)];
        match &self.token {
            None => Call::script(&ACQUIRE, &[self.key()], &args, read_acquired),
            Some(token) => {
                let keys = [self.key(), token.as_bytes()];
                Call::script(&ACQUIRE_FENCED, &keys, &args, read_fenced)
            }
        }
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        renew(self.key(), mark, lease)
    }

    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        let keys = [self.key(), self.channel.as_bytes()];
        let args = [
            mark,
            &millis(keep.unwrap_or_default()),
            self.object.publish(),
            &kept(mark),
        ];
        Call::script(&RELEASE, &keys, &args, read_done).map(freed)
    }

    fn set_hold_count(&self, mark: &[u8], entries: u32) -> Option<Call<RenewReply>> {
        Some(set_hold_count(self.key(), mark, entries))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

impl Notified for LockCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.announced(&self.channel)
    }

    fn glance(&self) -> Call<LockStatus> {
        glance_at(self.key())
    }
}

/// The token alone, or the time left and a field of the hash.
fn read_fenced(replies: Vec<Reply>) -> Result<AcquireReply, RequestError> {
    let reply = first("an acquire", replies)?;
    match reply.list() {
        Some([number]) => Ok(AcquireReply::Held {
            token: token::read(number)?,
        }),
        Some([left, fields @ ..]) => Ok(AcquireReply::Busy {
            holder: holder(left, fields),
        }),
        _ => Err(RequestError::malformed("an acquire", &[reply])),
    }
}

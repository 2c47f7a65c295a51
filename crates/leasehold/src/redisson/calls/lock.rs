//! Redisson's lock, fenced lock and read-write lock: a hash that maps each
//! owner to its hold count.
//!
//! A read-write lock also stores its mode in the hash, and has a key for each
//! hold of a reader, which expires with the reader's lease.

use std::time::Duration;

use super::naming::{Object, released_owner};
use super::shared::{delete, holder, holder_at, read_acquired, released, renewed};
use crate::backend::{Capabilities, Reply, RequestError};
use crate::info::Holder;
use crate::owner::Owner;
use crate::protocol::Description;
use crate::protocol::call::{Call, read, read_done};
use crate::protocol::keys::LockName;
use crate::protocol::kind::{ChannelName, Kind, Notified, WaitStrategy};
use crate::protocol::outcome::{AcquireReply, LockStatus, LockValue, ReleaseReply, RenewReply};
use crate::protocol::pttl::poll_key;
use crate::protocol::script::{Script, digits, millis, script};
use crate::protocol::{Mode, token};

script!(ACQUIRE, "redisson/lock_acquire.lua");
script!(ACQUIRE_FENCED, "redisson/fenced_acquire.lua");
script!(
    RENEW,
    "redisson/renew_prelude.lua",
    "redisson/lock_renew.lua"
);
script!(RELEASE, "redisson/lock_release.lua");
script!(SET_HOLD_COUNT, "redisson/lock_set_hold_count.lua");

script!(ACQUIRE_READ, "redisson/read_acquire.lua");
script!(ACQUIRE_WRITE, "redisson/write_acquire.lua");
script!(
    RW_RENEW,
    "redisson/renew_prelude.lua",
    "redisson/rw_prelude.lua",
    "redisson/rw_renew.lua"
);
script!(
    RW_RELEASE,
    "redisson/rw_prelude.lua",
    "redisson/rw_release.lua"
);
script!(
    RW_SET_HOLD_COUNT,
    "redisson/rw_prelude.lua",
    "redisson/rw_set_hold_count.lua"
);
script!(
    DOWNGRADE,
    "redisson/rw_prelude.lua",
    "redisson/rw_downgrade.lua"
);
script!(FORCE_UNLOCK, "redisson/rw_force_unlock.lua");

/// The calls of a lock.
#[derive(Debug)]
pub(crate) struct LockCalls {
    pub(super) object: Object,
    pub(super) channel: String,
    form: HashForm,
}

/// What a lock's hash contains.
#[derive(Debug)]
enum HashForm {
    /// One owner.
    Lock,
    /// One owner, which takes a token from the counter at this key.
    Fenced { token: String },
    /// A mode and several owners. The calls are those of readers or of writers,
    /// and `stem` begins the keys of readers' holds.
    ReadWrite { mode: Mode, stem: String },
}

impl LockCalls {
    pub(crate) fn plain(object: Object) -> Self {
        Self {
            channel: object.prefixed("redisson_lock__channel"),
            form: HashForm::Lock,
            object,
        }
    }

    pub(crate) fn fenced(object: Object) -> Self {
        Self {
            form: HashForm::Fenced {
                token: object.prefixed("redisson_lock_token"),
            },
            ..Self::plain(object)
        }
    }

    pub(crate) fn read_write(object: Object, mode: Mode) -> Self {
        Self {
            channel: object.prefixed("redisson_rwlock"),
            form: HashForm::ReadWrite {
                mode,
                stem: object.stem(),
            },
            object,
        }
    }

    /// Revokes the lock from the holder, or from all holders in this mode.
    /// Returns false if there are none.
    pub(crate) fn force_unlock(&self) -> Call<bool> {
        let HashForm::ReadWrite { mode, .. } = &self.form else {
            return delete(&self.object, &self.channel);
        };
        let keys = [self.key(), self.channel.as_bytes()];
        let args = [mode.word().as_bytes(), self.object.publish()];
        Call::script(&FORCE_UNLOCK, &keys, &args, read_done)
    }

    fn own_keys(&self) -> Vec<&[u8]> {
        let stem = match &self.form {
            HashForm::Lock | HashForm::Fenced { .. } => None,
            HashForm::ReadWrite { stem, .. } => Some(stem.as_bytes()),
        };
        std::iter::once(self.key()).chain(stem).collect()
    }

    fn keys_and_channel(&self) -> Vec<&[u8]> {
        let mut keys = self.own_keys();
        keys.push(self.channel.as_bytes());
        keys
    }

    /// Returns the script of a step that both kinds of hashes have.
    fn script(&self, lock: &'static Script, read_write: &'static Script) -> &'static Script {
        match &self.form {
            HashForm::Lock | HashForm::Fenced { .. } => lock,
            HashForm::ReadWrite { .. } => read_write,
        }
    }
}

/// Uses the owner as the value, also for a writer. The hash tells readers from
/// writers, because a writer can become a reader.
impl Kind for LockCalls {
    fn label(&self) -> &'static str {
        match &self.form {
            HashForm::Lock | HashForm::Fenced { .. } => "redisson_lock",
            HashForm::ReadWrite { .. } => "redisson_read_write_lock",
        }
    }

    fn variant(&self) -> [u64; 2] {
        // Readers and writers share a channel, hence a local queue, and so do
        // locks with and without tokens. A lock that was acquired for a reader
        // must not be granted to a writer, or one without a token to a caller
        // that needs it.
        match &self.form {
            HashForm::ReadWrite {
                mode: Mode::Write, ..
            } => [1, 0],
            HashForm::Fenced { .. } => [2, 0],
            _ => [0, 0],
        }
    }

    fn lock(&self) -> &LockName {
        &self.object.lock
    }

    fn value(&self, owner: &Owner, _description: Description<'_>) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        let lease = millis(lease);
        let args = [&value[..], &lease];
        let owner = String::from_utf8_lossy(value);
        match &self.form {
            HashForm::Lock => Call::script(&ACQUIRE, &[self.key()], &args, read_acquired),
            HashForm::Fenced { token } => {
                let keys = [self.key(), token.as_bytes()];
                Call::script(&ACQUIRE_FENCED, &keys, &args, read_fenced)
            }
            HashForm::ReadWrite { mode, stem } if *mode == Mode::Read => {
                // Redisson numbers the holds of a reader; the script adds the
                // number.
                let holds = format!("{stem}:{owner}:rwlock_timeout");
                let keys = [self.key(), holds.as_bytes()];
                Call::script(&ACQUIRE_READ, &keys, &args, read_acquired)
            }
            HashForm::ReadWrite { .. } => {
                // Redisson marks a writer in its field, since readers share the
                // hash.
                let writer = format!("{owner}:write");
                let args = [writer.as_bytes(), &lease];
                Call::script(&ACQUIRE_WRITE, &[self.key()], &args, read_acquired)
            }
        }
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        let script = self.script(&RENEW, &RW_RENEW);
        let args = [value, &millis(lease)];
        Call::script(script, &self.own_keys(), &args, read_done).map(renewed)
    }

    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        // Always a script: the servers' own compare-and-delete compares
        // strings, and the lock is a hash.
        let script = self.script(&RELEASE, &RW_RELEASE);
        let args = [
            value,
            &millis(hold_for.unwrap_or_default()),
            self.object.publish(),
            &released_owner(value),
        ];
        Call::script(script, &self.keys_and_channel(), &args, read_done).map(released)
    }

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }

    fn set_hold_count(&self, value: &[u8], holds: u32) -> Option<Call<RenewReply>> {
        let script = self.script(&SET_HOLD_COUNT, &RW_SET_HOLD_COUNT);
        let args = [value, &digits(holds.into())];
        Some(Call::script(script, &self.own_keys(), &args, read_done).map(renewed))
    }

    fn downgrade(&self, value: &[u8]) -> Option<Call<RenewReply>> {
        let HashForm::ReadWrite {
            mode: Mode::Write, ..
        } = self.form
        else {
            return None;
        };
        let args = [value, self.object.publish()];
        Some(Call::script(&DOWNGRADE, &self.keys_and_channel(), &args, read_done).map(renewed))
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
    read("an acquire", |reply| match reply.list()? {
        // A refusal has two parts at least, so a single number is a token.
        [number] => Some(AcquireReply::Held {
            token: token::token_in(number)?,
        }),
        [pttl, fields @ ..] => Some(AcquireReply::Busy {
            holder: holder(pttl, fields),
        }),
        [] => None,
    })(replies)
}

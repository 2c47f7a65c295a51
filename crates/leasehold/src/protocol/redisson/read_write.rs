//! Redisson's read-write lock: a hash with the mode and a field for each
//! holder, and a key for each hold of a reader, which expires with the reader's
//! lease.

use std::time::Duration;

use super::super::call::Call;
use super::super::kind::{ChannelName, Downgrade, HoldCount, Keys, Kind, Notified, WaitStrategy};
use super::super::outcome::{AcquireReply, LockStatus, LockValue, ReleaseReply, RenewReply};
use super::super::pttl::poll_key;
use super::super::script::{digits, script};
use super::naming::{Object, released_owner};
use super::shared::{holder_at, millis, read_acquired, read_done, released, renewed};
use crate::backend::Capabilities;
use crate::info::Holder;
use crate::owner::Owner;

script!(ACQUIRE_READ, "redisson/read_acquire.lua");
script!(ACQUIRE_WRITE, "redisson/write_acquire.lua");
script!(
    RENEW,
    "redisson/renew_prelude.lua",
    "redisson/rw_prelude.lua",
    "redisson/rw_renew.lua"
);
script!(
    RELEASE,
    "redisson/rw_prelude.lua",
    "redisson/rw_release.lua"
);
script!(
    DOWNGRADE,
    "redisson/rw_prelude.lua",
    "redisson/rw_downgrade.lua"
);
script!(
    SET_HOLD_COUNT,
    "redisson/rw_prelude.lua",
    "redisson/rw_set_hold_count.lua"
);
script!(FORCE_UNLOCK, "redisson/rw_force_unlock.lua");

/// The mode in which a read-write lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Returns the mode as stored in the hash.
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Reads a mode from the hash; `None` if the word is unknown.
    pub(crate) fn read(word: &str) -> Option<Self> {
        [Self::Read, Self::Write]
            .into_iter()
            .find(|mode| mode.word() == word)
    }
}

/// The calls of a read-write lock, for readers or for writers.
#[derive(Debug)]
pub(crate) struct ReadWriteCalls {
    object: Object,
    mode: Mode,
    channel: String,
    stem: String,
}

impl ReadWriteCalls {
    pub(crate) fn new(object: Object, mode: Mode) -> Self {
        Self {
            channel: object.prefixed("redisson_rwlock"),
            stem: object.stem(),
            mode,
            object,
        }
    }

    /// Revokes the lock from all holders in this mode. Returns false if there
    /// are none.
    pub(crate) fn force_unlock(&self) -> Call<bool> {
        let keys = [self.key(), self.channel.as_bytes()];
        let args = [self.mode.word().as_bytes(), self.object.publish()];
        Call::script(&FORCE_UNLOCK, &keys, &args, read_done)
    }

    fn own_keys(&self) -> [&[u8]; 2] {
        [self.key(), self.stem.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 3] {
        let [lock, stem] = self.own_keys();
        [lock, stem, self.channel.as_bytes()]
    }
}

/// Uses the owner as the value, also for a writer. The hash tells readers from
/// writers, because a writer can become a reader.
impl Kind for ReadWriteCalls {
    fn label(&self) -> &'static str {
        "redisson_read_write_lock"
    }

    fn variant(&self) -> [u64; 2] {
        [u64::from(self.mode == Mode::Write), 0]
    }

    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        let owner = String::from_utf8_lossy(value);
        match self.mode {
            Mode::Read => {
                let holds = format!("{}:{owner}:rwlock_timeout", self.stem);
                let keys = [self.key(), holds.as_bytes()];
                let args = [&value[..], &millis(lease)];
                Call::script(&ACQUIRE_READ, &keys, &args, read_acquired)
            }
            Mode::Write => {
                let writer = format!("{owner}:write");
                let args = [writer.as_bytes(), &millis(lease)];
                Call::script(&ACQUIRE_WRITE, &[self.key()], &args, read_acquired)
            }
        }
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        let args = [value, &millis(lease)];
        Call::script(&RENEW, &self.own_keys(), &args, read_done).map(renewed)
    }

    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        let args = [
            value,
            &millis(hold_for.unwrap_or_default()),
            self.object.publish(),
            &released_owner(value),
        ];
        Call::script(&RELEASE, &self.keys_and_channel(), &args, read_done).map(released)
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

    fn downgrade(&self) -> Option<&dyn Downgrade> {
        Some(self)
    }
}

impl HoldCount for ReadWriteCalls {
    fn set_hold_count(&self, value: &[u8], holds: u32) -> Call<RenewReply> {
        let args = [value, &digits(holds.into())];
        Call::script(&SET_HOLD_COUNT, &self.own_keys(), &args, read_done).map(renewed)
    }
}

impl Downgrade for ReadWriteCalls {
    fn downgrade(&self, value: &[u8]) -> Call<RenewReply> {
        let args = [value, self.object.publish()];
        Call::script(&DOWNGRADE, &self.keys_and_channel(), &args, read_done).map(renewed)
    }
}

impl Notified for ReadWriteCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.channel_name(&self.channel)
    }

    fn poll(&self) -> Call<LockStatus> {
        poll_key(self.key())
    }
}

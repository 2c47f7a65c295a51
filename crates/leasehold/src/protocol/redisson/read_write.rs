//! Redisson's read-write lock: a hash with the mode and a field for each who holds it, and a key for each entry of
//! a reader that expires with its lease.

use std::time::Duration;

use super::super::script::script;
use super::super::{
    AcquireReply, Call, ChannelName, Keys, Kind, LockStatus, LockValue, Notified, ReleaseReply,
    RenewReply, WaitStrategy,
};
use super::{
    Object, digits, freed, glance_at, holder_at, kept, millis, read_acquired, read_done, renewed,
};
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
    RECOUNT,
    "redisson/rw_prelude.lua",
    "redisson/rw_set_hold_count.lua"
);
script!(FORCE, "redisson/rw_force_unlock.lua");

/// What one who comes wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

impl Mode {
    /// The mode as the hash has it.
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Reads the mode that a hash has; `None` when it is none.
    pub(crate) fn read(word: &str) -> Option<Self> {
        [Self::Read, Self::Write]
            .into_iter()
            .find(|mode| mode.word() == word)
    }
}

/// The calls of one lock, for those who read or for those who write.
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

    /// Takes it away from all who hold it in this mode; false when nobody does.
    pub(crate) fn force(&self) -> Call<bool> {
        let keys = [self.key(), self.channel.as_bytes()];
        let args = [self.mode.word().as_bytes(), self.object.publish()];
        Call::script(&FORCE, &keys, &args, read_done)
    }

    fn own_keys(&self) -> [&[u8]; 2] {
        [self.key(), self.stem.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 3] {
        let [lock, stem] = self.own_keys();
        [lock, stem, self.channel.as_bytes()]
    }
}

/// The mark is the owner, also of a writer: who reads and who writes is told by the hash, since a writer can become
/// a reader.
impl Kind for ReadWriteCalls {
    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, mark: &LockValue, lease: Duration, _look: bool) -> Call<AcquireReply> {
        let owner = String::from_utf8_lossy(mark);
        match self.mode {
            Mode::Read => {
                let entries = format!("{}:{owner}:rwlock_timeout", self.stem);
                let keys = [self.key(), entries.as_bytes()];
                let args = [&mark[..], &millis(lease)];
                Call::script(&ACQUIRE_READ, &keys, &args, read_acquired)
            }
            Mode::Write => {
                let writer = format!("{owner}:write");
                let args = [writer.as_bytes(), &millis(lease)];
                Call::script(&ACQUIRE_WRITE, &[self.key()], &args, read_acquired)
            }
        }
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        Call::script(&RENEW, &self.own_keys(), &[mark, &millis(lease)], read_done).map(renewed)
    }

    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        let args = [
            mark,
            &millis(keep.unwrap_or_default()),
            self.object.publish(),
            &kept(mark),
        ];
        Call::script(&RELEASE, &self.keys_and_channel(), &args, read_done).map(freed)
    }

    fn set_hold_count(&self, mark: &[u8], entries: u32) -> Option<Call<RenewReply>> {
        let args = [mark, &digits(entries.into())];
        Some(Call::script(&RECOUNT, &self.own_keys(), &args, read_done).map(renewed))
    }

    fn downgrade(&self, mark: &[u8]) -> Option<Call<RenewReply>> {
        let args = [mark, self.object.publish()];
        Some(Call::script(&DOWNGRADE, &self.keys_and_channel(), &args, read_done).map(renewed))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

impl Notified for ReadWriteCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.announced(&self.channel)
    }

    fn glance(&self) -> Call<LockStatus> {
        glance_at(self.key())
    }
}

//! Redisson's semaphore whose permits expire: how many are available, and those that are held by when they expire.

use std::time::Duration;

use super::super::script::script;
use super::super::{
    AcquireReply, Call, ChannelName, Keys, Kind, LockStatus, LockValue, Notified, ReleaseReply,
    RenewReply, WaitStrategy,
};
use super::{
    Object, SemaphoreCalls, enough, freed, millis, read_done, read_number, renewed, taken,
};
use crate::backend::Capabilities;
use crate::info::Holder;
use crate::owner::Owner;

script!(
    ACQUIRE,
    "redisson/clock_prelude.lua",
    "redisson/permits_acquire.lua"
);
script!(
    RENEW,
    "redisson/clock_prelude.lua",
    "redisson/permits_renew.lua"
);
script!(
    RELEASE,
    "redisson/clock_prelude.lua",
    "redisson/permits_release.lua"
);
script!(
    LOOK,
    "redisson/clock_prelude.lua",
    "redisson/permits_available.lua"
);

/// The calls of one semaphore, for those who take so many permits.
#[derive(Clone, Debug)]
pub(crate) struct ExpirableCalls {
    object: Object,
    held: String,
    channel: String,
    wanted: u32,
}

impl ExpirableCalls {
    pub(crate) fn new(object: Object) -> Self {
        Self {
            held: format!("{}:timeout", object.stem()),
            channel: object.prefixed("redisson_sc"),
            object,
            wanted: 1,
        }
    }

    /// The same, for one who takes so many.
    pub(crate) fn taking(&self, permits: u32) -> Self {
        Self {
            wanted: permits,
            ..self.clone()
        }
    }

    /// How many could be taken now.
    pub(crate) fn available(&self) -> Call<i64> {
        Call::script(&LOOK, &self.own_keys(), &[], read_number)
    }

    /// Sets how many there are, if that was never done.
    pub(crate) fn set(&self, permits: u32) -> Call<bool> {
        SemaphoreCalls::new(self.object.clone()).set(permits)
    }

    fn own_keys(&self) -> [&[u8]; 2] {
        [self.key(), self.held.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 3] {
        let [available, held] = self.own_keys();
        [available, held, self.channel.as_bytes()]
    }
}

impl Kind for ExpirableCalls {
    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    /// The ids of all permits, 16 bytes each.
    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        let ids = (0..u128::from(self.wanted)).flat_map(|number| owner.id(number));
        ids.collect()
    }

    fn acquire(&self, mark: &LockValue, lease: Duration, _look: bool) -> Call<AcquireReply> {
        let args = [&mark[..], &millis(lease), self.object.publish()];
        Call::script(&ACQUIRE, &self.keys_and_channel(), &args, read_done).map(taken)
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        let args = [mark, &millis(lease)];
        Call::script(&RENEW, &[self.held.as_bytes()], &args, read_done).map(renewed)
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
            &kept_ids(mark),
        ];
        Call::script(&RELEASE, &self.keys_and_channel(), &args, read_done).map(freed)
    }

    /// Permits do not tell who holds them.
    fn holder(&self) -> Call<Option<Holder>> {
        self.available().map(|_| None)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

/// The ids that stand in place of `ids` after a release that keeps the permits.
/// The first byte is random, and differs from that of every id of the same owner.
fn kept_ids(ids: &[u8]) -> Vec<u8> {
    let mut kept = ids.to_vec();
    for id in kept.chunks_exact_mut(16) {
        id[0] = !id[0];
    }
    kept
}

impl Notified for ExpirableCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.announced(&self.channel)
    }

    fn glance(&self) -> Call<LockStatus> {
        enough(self.available(), self.wanted)
    }
}

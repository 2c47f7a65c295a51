//! Redisson's semaphore with permits that expire: the number of available
//! permits, and the held permits by when they expire.

use std::time::Duration;

use super::naming::Object;
use super::semaphore::SemaphoreCalls;
use super::shared::{permits_acquired, poll_permits, read_number, released, renewed};
use crate::backend::Capabilities;
use crate::info::Holder;
use crate::owner::Owner;
use crate::protocol::Description;
use crate::protocol::call::{Call, read_done};
use crate::protocol::keys::LockName;
use crate::protocol::kind::{ChannelName, Kind, Notified, WaitStrategy};
use crate::protocol::outcome::{AcquireReply, LockStatus, LockValue, ReleaseReply, RenewReply};
use crate::protocol::script::{millis, script};

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
    AVAILABLE,
    "redisson/clock_prelude.lua",
    "redisson/permits_available.lua"
);

/// The calls of a semaphore, for acquisitions of the same number of permits.
#[derive(Clone, Debug)]
pub(crate) struct ExpirableCalls {
    /// The steps that do not concern expiry.
    semaphore: SemaphoreCalls,
    held: String,
}

impl ExpirableCalls {
    pub(crate) fn new(object: Object) -> Self {
        Self {
            held: format!("{}:timeout", object.stem()),
            semaphore: SemaphoreCalls::new(object),
        }
    }

    /// Returns the same semaphore, for acquisitions of `permits`.
    pub(crate) fn with_permits(&self, permits: u32) -> Self {
        Self {
            semaphore: self.semaphore.with_permits(permits),
            held: self.held.clone(),
        }
    }

    /// Reads how many permits could be acquired now.
    pub(crate) fn available(&self) -> Call<i64> {
        Call::script(&AVAILABLE, &self.own_keys(), &[], read_number)
    }

    /// Sets the number of permits, unless it was set before.
    pub(crate) fn set(&self, permits: u32) -> Call<bool> {
        self.semaphore.set(permits)
    }

    fn own_keys(&self) -> [&[u8]; 2] {
        [self.key(), self.held.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 3] {
        let [available, held] = self.own_keys();
        [available, held, self.semaphore.channel.as_bytes()]
    }
}

impl Kind for ExpirableCalls {
    fn label(&self) -> &'static str {
        "redisson_permit_expirable_semaphore"
    }

    fn variant(&self) -> [u64; 2] {
        self.semaphore.variant()
    }

    fn lock(&self) -> &LockName {
        self.semaphore.lock()
    }

    /// Returns the ids of all permits, 16 bytes each.
    fn value(&self, owner: &Owner, _description: Description<'_>) -> LockValue {
        let ids = (0..u128::from(self.semaphore.permits)).flat_map(|number| owner.id(number));
        ids.collect()
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        // The ids show whether a repeated request was executed, so it needs no
        // deduplication key. An acquire also frees expired permits, and then
        // wakes other waiters.
        let publish = self.semaphore.object.publish();
        let args = [&value[..], &millis(lease), publish];
        Call::script(&ACQUIRE, &self.keys_and_channel(), &args, read_done).map(permits_acquired)
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        let args = [value, &millis(lease)];
        Call::script(&RENEW, &[self.held.as_bytes()], &args, read_done).map(renewed)
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
            self.semaphore.object.publish(),
            &released_ids(value),
        ];
        Call::script(&RELEASE, &self.keys_and_channel(), &args, read_done).map(released)
    }

    /// Returns `None`: permits name no holder.
    fn holder(&self) -> Call<Option<Holder>> {
        self.available().map(|_| None)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

/// Returns the ids that replace `ids` after a release with `hold_for`. The
/// first byte is inverted, so they differ from every id of the same owner.
fn released_ids(ids: &[u8]) -> Vec<u8> {
    let mut released = ids.to_vec();
    for id in released.chunks_exact_mut(16) {
        // Ids of one owner differ in their last bytes only.
        id[0] = !id[0];
    }
    released
}

impl Notified for ExpirableCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.semaphore.channel_name()
    }

    fn poll(&self) -> Call<LockStatus> {
        poll_permits(self.available(), self.semaphore.permits)
    }
}

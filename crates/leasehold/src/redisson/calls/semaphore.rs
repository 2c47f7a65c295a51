//! Redisson's semaphore: a number on the server, without owners.
//!
//! Acquired permits have no owner on the server and never expire. Each
//! acquisition has a deduplication key for a while, so a request whose reply
//! was lost can be repeated.

use std::time::Duration;

use super::naming::Object;
use super::shared::{DEDUP_TTL, REPEAT_WITHIN, permits_acquired, poll_permits, released, set};
use crate::backend::{Batch, Capabilities, Reply};
use crate::info::Holder;
use crate::owner::Owner;
use crate::protocol::Description;
use crate::protocol::call::{Call, read, read_done};
use crate::protocol::keys::LockName;
use crate::protocol::kind::{ChannelName, Kind, Notified, WaitStrategy};
use crate::protocol::outcome::{AcquireReply, LockStatus, LockValue, ReleaseReply, RenewReply};
use crate::protocol::script::{digits, millis, script};

script!(ACQUIRE, "redisson/semaphore_acquire.lua");
script!(RELEASE, "redisson/semaphore_release.lua");

/// The calls of a semaphore, for acquisitions of the same number of permits.
#[derive(Clone, Debug)]
pub(crate) struct SemaphoreCalls {
    pub(super) object: Object,
    pub(super) channel: String,
    pub(super) permits: u32,
}

impl SemaphoreCalls {
    pub(crate) fn new(object: Object) -> Self {
        Self {
            channel: object.prefixed("redisson_sc"),
            object,
            permits: 1,
        }
    }

    /// Returns the same semaphore, for acquisitions of `permits`.
    pub(crate) fn with_permits(&self, permits: u32) -> Self {
        Self {
            permits,
            ..self.clone()
        }
    }

    /// Sets the number of permits, unless it was set before.
    pub(crate) fn set(&self, permits: u32) -> Call<bool> {
        set(
            &self.object,
            &self.channel,
            permits,
            &digits(permits.into()),
        )
    }

    /// Reads the number of available permits.
    pub(crate) fn available(&self) -> Call<i64> {
        let command = Batch::new("GET").arg(self.key());
        let available = |reply: &Reply| match reply {
            // To Redisson, an absent number is zero: no permits were set, or
            // the latch is open.
            Reply::Nil => Some(0),
            number => number.int(),
        };
        Call::new(command, read("GET", available))
    }

    /// Releases permits, once for each `value`. Unless `certain`, only if the
    /// deduplication key shows that they were acquired.
    pub(crate) fn release_permits(&self, value: &[u8], certain: bool) -> Call<ReleaseReply> {
        let dedup = self.dedup_key(value);
        let keys = [self.key(), dedup.as_bytes(), self.channel.as_bytes()];
        let args = [
            &digits(self.permits.into())[..],
            &millis(DEDUP_TTL),
            self.object.publish(),
            // After a lost reply we do not know whether we have permits. Adding
            // some that were never taken would let in one owner too many.
            if certain { b"1" } else { b"0" },
        ];
        Call::script(&RELEASE, &keys, &args, read_done).map(released)
    }

    fn dedup_key(&self, value: &[u8]) -> String {
        self.object.dedup_key(&String::from_utf8_lossy(value))
    }
}

/// Renews nothing: permits belong to their holder until it releases them.
impl Kind for SemaphoreCalls {
    fn label(&self) -> &'static str {
        "redisson_semaphore"
    }

    fn variant(&self) -> [u64; 2] {
        [self.permits.into(), 0]
    }

    fn lock(&self) -> &LockName {
        &self.object.lock
    }

    fn value(&self, owner: &Owner, _description: Description<'_>) -> LockValue {
        // The server stores no owner. This only names the deduplication key.
        owner.to_string().into_bytes().into()
    }

    fn acquire(&self, value: &LockValue, _lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        let dedup = self.dedup_key(value);
        let keys = [self.key(), dedup.as_bytes()];
        let args = [&digits(self.permits.into())[..], &millis(DEDUP_TTL)];
        Call::script(&ACQUIRE, &keys, &args, read_done).map(permits_acquired)
    }

    fn renew(&self, _value: &[u8], _lease: Duration) -> Call<RenewReply> {
        self.available().map(|_| RenewReply::Renewed)
    }

    fn release(
        &self,
        value: &[u8],
        _hold_for: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        // A holder has its permits for certain, also when the deduplication key
        // has expired long ago.
        self.release_permits(value, true)
    }

    fn repeat_release_within(&self) -> Option<Duration> {
        Some(REPEAT_WITHIN)
    }

    fn cancel(&self, value: &[u8], _server: Capabilities) -> Call<ReleaseReply> {
        self.release_permits(value, false)
    }

    /// Returns `None`: permits name no holder.
    fn holder(&self) -> Call<Option<Holder>> {
        self.available().map(|_| None)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

impl Notified for SemaphoreCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.channel_name(&self.channel)
    }

    fn poll(&self) -> Call<LockStatus> {
        poll_permits(self.available(), self.permits)
    }
}

//! Redisson's count-down latch: a number on the server, which is deleted when
//! it reaches zero.

use super::naming::Object;
use super::semaphore::SemaphoreCalls;
use super::shared::{DEDUP_TTL, delete, read_number, set};
use crate::backend::Slot;
use crate::owner::Owner;
use crate::protocol::call::Call;
use crate::protocol::kind::{ChannelName, Notified};
use crate::protocol::outcome::LockStatus;
use crate::protocol::script::{millis, script};

script!(COUNT_DOWN, "redisson/latch_count_down.lua");

/// The calls of a latch.
#[derive(Debug)]
pub(crate) struct CountDownCalls {
    object: Object,
    channel: String,
}

impl CountDownCalls {
    pub(crate) fn new((object, channel): (Object, String)) -> Self {
        Self { object, channel }
    }

    pub(crate) fn name(&self) -> &str {
        self.object.lock.name()
    }

    pub(crate) fn slot(&self) -> Slot {
        self.object.lock.slot()
    }

    /// Sets the count, which closes the latch. Returns false if it is closed.
    pub(crate) fn set(&self, count: u32) -> Call<bool> {
        set(&self.object, &self.channel, count, b"1")
    }

    /// Counts down, once for each `caller`. Returns the remaining count.
    pub(crate) fn count_down(&self, caller: &Owner) -> Call<i64> {
        let dedup = self.object.dedup_key(&caller.to_string());
        let keys = [self.object.key(), dedup.as_bytes(), self.channel.as_bytes()];
        let args = [&millis(DEDUP_TTL)[..], self.object.publish()];
        Call::script(&COUNT_DOWN, &keys, &args, read_number)
    }

    /// Reads the remaining count.
    pub(crate) fn remaining(&self) -> Call<i64> {
        SemaphoreCalls::new(self.object.clone()).available()
    }

    /// Deletes the latch. Returns false if it was open.
    pub(crate) fn delete(&self) -> Call<bool> {
        delete(&self.object, &self.channel)
    }
}

impl Notified for CountDownCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.channel_name(&self.channel)
    }

    fn poll(&self) -> Call<LockStatus> {
        self.remaining().map(|remaining| match remaining {
            0 => LockStatus::Free,
            _ => LockStatus::Held { remaining: None },
        })
    }
}

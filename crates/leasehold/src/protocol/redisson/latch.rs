//! Redisson's count-down latch: a number on the server that is gone when it has been counted down.

use super::super::script::script;
use super::super::{Call, ChannelName, Keys, LockStatus, Notified};
use super::{NOTED, Object, SemaphoreCalls, delete, millis, read_number, set};
use crate::backend::Slot;
use crate::owner::Owner;

script!(COUNT_DOWN, "redisson/latch_count_down.lua");

/// The calls of one latch.
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
        self.object.name()
    }

    pub(crate) fn slot(&self) -> Slot {
        self.object.slot()
    }

    /// Closes it, for so many to come; false when it is closed already.
    pub(crate) fn set(&self, count: u32) -> Call<bool> {
        set(&self.object, &self.channel, count, b"1")
    }

    /// Counts down, once under one number; how many are still to come.
    pub(crate) fn count_down(&self, number: &Owner) -> Call<i64> {
        let note = self.object.note(&number.to_string());
        let keys = [self.object.key(), note.as_bytes(), self.channel.as_bytes()];
        let args = [&millis(NOTED)[..], self.object.publish()];
        Call::script(&COUNT_DOWN, &keys, &args, read_number)
    }

    /// How many are still to come.
    pub(crate) fn left(&self) -> Call<i64> {
        SemaphoreCalls::new(self.object.clone()).available()
    }

    /// Deletes it; false when it was open.
    pub(crate) fn delete(&self) -> Call<bool> {
        delete(&self.object, &self.channel)
    }
}

impl Notified for CountDownCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        self.object.announced(&self.channel)
    }

    fn glance(&self) -> Call<LockStatus> {
        self.left().map(|left| match left {
            0 => LockStatus::Free,
            _ => LockStatus::Held { left: None },
        })
    }
}

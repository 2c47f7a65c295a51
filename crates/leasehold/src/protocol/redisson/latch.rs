//! Redisson's count-down latch: a number on the server that is gone when it has been counted down.

use super::super::script::script;
use super::super::{Announced, Call, Glance, Hints, Keys};
use super::{Counted, NOTED, Object, digits, millis, read_done, read_number};
use crate::backend::Slot;
use crate::owner::Owner;

script!(SET, "redisson/latch_set.lua");
script!(COUNT_DOWN, "redisson/latch_count_down.lua");
script!(DELETE, "redisson/latch_delete.lua");

/// The calls of one latch.
#[derive(Debug)]
pub(crate) struct CountDown {
    object: Object,
    channel: String,
}

impl CountDown {
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
        let args = [&digits(count.into())[..], self.object.publish()];
        Call::script(&SET, &self.keys(), &args, read_done)
    }

    /// Counts down, once under one number; how many are still to come.
    pub(crate) fn count_down(&self, number: &Owner) -> Call<i64> {
        let note = self.object.note(&number.to_string());
        let [latch, channel] = self.keys();
        let args = [&millis(NOTED)[..], self.object.publish()];
        let keys = [latch, note.as_bytes(), channel];
        Call::script(&COUNT_DOWN, &keys, &args, read_number)
    }

    /// How many are still to come.
    pub(crate) fn left(&self) -> Call<i64> {
        Counted::new(self.object.clone()).available()
    }

    /// Deletes it; false when it was open.
    pub(crate) fn delete(&self) -> Call<bool> {
        Call::script(&DELETE, &self.keys(), &[self.object.publish()], read_done)
    }

    fn keys(&self) -> [&[u8]; 2] {
        [self.object.key(), self.channel.as_bytes()]
    }
}

impl Hints for CountDown {
    fn announced(&self) -> Announced<'_> {
        self.object.announced(&self.channel)
    }

    fn glance(&self) -> Call<Glance> {
        self.left().map(|left| match left {
            0 => Glance::Free,
            _ => Glance::Held { left: None },
        })
    }
}

//! The latch: a count on the server that goes down to zero, each caller once.

use std::time::Duration;

use super::call::first;
use super::keys::LockKeys;
use super::script::script;
use super::{Announced, Call, Glance, Hints, Keys};
use crate::backend::{Command, Failure, Refusal, Reply, Slot};
use crate::options::millis_up;

script!(SET, "latch/set.lua");
script!(COUNT_DOWN, "latch/count_down.lua");
script!(DELETE, "latch/delete.lua");

/// The calls of one latch.
#[derive(Debug)]
pub(crate) struct Latched {
    keys: LockKeys,
    channel: String,
}

impl Latched {
    pub(crate) fn new(keys: LockKeys) -> Self {
        let channel = keys.latch_channel();
        Self { keys, channel }
    }

    pub(crate) fn name(&self) -> &str {
        self.keys.name()
    }

    pub(crate) fn slot(&self) -> Slot {
        self.keys.slot
    }

    /// Makes it; false when there is one.
    pub(crate) fn set(&self, count: u32, life: Duration) -> Call<bool> {
        let (count, life) = (count.to_string(), millis_up(life).to_string());
        let args = [count.as_bytes(), life.as_bytes()];
        Call::script(&SET, &self.key(), &args, read_done)
    }

    /// Counts down; how many are still to come, or `None` when there is no latch.
    pub(crate) fn count_down(&self, caller: &str) -> Call<Option<u32>> {
        let args = [caller.as_bytes(), self.channel.as_bytes()];
        Call::script(&COUNT_DOWN, &self.key(), &args, |replies| {
            match first("a count-down", replies)?.int() {
                Some(-1) => Ok(None),
                left => match left.and_then(|left| u32::try_from(left).ok()) {
                    Some(left) => Ok(Some(left)),
                    None => Err(Failure::malformed("a count-down", &[])),
                },
            }
        })
    }

    /// Deletes it; false when there was none.
    pub(crate) fn delete(&self) -> Call<bool> {
        Call::script(&DELETE, &self.key(), &[self.channel.as_bytes()], read_done)
    }

    /// How many are still to come, or `None` when there is no latch.
    pub(crate) fn left(&self) -> Call<Option<u32>> {
        let fields = Command::new("HMGET")
            .arg(self.keys.lock())
            .arg("kind")
            .arg("left");
        Call::new(vec![fields], |replies| read_left(first("HMGET", replies)?))
    }

    fn key(&self) -> [&[u8]; 1] {
        [self.keys.lock().as_bytes()]
    }
}

impl Hints for Latched {
    fn announced(&self) -> Announced<'_> {
        Announced::sharded(&self.channel)
    }

    fn glance(&self) -> Call<Glance> {
        self.left().map(|left| match left {
            None | Some(0) => Glance::Free,
            Some(_) => Glance::Held { left: None },
        })
    }
}

fn read_done(replies: Vec<Reply>) -> Result<bool, Failure> {
    match first("a latch", replies)?.int() {
        Some(done @ (0 | 1)) => Ok(done == 1),
        _ => Err(Failure::malformed("a latch", &[])),
    }
}

fn read_left(reply: Reply) -> Result<Option<u32>, Failure> {
    let Reply::List(fields) = &reply else {
        return Err(Failure::malformed("HMGET", &[reply]));
    };
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse().ok();
    match fields.as_slice() {
        [Reply::Nil, _] => Ok(None),
        [Reply::Bytes(kind), Reply::Bytes(left)] if kind == b"latch" => match number(left) {
            Some(left) => Ok(Some(left)),
            None => Err(Failure::malformed("HMGET", &[reply])),
        },
        [Reply::Bytes(_), _] => {
            let refusal = Refusal::new("WRONGTYPE", "the key is that of a lock");
            Err(Failure::Refused(refusal))
        }
        _ => Err(Failure::malformed("HMGET", &[reply])),
    }
}

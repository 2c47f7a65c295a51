//! The latch: a count on the server that each caller decrements once.

use std::time::Duration;

use super::call::{Call, first, read, read_done};
use super::keys::LockKeys;
use super::kind::{ChannelName, Notified};
use super::outcome::LockStatus;
use super::script::{digits, millis, script};
use crate::backend::{Batch, Reply, RequestError, ServerError, Slot};

script!(SET, "latch/set.lua");
script!(COUNT_DOWN, "latch/count_down.lua");
script!(DELETE, "latch/delete.lua");

/// The calls of one latch.
#[derive(Debug)]
pub(crate) struct LatchCalls {
    keys: LockKeys,
    channel: String,
}

impl LatchCalls {
    pub(crate) fn new(keys: LockKeys) -> Self {
        let channel = keys.latch_channel();
        Self { keys, channel }
    }

    pub(crate) fn name(&self) -> &str {
        self.keys.lock.name()
    }

    pub(crate) fn slot(&self) -> Slot {
        self.keys.lock.slot()
    }

    /// Creates the latch. Returns false if one exists.
    pub(crate) fn set(&self, count: u32, life: Duration) -> Call<bool> {
        let args = [&digits(count.into())[..], &millis(life)];
        Call::script(&SET, &self.key(), &args, read_done)
    }

    /// Counts down. Returns the remaining count, or `None` if there is no
    /// latch.
    pub(crate) fn count_down(&self, caller: &str) -> Call<Option<u32>> {
        // The caller's id makes a repeated request count once.
        let args = [caller.as_bytes(), self.channel.as_bytes()];
        let remaining = |reply: &Reply| match reply.int()? {
            -1 => Some(None),
            count => u32::try_from(count).ok().map(Some),
        };
        Call::script(
            &COUNT_DOWN,
            &self.key(),
            &args,
            read("a count-down", remaining),
        )
    }

    /// Deletes the latch. Returns false if there was none.
    pub(crate) fn delete(&self) -> Call<bool> {
        Call::script(&DELETE, &self.key(), &[self.channel.as_bytes()], read_done)
    }

    /// Reads the remaining count, or `None` if there is no latch.
    pub(crate) fn remaining(&self) -> Call<Option<u32>> {
        let fields = Batch::new("HMGET")
            .arg(self.keys.lock())
            .arg("kind")
            .arg("remaining");
        Call::new(fields, |replies| read_remaining(first("HMGET", replies)?))
    }

    fn key(&self) -> [&[u8]; 1] {
        [self.keys.lock().as_bytes()]
    }
}

impl Notified for LatchCalls {
    fn channel_name(&self) -> ChannelName<'_> {
        ChannelName::sharded(&self.channel)
    }

    fn poll(&self) -> Call<LockStatus> {
        self.remaining().map(|remaining| match remaining {
            None | Some(0) => LockStatus::Free,
            Some(_) => LockStatus::Held { remaining: None },
        })
    }
}

fn read_remaining(reply: Reply) -> Result<Option<u32>, RequestError> {
    let Reply::List(fields) = &reply else {
        return Err(RequestError::malformed("HMGET", &[reply]));
    };
    match fields.as_slice() {
        [Reply::Nil, _] => Ok(None),
        [Reply::Bytes(kind), count] if kind == b"latch" => {
            let count = count.int().and_then(|count| u32::try_from(count).ok());
            count.map_or_else(
                || Err(RequestError::malformed("HMGET", fields)),
                |count| Ok(Some(count)),
            )
        }
        [Reply::Bytes(_), _] => {
            let refusal = ServerError::new("WRONGTYPE", "the key holds a lock");
            Err(RequestError::Refused(refusal))
        }
        _ => Err(RequestError::malformed("HMGET", &[reply])),
    }
}

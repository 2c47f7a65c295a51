//! Redisson's fair lock: the lock's hash, a list of those who wait, and when each of them is given up.
//!
//! A place in line is kept by asking again: one who asks is never given up, however long others hold the lock.

use std::time::Duration;

use super::super::call::first;
use super::super::script::script;
use super::super::{
    AcquireReply, Call, GrantDelivery, Keys, Kind, LockValue, QueueStatus, ReleaseReply,
    RenewReply, ServerQueue, WaitStrategy,
};
use super::{NO_TOKEN, Object, holder, holder_at, kept, lock, millis, read_done, time_left};
use crate::backend::{Capabilities, Reply, RequestError};
use crate::info::Holder;
use crate::owner::{Owner, Token};

script!(
    ENTER,
    "redisson/clock_prelude.lua",
    "redisson/fair_prelude.lua",
    "redisson/fair_enqueue.lua"
);
script!(
    RELEASE,
    "redisson/clock_prelude.lua",
    "redisson/fair_prelude.lua",
    "redisson/fair_release.lua"
);
script!(
    FORCE,
    "redisson/clock_prelude.lua",
    "redisson/fair_prelude.lua",
    "redisson/fair_force_unlock.lua"
);

/// The calls of one lock.
#[derive(Debug)]
pub(crate) struct FairLockCalls {
    object: Object,
    line: String,
    timeouts: String,
    channel: String,
    /// How much longer each waits for the one before it.
    wait: Duration,
}

impl FairLockCalls {
    pub(crate) fn new(object: Object, wait: Duration) -> Self {
        Self {
            line: object.prefixed("redisson_lock_queue"),
            timeouts: object.prefixed("redisson_lock_timeout"),
            channel: object.prefixed("redisson_lock__channel"),
            wait,
            object,
        }
    }

    /// Takes it away from whoever holds it; false when nobody does.
    pub(crate) fn force(&self) -> Call<bool> {
        let args = [&b""[..], &millis(self.wait), self.object.publish()];
        Call::script(&FORCE, &self.keys_and_channel(), &args, read_done)
    }

    fn step(&self, mark: &[u8], lease: Duration, step: &'static [u8]) -> Call<QueueStatus> {
        let args = [mark, &millis(self.wait), &millis(lease), step];
        Call::script(&ENTER, &self.own_keys(), &args, read_standing)
    }

    fn own_keys(&self) -> [&[u8]; 3] {
        [self.key(), self.line.as_bytes(), self.timeouts.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 4] {
        let [lock, line, timeouts] = self.own_keys();
        [lock, line, timeouts, self.channel.as_bytes()]
    }
}

impl Kind for FairLockCalls {
    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _since_micros: u64, _note: &str) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, mark: &LockValue, lease: Duration, _look: bool) -> Call<AcquireReply> {
        self.step(mark, lease, b"try")
            .map(|standing| match standing {
                QueueStatus::Holds { token, .. } => AcquireReply::Held { token },
                QueueStatus::Waits { holder, .. } | QueueStatus::Gone { holder } => {
                    AcquireReply::Busy { holder }
                }
            })
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        lock::renew(self.key(), mark, lease)
    }

    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        let args = [
            mark,
            &millis(self.wait),
            &millis(keep.unwrap_or_default()),
            self.object.publish(),
            &kept(mark),
        ];
        Call::script(
            &RELEASE,
            &self.keys_and_channel(),
            &args,
            |replies| match first("a release", replies)?.int() {
                Some(1) => Ok(ReleaseReply::Released { notified: 0 }),
                Some(0 | 2) => Ok(ReleaseReply::NotOwner),
                _ => Err(RequestError::malformed("a release", &[])),
            },
        )
    }

    fn set_hold_count(&self, mark: &[u8], entries: u32) -> Option<Call<RenewReply>> {
        Some(lock::set_hold_count(self.key(), mark, entries))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Queued(self)
    }
}

impl ServerQueue for FairLockCalls {
    fn local_queue_key(&self) -> Option<&[u8]> {
        Some(self.line.as_bytes())
    }

    fn delivery(&self, mark: &[u8]) -> GrantDelivery<'_> {
        let name = format!("{}:{}", self.channel, String::from_utf8_lossy(mark));
        GrantDelivery::Wakeup(self.object.announced(&name).channel())
    }

    /// There are no tickets: one who lost its place has the last.
    fn enter(
        &self,
        mark: &LockValue,
        lease: Duration,
        _place: Duration,
        _ticket: Option<u64>,
    ) -> Call<QueueStatus> {
        self.step(mark, lease, b"enter")
    }

    fn stay(&self, mark: &[u8], lease: Duration, _place: Duration) -> Call<QueueStatus> {
        self.step(mark, lease, b"stay")
    }
}

fn read_standing(replies: Vec<Reply>) -> Result<QueueStatus, RequestError> {
    let reply = first("an owner's standing", replies)?;
    standing(&reply).ok_or_else(|| RequestError::malformed("an owner's standing", &[reply]))
}

/// The answers that `redisson/fair_enqueue.lua` lists; `None` when it is none of them.
fn standing(reply: &Reply) -> Option<QueueStatus> {
    if reply.int() == Some(0) {
        let holder = Holder::default();
        return Some(QueueStatus::Gone { holder });
    }
    match reply.list()? {
        [Reply::Int(1), left] => Some(QueueStatus::Holds {
            token: Token::new(NO_TOKEN),
            left: time_left(left.int()?)?,
        }),
        [Reply::Int(2), ahead, now, left, field] => Some(QueueStatus::Waits {
            ahead: u64::try_from(ahead.int()?).ok()?,
            server_now: u64::try_from(now.int()?).ok()?.saturating_mul(1000),
            ticket: None,
            holder: holder(left, std::slice::from_ref(field)),
        }),
        _ => None,
    }
}

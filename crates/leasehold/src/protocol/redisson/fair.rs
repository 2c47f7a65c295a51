//! Redisson's fair lock: the lock's hash, a list of waiters, and the timeout of
//! each waiter.
//!
//! Every request of a waiter is a heartbeat. A waiter that sends them never
//! times out, however long other owners hold the lock.

use std::time::Duration;

use super::lock;
use super::naming::{Object, released_owner};
use super::shared::{NO_TOKEN, holder, holder_at, millis, read_done};
use crate::backend::{Capabilities, Reply, RequestError};
use crate::info::Holder;
use crate::owner::{Owner, Token};
use crate::protocol::call::{Call, first};
use crate::protocol::kind::{GrantDelivery, Keys, Kind, ServerQueue, WaitStrategy};
use crate::protocol::outcome::{AcquireReply, LockValue, QueueStatus, ReleaseReply, RenewReply};
use crate::protocol::pttl::remaining;
use crate::protocol::record::Description;
use crate::protocol::script::script;

script!(
    ENQUEUE,
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
    FORCE_UNLOCK,
    "redisson/clock_prelude.lua",
    "redisson/fair_prelude.lua",
    "redisson/fair_force_unlock.lua"
);

/// The calls of a fair lock.
#[derive(Debug)]
pub(crate) struct FairLockCalls {
    object: Object,
    queue: String,
    timeouts: String,
    channel: String,
    /// How much longer each waiter may take than the one before it.
    wait: Duration,
}

impl FairLockCalls {
    pub(crate) fn new(object: Object, wait: Duration) -> Self {
        Self {
            queue: object.prefixed("redisson_lock_queue"),
            timeouts: object.prefixed("redisson_lock_timeout"),
            channel: object.prefixed("redisson_lock__channel"),
            wait,
            object,
        }
    }

    /// Revokes the lock from its holder. Returns false if it was free.
    pub(crate) fn force_unlock(&self) -> Call<bool> {
        let args = [&b""[..], &millis(self.wait), self.object.publish()];
        Call::script(&FORCE_UNLOCK, &self.keys_and_channel(), &args, read_done)
    }

    fn step(&self, value: &[u8], lease: Duration, step: &'static [u8]) -> Call<QueueStatus> {
        let args = [value, &millis(self.wait), &millis(lease), step];
        Call::script(&ENQUEUE, &self.own_keys(), &args, |replies| {
            let reply = first("an owner's status", replies)?;
            read_status(&reply)
                .ok_or_else(|| RequestError::malformed("an owner's status", &[reply]))
        })
    }

    fn own_keys(&self) -> [&[u8]; 3] {
        [self.key(), self.queue.as_bytes(), self.timeouts.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 4] {
        let [lock, queue, timeouts] = self.own_keys();
        [lock, queue, timeouts, self.channel.as_bytes()]
    }
}

impl Kind for FairLockCalls {
    fn label(&self) -> &'static str {
        "redisson_fair_lock"
    }

    fn keys(&self) -> &dyn Keys {
        &self.object
    }

    fn value(&self, owner: &Owner, _description: Description<'_>) -> LockValue {
        self.object.owner(owner).into_bytes().into()
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        self.step(value, lease, b"try").map(|status| match status {
            QueueStatus::Holds { token, .. } => AcquireReply::Held { token },
            QueueStatus::Waits { holder, .. } | QueueStatus::Gone { holder } => {
                AcquireReply::Busy { holder }
            }
        })
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        lock::renew(&[self.key()], value, lease)
    }

    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        let args = [
            value,
            &millis(self.wait),
            &millis(hold_for.unwrap_or_default()),
            self.object.publish(),
            &released_owner(value),
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

    fn holder(&self) -> Call<Option<Holder>> {
        holder_at(self.key())
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Queued(self)
    }

    fn set_hold_count(&self, value: &[u8], holds: u32) -> Option<Call<RenewReply>> {
        Some(lock::set_hold_count(&[self.key()], value, holds))
    }
}

impl ServerQueue for FairLockCalls {
    fn local_queue_key(&self) -> Option<&[u8]> {
        Some(self.queue.as_bytes())
    }

    fn delivery(&self, value: &[u8]) -> GrantDelivery<'_> {
        let name = format!("{}:{}", self.channel, String::from_utf8_lossy(value));
        GrantDelivery::Wakeup(self.object.channel_name(&name).channel())
    }

    /// Enters at the end: Redisson has no tickets, so a lost entry is not
    /// restored.
    fn enqueue(
        &self,
        value: &LockValue,
        lease: Duration,
        _queue_ttl: Duration,
        _ticket: Option<u64>,
    ) -> Call<QueueStatus> {
        self.step(value, lease, b"enter")
    }

    fn heartbeat(&self, value: &[u8], lease: Duration, _queue_ttl: Duration) -> Call<QueueStatus> {
        self.step(value, lease, b"stay")
    }
}

/// Reads a reply listed in `redisson/fair_enqueue.lua`; `None` if malformed.
fn read_status(reply: &Reply) -> Option<QueueStatus> {
    if reply.int() == Some(0) {
        let holder = Holder::default();
        return Some(QueueStatus::Gone { holder });
    }
    match reply.list()? {
        [Reply::Int(1), pttl] => Some(QueueStatus::Holds {
            token: Token::new(NO_TOKEN),
            remaining: remaining(pttl.int()?)?,
        }),
        [Reply::Int(2), ahead, now, pttl, field] => Some(QueueStatus::Waits {
            ahead: u64::try_from(ahead.int()?).ok()?,
            server_now: u64::try_from(now.int()?).ok()?.saturating_mul(1000),
            ticket: None,
            holder: holder(pttl, std::slice::from_ref(field)),
        }),
        _ => None,
    }
}

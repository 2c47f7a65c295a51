//! Redisson's fair lock: the lock's hash, a list of waiters, and the timeout of
//! each waiter.
//!
//! Every request of a waiter is a heartbeat. A waiter that sends them never
//! times out, however long other owners hold the lock.

use std::time::Duration;

use super::lock::LockCalls;
use super::naming::{Object, released_owner};
use super::shared::{NO_TOKEN, holder};
use crate::backend::{Capabilities, Reply};
use crate::info::Holder;
use crate::owner::{Owner, Token};
use crate::protocol::Description;
use crate::protocol::call::{Call, read, read_done};
use crate::protocol::keys::LockName;
use crate::protocol::kind::{GrantDelivery, Kind, ServerQueue, WaitStrategy};
use crate::protocol::outcome::{AcquireReply, LockValue, QueueStatus, ReleaseReply, RenewReply};
use crate::protocol::pttl::remaining;
use crate::protocol::script::{millis, script};

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
    /// The steps that do not concern the queue.
    lock: LockCalls,
    queue: String,
    timeouts: String,
    /// How much longer each waiter may take than the one before it.
    wait: Duration,
}

impl FairLockCalls {
    pub(crate) fn new(object: Object, wait: Duration) -> Self {
        Self {
            queue: object.prefixed("redisson_lock_queue"),
            timeouts: object.prefixed("redisson_lock_timeout"),
            wait,
            lock: LockCalls::plain(object),
        }
    }

    /// Revokes the lock from the holder. Returns false if it was free.
    pub(crate) fn force_unlock(&self) -> Call<bool> {
        // The prelude expects an owner first, and a revocation has none.
        let args = [&b""[..], &millis(self.wait), self.lock.object.publish()];
        Call::script(&FORCE_UNLOCK, &self.keys_and_channel(), &args, read_done)
    }

    fn step(&self, value: &[u8], lease: Duration, step: &'static [u8]) -> Call<QueueStatus> {
        // One script for all steps: each has to drop expired waiters first, and
        // then looks at its own place.
        let args = [value, &millis(self.wait), &millis(lease), step];
        let read_status = read("an owner's status", read_status);
        Call::script(&ENQUEUE, &self.own_keys(), &args, read_status)
    }

    fn own_keys(&self) -> [&[u8]; 3] {
        [self.key(), self.queue.as_bytes(), self.timeouts.as_bytes()]
    }

    fn keys_and_channel(&self) -> [&[u8]; 4] {
        let [lock, queue, timeouts] = self.own_keys();
        [lock, queue, timeouts, self.lock.channel.as_bytes()]
    }
}

impl Kind for FairLockCalls {
    fn label(&self) -> &'static str {
        "redisson_fair_lock"
    }

    fn lock(&self) -> &LockName {
        self.lock.lock()
    }

    fn value(&self, owner: &Owner, description: Description<'_>) -> LockValue {
        self.lock.value(owner, description)
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        // A busy attempt is not cancelled, so it must leave no queue entry:
        // that would block waiters for the whole wait timeout.
        let step = self.step(value, lease, b"try");
        step.map(QueueStatus::into_acquire_reply)
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        self.lock.renew(value, lease)
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
            self.lock.object.publish(),
            &released_owner(value),
        ];
        let release = |reply: &Reply| match reply.int()? {
            1 => Some(ReleaseReply::Released { notified: 0 }),
            // 2: the owner only waited.
            0 | 2 => Some(ReleaseReply::NotOwner),
            _ => None,
        };
        let keys = self.keys_and_channel();
        Call::script(&RELEASE, &keys, &args, read("a release", release))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        self.lock.holder()
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Queued(self)
    }

    fn set_hold_count(&self, value: &[u8], holds: u32) -> Option<Call<RenewReply>> {
        self.lock.set_hold_count(value, holds)
    }
}

impl ServerQueue for FairLockCalls {
    fn local_queue_key(&self) -> Option<&[u8]> {
        // Not the name of the channel: plain locks of that name wait for
        // wake-ups, and need a waiting task of their own.
        Some(self.queue.as_bytes())
    }

    fn delivery(&self, value: &[u8]) -> GrantDelivery<'_> {
        // Redisson has a channel for each waiter, which ends with the owner.
        let name = format!("{}:{}", self.lock.channel, String::from_utf8_lossy(value));
        GrantDelivery::Wakeup(self.lock.object.channel_name(&name).channel())
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
        // Without `queue_ttl`: a Java client that acquires the lock lowers all
        // scores by Redisson's wait timeout, and a shorter one would be
        // evicted.
        self.step(value, lease, b"enter")
    }

    fn heartbeat(&self, value: &[u8], lease: Duration, _queue_ttl: Duration) -> Call<QueueStatus> {
        // A late heartbeat must neither enter nor acquire for an owner that has
        // left the queue.
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

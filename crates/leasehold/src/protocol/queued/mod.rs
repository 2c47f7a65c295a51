//! Locks with a queue: several holders with a lease each, and waiters that the
//! server grants the lock in FIFO order.
//!
//! One algorithm serves all kinds. A lock has a capacity, an owner takes a
//! weight of it, and a release grants the lock to the head of the queue while
//! it fits. Each step is one script. A lock without waiters has a cheaper form,
//! [alone].

mod alone;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::{Batch, Capabilities, Reply, RequestError};
use crate::info::Holder;
use crate::owner::{Owner, Token};
use crate::protocol::call::{Call, first, read};
use crate::protocol::keys::{LockName, QueueKeys};
use crate::protocol::kind::{GrantDelivery, HandOver, Kind, ServerQueue, WaitStrategy};
use crate::protocol::outcome::{
    AcquireReply, AdoptReply, HandOverReply, LockValue, QueueStatus, ReleaseReply, RenewReply,
};
use crate::protocol::queue_reply::{QueueStats, read_stats, read_status};
use crate::protocol::record::{self, Description, Part};
use crate::protocol::script::{digits, script};
use crate::protocol::token::{self, TokenBlock};
use crate::ticket::TicketKind;

script!(ENQUEUE, "queue/prelude.lua", "queue/enqueue.lua");
script!(RENEW, "queue/prelude.lua", "queue/renew.lua");
script!(RELEASE, "queue/prelude.lua", "queue/release.lua");
script!(DOWNGRADE, "queue/prelude.lua", "queue/downgrade.lua");
script!(CAPACITY, "queue/prelude.lua", "queue/capacity.lua");
script!(HAND_OVER, "queue/prelude.lua", "queue/hand_over.lua");
script!(ADOPT, "queue/prelude.lua", "queue/adopt.lua");
script!(STATS, "queue/prelude.lua", "queue/stats.lua");
script!(
    RESERVE_TOKENS,
    "queue/prelude.lua",
    "queue/reserve_tokens.lua"
);

/// How long the server keeps a capacity that was set after the lock was last
/// used.
const CAPACITY_TTL: Duration = Duration::from_secs(30 * 86_400);

/// The calls of a lock with a queue, for owners with the same parameters.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    lock: Arc<QueueLock>,
    params: QueueParams,
}

/// The part of a queue that all holders and waiters of one lock share.
#[derive(Debug)]
struct QueueLock {
    keys: QueueKeys,
    /// The kind and the key: tasks that share a waiter must want the same kind
    /// of lock.
    local_queue_key: Vec<u8>,
    /// Whether the last reply showed a queue. Only a guess at which step to try
    /// first.
    has_queue: AtomicBool,
}

/// A lock's kind, and how much of it an owner takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueParams {
    /// The same for all clients of the lock; the server refuses others.
    pub(crate) kind: &'static str,
    pub(crate) capacity: u64,
    pub(crate) weight: u64,
    /// Whether each task has its own queue entry, because tasks of one client
    /// can hold the lock together.
    pub(crate) shared: bool,
    /// Whether tasks of one client may hand the lock off locally.
    pub(crate) local_handoff: bool,
    /// Whether a process may hand the lock over to another. The lock must have
    /// one holder at most.
    pub(crate) hand_over: bool,
}

impl QueueParams {
    /// The kind of a read-write lock, which alone has readers.
    pub(crate) const RW: &'static str = "rw";
    /// Parameters for a client that only releases.
    pub(crate) const RELEASE_ONLY: Self = Self {
        kind: "",
        capacity: 0,
        weight: 0,
        shared: false,
        local_handoff: false,
        hand_over: false,
    };
    /// The parameters of a fair mutex.
    pub(crate) const FAIR: Self = Self {
        kind: "fair",
        capacity: 1,
        weight: 1,
        shared: false,
        local_handoff: true,
        hand_over: true,
    };
}

impl Queued {
    pub(crate) fn new(keys: QueueKeys, params: QueueParams) -> Self {
        let local_queue_key = [params.kind.as_bytes(), b" ", keys.lock().as_bytes()].concat();
        Self {
            lock: Arc::new(QueueLock {
                keys,
                local_queue_key,
                has_queue: AtomicBool::new(false),
            }),
            params,
        }
    }

    /// Returns the same lock for an owner that takes `weight`.
    pub(crate) fn with_weight(&self, weight: u64) -> Self {
        let mut other = self.clone();
        other.params.weight = weight;
        other
    }

    /// Returns the capacity that applies unless one was set.
    pub(crate) fn capacity(&self) -> u64 {
        self.params.capacity
    }

    /// Sets the capacity, which overrides the one in owners' values.
    pub(crate) fn set_capacity(&self, capacity: u64) -> Call<()> {
        let args = [
            self.params.kind.as_bytes(),
            &digits(capacity),
            &micros(CAPACITY_TTL),
        ];
        Call::script(&CAPACITY, &self.keys().all(), &args, |replies| {
            first("a capacity", replies).map(drop)
        })
    }

    /// Reads the lock's usage.
    pub(crate) fn stats(&self) -> Call<QueueStats> {
        Call::new(stats_command(self.keys()), read("queue stats", read_stats))
    }

    /// Extends a lease or a heartbeat to at least `length` from now.
    fn extend(&self, value: &[u8], length: Duration) -> Call<QueueStatus> {
        // The owner is enough: a queue's entries are found by it.
        let args = [record::owner(value), &micros(length)];
        Call::script(&RENEW, &self.keys().all(), &args, self.status_reader())
    }

    /// Acquires the lock by script, without waiting.
    fn try_enqueue(&self, value: &LockValue, lease: Duration) -> Call<AcquireReply> {
        // A wait of zero does not enter the queue.
        let enqueue = self.enqueue(value, lease, Duration::ZERO, None);
        enqueue.map(QueueStatus::into_acquire_reply)
    }

    /// Releases the lock or leaves the queue, by script.
    fn remove(&self, value: &[u8], hold_for: Duration) -> Call<ReleaseReply> {
        let args = [record::owner(value), &micros(hold_for)];
        // An owner that only waited did not hold the lock.
        let release = Call::script(
            &RELEASE,
            &self.keys().all(),
            &args,
            read("a release", state_in),
        );
        release.map(|state| match state {
            1 => ReleaseReply::Released { notified: 0 },
            _ => ReleaseReply::NotOwner,
        })
    }

    fn keys(&self) -> &QueueKeys {
        &self.lock.keys
    }

    fn has_queue(&self) -> bool {
        self.lock.has_queue.load(Ordering::Relaxed)
    }

    /// Returns a function that reads an owner's status, and records whether
    /// the lock has a queue.
    fn status_reader(
        &self,
    ) -> impl FnOnce(Vec<Reply>) -> Result<QueueStatus, RequestError> + Send + 'static {
        let lock = self.lock.clone();
        move |replies| {
            let reply = first("an owner's status", replies)?;
            let is_alone = reply.list().and_then(|parts| parts.get(4)) == Some(&Reply::Int(1));
            // Relaxed: other tasks may use the old guess for a while.
            lock.has_queue.store(!is_alone, Ordering::Relaxed);
            match read_status(&reply) {
                Some(status) => status,
                None => Err(RequestError::malformed("an owner's status", &[reply])),
            }
        }
    }

    /// Returns the channel of this client's grants, for all its locks.
    fn grants(&self) -> &[u8] {
        self.keys().grants().as_bytes()
    }
}

impl Kind for Queued {
    fn label(&self) -> &'static str {
        match self.params.kind {
            "fair" => "fair_mutex",
            QueueParams::RW => "rw_lock",
            kind => kind,
        }
    }

    fn lock(&self) -> &LockName {
        self.keys().name()
    }

    fn variant(&self) -> [u64; 2] {
        [self.params.capacity, self.params.weight]
    }

    fn value(&self, owner: &Owner, description: Description<'_>) -> LockValue {
        let QueueParams {
            kind,
            capacity,
            weight,
            ..
        } = self.params;
        let part = Part {
            kind,
            capacity,
            weight,
        };
        record::write_part(part, owner, description)
    }

    /// Acquires the lock if no owner waits and it fits.
    fn acquire(&self, value: &LockValue, lease: Duration, want_ttl: bool) -> Call<AcquireReply> {
        // The script reports the capacity to a caller that asks for more.
        // A guess that is wrong costs one more request, and changes nothing.
        match self.has_queue() || self.params.weight > self.params.capacity {
            true => self.try_enqueue(value, lease),
            false => self.acquire_alone(value, lease, want_ttl),
        }
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        match self.has_queue() {
            true => self.extend(value, lease).map(|status| renewed(&status)),
            false => self.renew_alone(value, lease),
        }
    }

    /// Releases the lock or leaves the queue.
    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        server: Capabilities,
    ) -> Call<ReleaseReply> {
        match hold_for.is_some() || self.has_queue() {
            true => self.remove(value, hold_for.unwrap_or_default()),
            false => self.release_alone(value, server),
        }
    }

    /// Runs the script, which covers owners that hold and owners that wait.
    fn cancel(&self, value: &[u8], _server: Capabilities) -> Call<ReleaseReply> {
        self.remove(value, Duration::ZERO)
    }

    fn holder(&self) -> Call<Option<Holder>> {
        self.stats().map(|stats| stats.holder)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Queued(self)
    }

    fn raise_token(&self, floor: u64) -> Option<Call<Token>> {
        Some(token::raise(self.keys().counter(), floor))
    }

    fn downgrade(&self, value: &[u8]) -> Option<Call<RenewReply>> {
        if self.params.kind != QueueParams::RW {
            return None;
        }
        let args = [record::owner(value), &digits(1)];
        let downgrade = Call::script(&DOWNGRADE, &self.keys().all(), &args, self.status_reader());
        Some(downgrade.map(|status| renewed(&status)))
    }

    fn handoff_holder(&self, value: &[u8]) -> Option<Holder> {
        self.params.local_handoff.then(|| record::read(value))
    }

    fn reserve_tokens(
        &self,
        value: &[u8],
        count: u64,
        own: Token,
    ) -> Option<Call<Option<TokenBlock>>> {
        let args = [record::owner(value), &digits(count), &digits(own.as_u64())];
        let reserve = || {
            Call::script(
                &RESERVE_TOKENS,
                &self.keys().all(),
                &args,
                token::read_block,
            )
        };
        self.params.local_handoff.then(reserve)
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        self.params.hand_over.then_some(self)
    }
}

impl HandOver for Queued {
    fn ticket_kind(&self) -> TicketKind {
        TicketKind::FairMutex
    }

    fn pending_value(&self, value: &[u8], owner: &Owner, _token: Token) -> LockValue {
        record::replace_owner(value, owner).into()
    }

    fn hand_over(
        &self,
        value: &[u8],
        pending: &[u8],
        token: Token,
        within: Duration,
    ) -> Call<HandOverReply> {
        let (token, within) = (digits(token.as_u64()), micros(within));
        let args = [record::owner(value), pending, &token, &within];
        let read_state = read("a hand-over", state_in);
        Call::script(&HAND_OVER, &self.keys().all(), &args, read_state).map(|state| match state {
            1 => HandOverReply::HandedOver,
            _ => HandOverReply::NotOwner,
        })
    }

    fn adopt(&self, pending: &Owner, value: &LockValue, lease: Duration) -> Call<AdoptReply> {
        let (pending, lease) = (pending.to_string(), micros(lease));
        let args = [pending.as_bytes(), value, self.grants(), &lease];
        // Our own status, whichever request adopted the lock: so a repeated
        // adoption succeeds.
        let adopt = Call::script(&ADOPT, &self.keys().all(), &args, self.status_reader());
        adopt.map(|status| match status {
            QueueStatus::Holds { token, .. } => AdoptReply::Adopted { token },
            QueueStatus::Waits { .. } | QueueStatus::Gone { .. } => AdoptReply::Spent,
        })
    }
}

impl ServerQueue for Queued {
    fn local_queue_key(&self) -> Option<&[u8]> {
        (!self.params.shared).then_some(&*self.lock.local_queue_key)
    }

    fn delivery(&self, _value: &[u8]) -> GrantDelivery<'_> {
        GrantDelivery::Push(self.grants())
    }

    fn enqueue(
        &self,
        value: &LockValue,
        lease: Duration,
        queue_ttl: Duration,
        ticket: Option<u64>,
    ) -> Call<QueueStatus> {
        let (lease, queue_ttl) = (micros(lease), micros(queue_ttl));
        let ticket = digits(ticket.unwrap_or_default());
        let args = [value, self.grants(), &lease, &queue_ttl, &ticket];
        Call::script(&ENQUEUE, &self.keys().all(), &args, self.status_reader())
    }

    fn heartbeat(&self, value: &[u8], _lease: Duration, queue_ttl: Duration) -> Call<QueueStatus> {
        self.extend(value, queue_ttl)
    }
}

fn renewed(status: &QueueStatus) -> RenewReply {
    match status {
        QueueStatus::Holds { .. } => RenewReply::Renewed,
        QueueStatus::Waits { .. } | QueueStatus::Gone { .. } => RenewReply::NotOwner,
    }
}

/// Returns the state in a reply of a state and the server's clock.
fn state_in(reply: &Reply) -> Option<i64> {
    reply.list()?.first()?.int()
}

/// Returns the command that reads a lock's usage.
pub(super) fn stats_command(keys: &QueueKeys) -> Batch {
    STATS.call(&keys.all(), &[])
}

/// Returns whole microseconds, rounded up: the server never shortens a
/// duration.
fn micros(duration: Duration) -> Vec<u8> {
    duration.as_nanos().div_ceil(1000).to_string().into_bytes()
}

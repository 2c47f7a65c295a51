//! The trait of all kinds of locks: the calls of a lock's life, and how waiters
//! wait.

use std::time::Duration;

use super::call::Call;
use super::keys::LockName;
use super::outcome::{
    AcquireReply, AdoptReply, HandOverReply, LockStatus, LockValue, QueueStatus, ReleaseReply,
    RenewReply,
};
use super::record::Description;
use super::token::TokenBlock;
use crate::backend::{Capabilities, Channel, Slot};
use crate::info::Holder;
use crate::owner::{Owner, Token};
use crate::ticket::TicketKind;

/// One lock, as the lease layer sees it.
pub(crate) trait Kind: Send + Sync + 'static {
    /// Returns the name and the key of the lock.
    fn lock(&self) -> &LockName;
    /// Returns the lock's name, for people.
    fn name(&self) -> &str {
        self.lock().name()
    }
    /// Returns the lock's own key, which identifies it on the server.
    fn key(&self) -> &[u8] {
        self.lock().key().as_bytes()
    }
    /// Returns the slot to which requests are routed.
    fn slot(&self) -> Slot {
        self.lock().slot()
    }
    /// Returns the kind in one word, for metrics; see
    /// [`LockKind::label`](crate::LockKind::label).
    fn label(&self) -> &'static str;
    /// Returns what else distinguishes acquires of this lock that do not result
    /// in the same hold: numbers of permits, or reading and writing.
    fn variant(&self) -> [u64; 2] {
        [0, 0]
    }
    /// Returns the value that the server stores for `owner`.
    fn value(&self, owner: &Owner, description: Description<'_>) -> LockValue;
    /// Acquires the lock if it is free. With `want_ttl`, a busy reply includes
    /// the remaining lease.
    fn acquire(&self, value: &LockValue, lease: Duration, want_ttl: bool) -> Call<AcquireReply>;
    /// Extends the lease to at least `lease` from now. Always writes, so that
    /// replicas can acknowledge it.
    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply>;
    /// Releases the lock, at once or after `hold_for`.
    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        server: Capabilities,
    ) -> Call<ReleaseReply>;
    /// Returns how long after the first attempt a client can repeat a release,
    /// or `None` if a repetition never releases twice.
    fn repeat_release_within(&self) -> Option<Duration> {
        None
    }
    /// Cancels an acquire that may have been executed, or still may be.
    fn cancel(&self, value: &[u8], server: Capabilities) -> Call<ReleaseReply> {
        self.release(value, None, server)
    }
    /// Reads one of the holders.
    fn holder(&self) -> Call<Option<Holder>>;
    /// Returns how waiters wait for the lock.
    fn wait_strategy(&self) -> WaitStrategy<'_>;

    // What only some kinds can do. The others keep the default, `None`.

    /// Writes the hold count, if `value` owns the lock and other clients see
    /// how often it does.
    fn set_hold_count(&self, _value: &[u8], _holds: u32) -> Option<Call<RenewReply>> {
        None
    }
    /// Takes a token that is below neither the server's clock nor `floor`, if
    /// tokens come from a counter that can fall behind the clock.
    fn raise_token(&self, _floor: u64) -> Option<Call<Token>> {
        None
    }
    /// Makes all later tokens of this lock larger than `token`, which another
    /// server issued, while its owner holds the lock. Redisson's locks have
    /// counters of their own, and no call.
    fn record_token(&self, _value: &[u8], token: Token) -> Option<Call<()>> {
        // Takes a token too, which is skipped: only a larger one is of use.
        Some(self.raise_token(token.as_u64())?.map(drop))
    }
    /// Makes the writer a reader for the rest of the lease.
    fn downgrade(&self, _value: &[u8]) -> Option<Call<RenewReply>> {
        None
    }
    /// Writes a quorum's lock to the nodes that miss it, for `remaining`.
    fn repair(&self, _value: &[u8], _remaining: Duration, _token: Token) -> Option<Call<()>> {
        None
    }
    /// Returns the holder as other clients see it, if tasks of one client may
    /// hand the lock off without a round trip.
    fn handoff_holder(&self, _value: &[u8]) -> Option<Holder> {
        None
    }
    /// Reserves up to `count` tokens above `own` for such hand-offs. The reply
    /// is `None` if `value` no longer owns the lock, or the server's clock
    /// allows none.
    fn reserve_tokens(
        &self,
        _value: &[u8],
        _count: u64,
        _own: Token,
    ) -> Option<Call<Option<TokenBlock>>> {
        None
    }
    /// Returns the calls that hand the lock over to another process.
    fn hand_over(&self) -> Option<&dyn HandOver> {
        None
    }
}

/// A lock that a process can hand over to another.
pub(crate) trait HandOver: Send + Sync {
    /// Returns the kind that a ticket names.
    fn ticket_kind(&self) -> TicketKind;
    /// Returns the value that the server stores until `owner`, which the ticket
    /// names, is replaced. `value` and `token` are the holder's.
    fn pending_value(&self, value: &[u8], owner: &Owner, token: Token) -> LockValue;
    /// Replaces the holder's value by the pending one, which expires after
    /// `within`. The caller can repeat it.
    fn hand_over(
        &self,
        value: &[u8],
        pending: &[u8],
        token: Token,
        within: Duration,
    ) -> Call<HandOverReply>;
    /// Replaces the pending owner by that of `value`, with a larger token than
    /// that of the giver.
    fn adopt(&self, pending: &Owner, value: &LockValue, lease: Duration) -> Call<AdoptReply>;
}

/// The two ways to wait for a lock.
pub(crate) enum WaitStrategy<'a> {
    /// Waiters are woken, and the first to retry acquires the lock.
    Notified(&'a dyn Notified),
    /// The server grants the lock to waiters in FIFO order.
    Queued(&'a dyn ServerQueue),
}

impl<'a> WaitStrategy<'a> {
    /// Returns the key of the local queue in which tasks of this client wait.
    pub(crate) fn local_queue_key(&self) -> Option<&'a [u8]> {
        match self {
            Self::Notified(notified) => Some(notified.local_queue_key()),
            Self::Queued(queue) => queue.local_queue_key(),
        }
    }
}

/// A lock or latch whose waiters rely on wake-ups, and poll as a fallback.
pub(crate) trait Notified: Send + Sync {
    /// Returns the channel for wake-ups.
    fn channel_name(&self) -> ChannelName<'_>;
    /// Returns the key of the local queue: its tasks form a single waiter.
    fn local_queue_key(&self) -> &[u8] {
        self.channel_name().name
    }
    /// Reads whether it is free.
    fn poll(&self) -> Call<LockStatus>;
}

/// The name of a channel.
#[derive(Clone, Copy)]
pub(crate) struct ChannelName<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) sharded: bool,
}

impl<'a> ChannelName<'a> {
    /// Names a sharded channel, the form that this library uses.
    pub(crate) fn sharded(name: &'a str) -> Self {
        Self {
            name: name.as_bytes(),
            sharded: true,
        }
    }

    pub(crate) fn channel(self) -> Channel {
        let name = self.name.to_vec();
        match self.sharded {
            true => Channel::Sharded(name),
            false => Channel::Classic(name),
        }
    }
}

/// A lock whose waiters queue on the server.
pub(crate) trait ServerQueue: Send + Sync {
    /// Returns the key of the local queue, whose tasks form a single waiter.
    /// `None` if each task has its own queue entry.
    fn local_queue_key(&self) -> Option<&[u8]>;
    /// Returns how grants reach a waiter.
    fn delivery(&self, value: &[u8]) -> GrantDelivery<'_>;
    /// Acquires the lock or enters the queue. The queue entry expires after
    /// `queue_ttl` without a heartbeat. A `ticket` restores a lost entry.
    fn enqueue(
        &self,
        value: &LockValue,
        lease: Duration,
        queue_ttl: Duration,
        ticket: Option<u64>,
    ) -> Call<QueueStatus>;
    /// Extends the queue entry, and returns the owner's status.
    fn heartbeat(&self, value: &[u8], lease: Duration, queue_ttl: Duration) -> Call<QueueStatus>;
}

/// The two ways in which a grant reaches a waiter.
pub(crate) enum GrantDelivery<'a> {
    /// The server grants the lock, and publishes the grant on this channel,
    /// which all waiters of the client share.
    Push(&'a [u8]),
    /// The server wakes the waiter on a channel of its own. The waiter then
    /// acquires the lock.
    #[cfg_attr(not(feature = "redisson"), expect(dead_code))]
    Wakeup(Channel),
}

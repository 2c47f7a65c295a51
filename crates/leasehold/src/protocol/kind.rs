//! What tells one kind of lock from another: the calls of its life, and how it is waited for.

use std::time::Duration;

use super::{
    AcquireReply, Call, LockStatus, LockValue, QueueStatus, ReleaseReply, RenewReply, TokenBlock,
};
use crate::backend::{Capabilities, Channel, Slot};
use crate::info::Holder;
use crate::owner::{Owner, Token};

/// What a lock is called, by people and by the server.
pub(crate) trait Keys: Send + Sync {
    fn name(&self) -> &str;
    fn key(&self) -> &[u8];
    fn slot(&self) -> Slot;
}

/// One lock, as the lease layer sees it.
pub(crate) trait Kind: Send + Sync + 'static {
    /// What it is called.
    fn keys(&self) -> &dyn Keys;
    /// The lock's name, for people.
    fn name(&self) -> &str {
        self.keys().name()
    }
    /// Its own key on the server: what tells it from all other locks.
    fn key(&self) -> &[u8] {
        self.keys().key()
    }
    /// Where its requests are routed.
    fn slot(&self) -> Slot {
        self.keys().slot()
    }
    /// What stands on the server in the name of `owner`.
    fn value(&self, owner: &Owner, since_micros: u64, note: &str) -> LockValue;
    /// Takes the lock if it can; with `look`, a busy answer says how long it stays so.
    fn acquire(&self, mark: &LockValue, lease: Duration, look: bool) -> Call<AcquireReply>;
    /// Makes the lease last at least `lease` from now. Always writes, so that replicas can acknowledge it.
    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply>;
    /// Gives the lock back, at once or when `keep` is over.
    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        server: Capabilities,
    ) -> Call<ReleaseReply>;
    /// Makes sure that an acquire which may have been executed, or may still be, comes to nothing.
    fn cancel(&self, mark: &[u8], server: Capabilities) -> Call<ReleaseReply> {
        self.release(mark, None, server)
    }
    /// Shows others how often it has been entered; `None` where that is nobody's business.
    fn set_hold_count(&self, _mark: &[u8], _entries: u32) -> Option<Call<RenewReply>> {
        None
    }
    /// Takes a token that is below neither the server's clock nor `floor`; `None` where no token is given
    /// out that was below the clock.
    fn raise_token(&self, _floor: u64) -> Option<Call<Token>> {
        None
    }
    /// Keeps what is held, but shares it from now on; `None` where that makes no sense.
    fn downgrade(&self, _mark: &[u8]) -> Option<Call<RenewReply>> {
        None
    }
    /// Puts what is held where it is missing, for as long as it is held still; `None` where it is in one
    /// place.
    fn repair(&self, _mark: &[u8], _left: Duration, _token: Token) -> Option<Call<()>> {
        None
    }
    /// How tasks of one process leave it to each other; `None` where they cannot.
    fn local_handoff(&self) -> Option<&dyn LocalHandoff> {
        None
    }
    /// Asks who holds it.
    fn holder(&self) -> Call<Option<Holder>>;
    /// How it is waited for.
    fn wait_strategy(&self) -> WaitStrategy<'_>;
}

/// What tasks of one process can leave to each other without asking the server.
pub(crate) trait LocalHandoff: Send + Sync {
    /// Takes up to `count` more tokens above `own` while it is ours, for those it is left to; `None` when it is not ours
    /// any more, or when the server's clock allows none.
    fn reserve_tokens(&self, mark: &[u8], count: u64, own: Token) -> Call<Option<TokenBlock>>;
    /// Who holds it, as others see it.
    fn holder_info(&self, mark: &[u8]) -> Holder;
}

/// The two ways of waiting.
pub(crate) enum WaitStrategy<'a> {
    /// Whoever tries first after a release has the lock.
    Notified(&'a dyn Notified),
    /// The server gives it to those who wait, in the order in which they came.
    Queued(&'a dyn ServerQueue),
}

impl<'a> WaitStrategy<'a> {
    /// Where the tasks of this process that want this lock stand behind each other.
    pub(crate) fn local_queue_key(&self) -> Option<&'a [u8]> {
        match self {
            Self::Notified(hints) => Some(hints.local_queue_key()),
            Self::Queued(line) => line.local_queue_key(),
        }
    }
}

/// What is waited for by hints: messages, and looks behind them.
pub(crate) trait Notified: Send + Sync {
    /// Where it is announced that trying may be worth it.
    fn channel_name(&self) -> ChannelName<'_>;
    /// Where tasks of this process stand behind each other, as one waiter.
    fn local_queue_key(&self) -> &[u8] {
        self.channel_name().name
    }
    /// Looks whether it is.
    fn glance(&self) -> Call<LockStatus>;
}

/// A channel by its name.
#[derive(Clone, Copy)]
pub(crate) struct ChannelName<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) sharded: bool,
}

impl<'a> ChannelName<'a> {
    /// In a sharded channel, as this library does.
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

/// What is waited for in a line on the server.
pub(crate) trait ServerQueue: Send + Sync {
    /// Where tasks of this process stand behind each other, as one waiter; `None` where each has a
    /// place of its own.
    fn local_queue_key(&self) -> Option<&[u8]>;
    /// How those who wait are told.
    fn delivery(&self, mark: &[u8]) -> GrantDelivery<'_>;
    /// Takes the lock, or a place in line that is kept for `place` at a time; the place that `ticket`
    /// participant for, where there is one.
    fn enter(
        &self,
        mark: &LockValue,
        lease: Duration,
        place: Duration,
        ticket: Option<u64>,
    ) -> Call<QueueStatus>;
    /// Keeps the place, and says how it stands.
    fn stay(&self, mark: &[u8], lease: Duration, place: Duration) -> Call<QueueStatus>;
}

/// The two ways in which one who waits in line is told that its turn has come.
pub(crate) enum GrantDelivery<'a> {
    /// The lock is given to it, and grants to all of this client are announced here.
    Push(&'a [u8]),
    /// It is called by name, on a channel of its own, and then asks for the lock.
    Wakeup(Channel),
}

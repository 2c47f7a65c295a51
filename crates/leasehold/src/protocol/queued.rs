//! The queued family: holders with a lease each, and a queue of waiters that are granted the lock in turn.
//!
//! One algorithm for all its kinds: a lock has a capacity, an owner takes a weight of it, and a release grants
//! the lock to the head of the queue as long as that fits. Each step is one script.
//!
//! While one owner holds the lock and none waits, it is one plain string as a [mutex](super::single_key) is, and is
//! acquired, renewed and released by the mutex's commands. A second owner makes a queue of it by a script. A client
//! that finds a queue where it expected the string asks by script, and does so until it finds the string again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::call::{Step, first};
use super::keys::QueueKeys;
use super::record::{Form, Part};
use super::script::{digits, script};
use super::single_key::{self, Found, Taken};
use super::{
    AcquireReply, Call, Grant, GrantDelivery, Keys, Kind, LocalHandoff, LockValue, QueueStatus,
    ReleaseReply, RenewReply, ServerQueue, TokenBlock, WaitStrategy, record, token,
};
use crate::backend::{Capabilities, Reply, RequestError, ServerError, ServerErrorKind};
use crate::info::Holder;
use crate::owner::{Owner, Token};

script!(
    ENTER,
    "queue/prelude_state.lua",
    "queue/prelude_steps.lua",
    "queue/enqueue.lua"
);
script!(
    RENEW,
    "queue/prelude_state.lua",
    "queue/prelude_steps.lua",
    "queue/renew.lua"
);
script!(
    RELEASE,
    "queue/prelude_state.lua",
    "queue/prelude_steps.lua",
    "queue/release.lua"
);
script!(
    SHRINK,
    "queue/prelude_state.lua",
    "queue/prelude_steps.lua",
    "queue/downgrade.lua"
);
script!(
    CAPACITY,
    "queue/prelude_state.lua",
    "queue/prelude_steps.lua",
    "queue/capacity.lua"
);
script!(LOOK, "queue/prelude_state.lua", "queue/stats.lua");
script!(
    TOKENS,
    "queue/prelude_state.lua",
    "queue/reserve_tokens.lua"
);
script!(DROP, "queue/compare_and_delete.lua");

/// How long a capacity that was set is remembered after the lock was last used.
const KEPT: Duration = Duration::from_secs(30 * 86_400);

/// The calls of one lock of this family, for those who take the same share of it.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    keys: Arc<QueueKeys>,
    share: QueueParams,
    /// The kind and the key: what tasks of one process wait for together must be the same kind of lock.
    gate: Arc<[u8]>,
    /// Whether the lock had a queue when it was last seen. Only a guess at which step to take first.
    has_queue: Arc<AtomicBool>,
}

/// Which kind of lock it is, and how much of it is taken at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueParams {
    /// The same for all who use the lock; others are refused.
    pub(crate) kind: &'static str,
    pub(crate) capacity: u64,
    pub(crate) weight: u64,
    /// Whether tasks of one process wait each for itself, since all of them can hold it together.
    pub(crate) shared: bool,
    /// Whether tasks of one process may leave it to each other.
    pub(crate) handed_on: bool,
}

impl QueueParams {
    /// For one who takes nothing of the lock.
    pub(crate) const NOTHING: Self = Self {
        kind: "",
        capacity: 0,
        weight: 0,
        shared: false,
        handed_on: false,
    };
}

/// How a lock of this family stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueStats {
    /// How much of it is taken.
    pub(crate) used: u64,
    /// How much there is, where the server knows.
    pub(crate) capacity: Option<u64>,
    pub(crate) waiting: u64,
    pub(crate) holder: Option<Holder>,
}

impl Queued {
    pub(crate) fn new(keys: Arc<QueueKeys>, share: QueueParams) -> Self {
        Self {
            gate: [share.kind.as_bytes(), b" ", keys.key()].concat().into(),
            has_queue: Arc::default(),
            keys,
            share,
        }
    }

    /// The same lock, of which `weight` is taken.
    pub(crate) fn with_weight(&self, weight: u64) -> Self {
        let mut other = self.clone();
        other.share.weight = weight;
        other
    }

    /// How much there is unless it was set.
    pub(crate) fn capacity(&self) -> u64 {
        self.share.capacity
    }

    /// Sets the capacity, whatever those who enter say.
    pub(crate) fn set_capacity(&self, capacity: u64) -> Call<()> {
        let args = [self.share.kind.as_bytes(), &digits(capacity), &micros(KEPT)];
        Call::script(&CAPACITY, &self.keys.all(), &args, |replies| {
            first("a capacity", replies).map(drop)
        })
    }

    /// How the lock stands.
    pub(crate) fn stats(&self) -> Call<QueueStats> {
        Call::script(&LOOK, &self.keys.all(), &[], |replies| {
            let reply = first("a look", replies)?;
            let stats = read_census(&reply);
            stats.ok_or_else(|| RequestError::malformed("a look", &[reply]))
        })
    }

    /// Makes a lease or a place last at least `length` from now: both are kept by the same step.
    fn keep(&self, mark: &[u8], length: Duration) -> Call<QueueStatus> {
        let args = [record::owner(mark), &micros(length)];
        Call::script(&RENEW, &self.keys.all(), &args, self.reader())
    }

    /// Acquires the lock by script, without waiting.
    fn try_enter(&self, mark: &LockValue, lease: Duration) -> Call<AcquireReply> {
        let entering = self.enter(mark, lease, Duration::ZERO, None);
        entering.map(|standing| match standing {
            QueueStatus::Holds { token, .. } => AcquireReply::Held { token },
            QueueStatus::Waits { holder, .. } | QueueStatus::Gone { holder } => {
                AcquireReply::Busy { holder }
            }
        })
    }

    /// Acquires the lock as a mutex does, and asks by script where it is no plain string or may have room.
    fn take(&self, mark: &LockValue, lease: Duration, look: bool) -> Call<AcquireReply> {
        let (this, mark) = (self.clone(), mark.clone());
        let (lock, counter) = (self.keys.lock(), self.keys.counter());
        let commands = single_key::acquire(lock, counter, &mark, lease, look);
        Call::stepwise(commands, move |replies| {
            let (value, left) = match single_key::read_acquire(&mark, &replies)? {
                Taken::Held { token } => return Ok(Step::Done(AcquireReply::Held { token })),
                Taken::Void { refusal } => {
                    return Ok(Step::Done(AcquireReply::Unusable { refusal }));
                }
                Taken::Found { value, left } => (value, left),
            };
            let kind = this.share.kind;
            match Form::of(value) {
                Form::Alone(part) if part.kind == kind && this.is_shut_out_by(part) => {
                    let holder = single_key::holder(value, left);
                    Ok(Step::Done(AcquireReply::Busy { holder }))
                }
                Form::Alone(Part { kind: found, .. }) | Form::Queue(found) if found == kind => {
                    Ok(Step::Next(this.try_enter(&mark, lease)))
                }
                _ => Err(RequestError::Refused(single_key::another_kind())),
            }
        })
    }

    fn is_shut_out_by(&self, part: Part<'_>) -> bool {
        part.weight.saturating_add(self.share.weight) > part.capacity
    }

    /// Releases by script.
    fn leave(&self, mark: &[u8], keep: Duration) -> Call<ReleaseReply> {
        let args = [record::owner(mark), &micros(keep)];
        Call::script(&RELEASE, &self.keys.all(), &args, |replies| {
            match first("a release", replies)? {
                Reply::List(parts) if parts.first() == Some(&Reply::Int(1)) => {
                    Ok(ReleaseReply::Released { notified: 0 })
                }
                Reply::List(_) => Ok(ReleaseReply::NotOwner),
                reply => Err(RequestError::malformed("a release", &[reply])),
            }
        })
    }

    fn has_queue(&self) -> bool {
        self.has_queue.load(Ordering::Relaxed)
    }

    /// Reads how an owner stands, and notes whether there is a queue.
    fn reader(
        &self,
    ) -> impl FnOnce(Vec<Reply>) -> Result<QueueStatus, RequestError> + Send + 'static {
        let has_queue = self.has_queue.clone();
        move |replies| {
            let reply = first("an owner's standing", replies)?;
            let is_plain = reply.list().and_then(|parts| parts.get(4)) == Some(&Reply::Int(1));
            has_queue.store(!is_plain, Ordering::Relaxed);
            match standing(&reply) {
                Some(standing) => standing,
                None => Err(RequestError::malformed("an owner's standing", &[reply])),
            }
        }
    }

    /// Where this client hears of grants, of this lock and of others.
    fn grants(&self) -> &[u8] {
        self.keys.grants().as_bytes()
    }
}

impl Kind for Queued {
    fn keys(&self) -> &dyn Keys {
        &*self.keys
    }

    fn value(&self, owner: &Owner, since_micros: u64, note: &str) -> LockValue {
        let QueueParams {
            kind,
            capacity,
            weight,
            ..
        } = self.share;
        let part = Part {
            kind,
            capacity,
            weight,
        };
        record::write_part(part, owner, since_micros, note).into()
    }

    /// Only if no owner waits and there is room.
    fn acquire(&self, mark: &LockValue, lease: Duration, look: bool) -> Call<AcquireReply> {
        // A script says how much there is to a caller that asks for more.
        match self.has_queue() || self.share.weight > self.share.capacity {
            true => self.try_enter(mark, lease),
            false => self.take(mark, lease, look),
        }
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        if self.has_queue() {
            return self.keep(mark, lease).map(|standing| kept(&standing));
        }
        let (this, owned) = (self.clone(), LockValue::from(mark));
        let renew = single_key::renew(self.keys.lock(), mark, lease);
        Call::stepwise(vec![renew], move |replies| {
            Ok(match single_key::read_renewal(replies)? {
                Found::Ours => Step::Done(RenewReply::Renewed),
                Found::Nothing => Step::Done(RenewReply::NotOwner),
                Found::Other => {
                    Step::Next(this.keep(&owned, lease).map(|standing| kept(&standing)))
                }
            })
        })
    }

    /// Ends a holding, or a place in the queue.
    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        server: Capabilities,
    ) -> Call<ReleaseReply> {
        if keep.is_some() || self.has_queue() {
            return self.leave(mark, keep.unwrap_or_default());
        }
        let lock = self.keys.lock();
        let command = single_key::compare_and_delete(lock, mark, server)
            .unwrap_or_else(|| DROP.call(&[lock.as_bytes()], &[mark]));
        let (this, owned) = (self.clone(), LockValue::from(mark));
        Call::stepwise(vec![command], move |replies| {
            match first("a release", replies)?.int() {
                Some(1) => Ok(Step::Done(ReleaseReply::Released { notified: 0 })),
                Some(0 | -1) => Ok(Step::Next(this.leave(&owned, Duration::ZERO))),
                _ => Err(RequestError::malformed("a release", &[])),
            }
        })
    }

    /// By script: whether the owner holds or waits, that is over.
    fn cancel(&self, mark: &[u8], _server: Capabilities) -> Call<ReleaseReply> {
        self.leave(mark, Duration::ZERO)
    }

    fn raise_token(&self, floor: u64) -> Option<Call<Token>> {
        Some(token::raise(self.keys.counter(), floor))
    }

    fn downgrade(&self, mark: &[u8]) -> Option<Call<RenewReply>> {
        let args = [record::owner(mark), &digits(1)];
        let shrunk = Call::script(&SHRINK, &self.keys.all(), &args, self.reader());
        Some(shrunk.map(|standing| kept(&standing)))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        self.stats().map(|stats| stats.holder)
    }

    fn local_handoff(&self) -> Option<&dyn LocalHandoff> {
        self.share.handed_on.then_some(self)
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Queued(self)
    }
}

impl LocalHandoff for Queued {
    fn reserve_tokens(&self, mark: &[u8], count: u64, own: Token) -> Call<Option<TokenBlock>> {
        let args = [record::owner(mark), &digits(count), &digits(own.as_u64())];
        Call::script(&TOKENS, &self.keys.all(), &args, token::read_block)
    }

    fn holder_info(&self, mark: &[u8]) -> Holder {
        record::read(mark)
    }
}

impl ServerQueue for Queued {
    /// Those who share the lock are let in together, so each has a place of its own.
    fn local_queue_key(&self) -> Option<&[u8]> {
        (!self.share.shared).then_some(&*self.gate)
    }

    fn delivery(&self, _mark: &[u8]) -> GrantDelivery<'_> {
        GrantDelivery::Push(self.grants())
    }

    fn enter(
        &self,
        mark: &LockValue,
        lease: Duration,
        place: Duration,
        ticket: Option<u64>,
    ) -> Call<QueueStatus> {
        let (lease, place) = (micros(lease), micros(place));
        let ticket = digits(ticket.unwrap_or_default());
        let args = [mark, self.grants(), &lease, &place, &ticket];
        Call::script(&ENTER, &self.keys.all(), &args, self.reader())
    }

    fn stay(&self, mark: &[u8], _lease: Duration, place: Duration) -> Call<QueueStatus> {
        self.keep(mark, place)
    }
}

/// Whether the owner has the lock still.
fn kept(standing: &QueueStatus) -> RenewReply {
    match standing {
        QueueStatus::Holds { .. } => RenewReply::Renewed,
        QueueStatus::Waits { .. } | QueueStatus::Gone { .. } => RenewReply::NotOwner,
    }
}

/// Whole microseconds, rounded up: the server never keeps anything shorter than was asked.
fn micros(duration: Duration) -> Vec<u8> {
    duration.as_nanos().div_ceil(1000).to_string().into_bytes()
}

impl Grant {
    /// Reads what a promotion publishes: `OWNER TOKEN END`.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(message).ok()?.split(' ');
        let grant = Self {
            owner: words.next()?.parse().ok()?,
            token: Token::new(words.next()?.parse().ok()?),
            end: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(grant)
    }
}

/// The replies that `queue/prelude_steps.lua` lists; `None` when it is none of them.
fn standing(reply: &Reply) -> Option<Result<QueueStatus, RequestError>> {
    let Reply::List(parts) = reply else {
        return None;
    };
    let number = |at: usize| u64::try_from(parts.get(at)?.int()?).ok();
    let now = number(2)?;
    Some(Ok(match number(0)? {
        0 => QueueStatus::Gone {
            holder: holder(parts.get(4)?, number(5)?, now)?,
        },
        1 => QueueStatus::Holds {
            token: Token::new(number(1)?),
            left: Duration::from_micros(number(3)?.saturating_sub(now)),
        },
        2 => QueueStatus::Waits {
            ahead: number(1)?,
            server_now: now,
            ticket: number(3).filter(|ticket| *ticket > 0),
            holder: holder(parts.get(4)?, number(5)?, now)?,
        },
        3 => {
            return Some(Err(RequestError::Refused(ServerError {
                kind: ServerErrorKind::TooMuch,
                message: format!("there are only {} in all", number(1)?),
            })));
        }
        _ => return None,
    }))
}

fn read_census(reply: &Reply) -> Option<QueueStats> {
    let Reply::List(parts) = reply else {
        return None;
    };
    let number = |at: usize| u64::try_from(parts.get(at)?.int()?).ok();
    let used = number(0)?;
    let holder = holder(parts.get(4)?, number(5)?, number(2)?)?;
    Some(QueueStats {
        used,
        capacity: number(1).filter(|capacity| *capacity > 0),
        waiting: number(3)?,
        holder: (used > 0).then_some(holder),
    })
}

/// Who stands in an entry, or nobody.
fn holder(entry: &Reply, end: u64, now: u64) -> Option<Holder> {
    participant(entry, end, now).map(|(_, holder)| holder)
}

/// The mark in an entry, `WEIGHT FIRST TOKEN SINCE CHANNEL MARK`, and whose it is.
pub(super) fn participant(entry: &Reply, end: u64, now: u64) -> Option<(Vec<u8>, Holder)> {
    let Reply::Bytes(entry) = entry else {
        return None;
    };
    let mut parts = entry.splitn(6, |byte| *byte == b' ');
    let held_since = parts.nth(3).and_then(|since| {
        let since: u64 = std::str::from_utf8(since).ok()?.parse().ok()?;
        let since = Duration::from_micros((since > 0).then_some(since)?);
        std::time::UNIX_EPOCH.checked_add(since)
    });
    // A release that keeps the lock puts `-` in place of the channel.
    let released = parts.next() == Some(b"-");
    let mark = parts.next().unwrap_or_default();
    let asked = record::read(mark);
    let holder = Holder {
        // Of one who waits: since when it does.
        since: held_since.or(asked.since),
        lease_remaining: (end > 0).then(|| Duration::from_micros(end.saturating_sub(now))),
        released,
        ..asked
    };
    Some((mark.to_vec(), holder))
}

//! Inspects a lock without knowing the kind: holders, waiters, and whether
//! their processes are connected.
//!
//! Only reads. One pipeline reads a string; a queue or a hash needs a second
//! one. Information that the user may not read stays unknown, except for the
//! key itself.

use std::time::Duration;

use super::call::{Call, first, read};
use super::keys::{Keyspace, QueueKeys, process_channel};
use super::pttl::remaining;
use super::queue_reply;
use super::record::{self, Form};
use super::redisson_hash::{self, Mode, prefixed};
use super::script::{digits, script};
use crate::backend::{Batch, Capabilities, Reply, RequestError, ServerErrorKind, Slot};
use crate::info::{Holder, LockKind, Messages};

script!(INSPECT, "queue/prelude.lua", "queue/inspect.lua");

/// The last byte that is read of a string: beyond any value of this library.
const MAX_VALUE: u64 = 2047;

/// How many fields are read of an unknown hash, to recognise Redisson's locks.
const MAX_FIELDS: u64 = 100;

/// A lock's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockSnapshot {
    pub(crate) kind: LockKind,
    /// The first holders, up to the requested limit.
    pub(crate) holders: Vec<Participant>,
    pub(crate) holder_count: u64,
    /// The first waiters in queue order, up to the requested limit.
    pub(crate) waiters: Vec<Participant>,
    /// The number of waiting processes, if it can be known.
    pub(crate) waiter_count: Option<u64>,
    /// The mode in which a read-write lock of Redisson's is held.
    pub(crate) mode: Option<Mode>,
}

impl LockSnapshot {
    /// Returns whether the server ends every lease that is not renewed.
    pub(crate) fn expires(&self) -> bool {
        let mut holders = self.holders.iter();
        holders.all(|participant| participant.holder.lease_remaining.is_some())
    }
}

/// A holder or waiter.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Participant {
    /// Its value on the server.
    pub(crate) value: Vec<u8>,
    pub(crate) holder: Holder,
}

impl std::fmt::Debug for Participant {
    /// Omits the value, which contains the owner.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.holder.fmt(f)
    }
}

/// What the second probe of a lock reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowUp {
    Queue,
    /// A latch, or a lock of Redisson's with this remaining time to live.
    Hash {
        remaining: Option<Duration>,
    },
}

/// The result of probing a key.
pub(crate) enum Probe {
    /// The key does not exist.
    Nothing,
    Lock(LockSnapshot),
    /// A second probe is needed.
    FollowUp(FollowUp),
    /// The key cannot be a lock.
    Data,
}

impl Probe {
    /// Probes the lock's own key.
    pub(crate) fn key(keys: &QueueKeys, messages: Messages) -> Call<Self> {
        let commands = Batch::new("GETRANGE")
            .arg(keys.lock())
            .number(0)
            .number(MAX_VALUE)
            // In the same pipeline, but not in one step: the key may go in
            // between.
            .then("PTTL")
            .arg(keys.lock())
            .and(subscribers(keys.wake(), messages));
        Call::new(commands, move |replies| match replies.as_slice() {
            [Reply::Refused(refusal), pttl, _] if refusal.kind == ServerErrorKind::WrongType => {
                let remaining = pttl.int().and_then(remaining);
                Ok(Self::FollowUp(FollowUp::Hash { remaining }))
            }
            [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
            // Free, or released between the two commands.
            [Reply::Bytes(_), Reply::Int(-2), _] => Ok(Self::Nothing),
            [Reply::Bytes(value), pttl, listeners] => {
                let remaining = pttl.int().and_then(remaining);
                let listeners = subscriber_count(listeners, messages);
                let snapshot = read_string(value, remaining, listeners);
                Ok(snapshot.map_or(Self::FollowUp(FollowUp::Queue), Self::Lock))
            }
            _ => Err(RequestError::malformed("GETRANGE", &replies)),
        })
    }

    /// Probes what the first probe could not read. Lists at most `limit`
    /// holders and waiters.
    pub(crate) fn follow_up(keys: &QueueKeys, follow_up: FollowUp, limit: u64) -> Call<Self> {
        match follow_up {
            FollowUp::Queue => Self::probe_queue(keys, limit),
            FollowUp::Hash { remaining } => Self::probe_hash(keys, remaining, limit),
        }
    }

    fn probe_queue(keys: &QueueKeys, limit: u64) -> Call<Self> {
        Call::script(&INSPECT, &keys.all(), &[&digits(limit)], |replies| {
            let reply = match first("a queue", replies) {
                // Another kind of lock was acquired between the two probes.
                Err(RequestError::Refused(refusal))
                    if refusal.kind == ServerErrorKind::WrongType =>
                {
                    return Ok(Self::Data);
                }
                reply => reply?,
            };
            // Leases that have ended are not counted, though their keys may
            // still exist.
            let state = reply.list().unwrap_or_default();
            // Released between the two probes, or every lease has ended.
            let is_empty = |at: usize| state.get(at).and_then(Reply::int) == Some(0);
            if is_empty(4) && is_empty(5) {
                return Ok(Self::Nothing);
            }
            let snapshot = read_queue(&reply).map(Self::Lock);
            snapshot.ok_or_else(|| RequestError::malformed("a queue", &[reply]))
        })
    }

    fn probe_hash(keys: &QueueKeys, remaining: Option<Duration>, limit: u64) -> Call<Self> {
        let key = keys.lock();
        // Only a fair lock has one. For others the list is empty.
        let queue = prefixed("redisson_lock_queue", key);
        let fields = Batch::new("HMGET").arg(key).arg("kind").arg("remaining");
        let scan = fields.then("HSCAN").arg(key).number(0);
        let scan = scan.arg("COUNT").number(MAX_FIELDS);
        let waiters = scan.then("LLEN").arg(&queue).then("LRANGE").arg(&queue);
        let commands = waiters.number(0).number(limit - 1);
        Call::new(commands, move |replies| match replies.as_slice() {
            [Reply::Refused(refusal), ..] if refusal.kind == ServerErrorKind::WrongType => {
                Ok(Self::Data)
            }
            [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
            // Released between the two probes.
            [_, Reply::List(fields), ..] if fields.get(1) == Some(&Reply::List(Vec::new())) => {
                Ok(Self::Nothing)
            }
            [state, fields, waiter_count, queue] => Ok(read_latch(state)
                .or_else(|| read_redisson(fields, remaining, waiter_count, queue))
                .map_or(Self::Data, Self::Lock)),
            _ => Err(RequestError::malformed("a hash", &replies)),
        })
    }
}

/// Reads a page of names from a cursor on, and the cursor of the next page;
/// zero at the end.
pub(crate) fn page(
    keyspace: &Keyspace,
    pattern: &str,
    cursor: u64,
    count: u64,
) -> Call<(u64, Vec<String>)> {
    let scan = Batch::new("SCAN")
        .number(cursor)
        .arg("MATCH")
        .arg(keyspace.pattern(pattern))
        .arg("COUNT")
        .number(count);
    let keyspace = keyspace.clone();
    let page = move |reply: &Reply| {
        let [cursor, keys] = reply.list()? else {
            return None;
        };
        let name = |key: &Reply| match key {
            Reply::Bytes(key) => keyspace.name_of(key).map(str::to_owned),
            _ => None,
        };
        let names = keys.list()?.iter().filter_map(name).collect();
        Some((cursor.text()?.parse().ok()?, names))
    };
    Call::new(scan, read("SCAN", page))
}

impl Participant {
    /// Returns the process that holds or waits; `None` if it does not use this
    /// library.
    pub(crate) fn process(&self) -> Option<&str> {
        record::process(&self.value)
    }

    /// Notifies that process that it may have lost the lock. The call returns
    /// whether a connection received the message.
    pub(crate) fn notify(&self, server: Capabilities) -> Option<(Slot, Call<bool>)> {
        let (channel, slot) = process_channel(self.process()?);
        let command = server.publish();
        let publish = Batch::new(command).arg(channel).arg(&self.value);
        let call = Call::new(publish, move |replies| {
            let receivers = first(command, replies)?.int();
            Ok(receivers.is_some_and(|receivers| receivers > 0))
        });
        Some((slot, call))
    }
}

/// Reads whether a process is connected; `None` if the user may not read that,
/// or processes don't subscribe.
pub(crate) fn is_connected(process: &str, messages: Messages) -> (Slot, Call<Option<bool>>) {
    let (channel, slot) = process_channel(process);
    let call = Call::new(subscribers(&channel, messages), move |replies| {
        let count = replies.first();
        let count = count.and_then(|reply| subscriber_count(reply, messages));
        Ok(count.map(|count| count > 0))
    });
    (slot, call)
}

fn subscribers(channel: &str, messages: Messages) -> Batch {
    let count = match messages {
        Messages::Sharded | Messages::Polled => "SHARDNUMSUB",
        Messages::Classic => "NUMSUB",
    };
    Batch::new("PUBSUB").arg(count).arg(channel)
}

/// Reads the reply to [`subscribers`]: the channel's name and a number.
fn subscriber_count(reply: &Reply, messages: Messages) -> Option<u64> {
    if messages == Messages::Polled {
        // No client subscribes, connected or not.
        return None;
    }
    u64::try_from(reply.list()?.get(1)?.int()?).ok()
}

/// Reads a lock that is one string; `None` if it has a queue.
fn read_string(
    value: &[u8],
    remaining: Option<Duration>,
    listeners: Option<u64>,
) -> Option<LockSnapshot> {
    let (kind, waiter_count) = match Form::of(value) {
        Form::Mutex => (LockKind::Mutex, listeners),
        Form::Foreign => (LockKind::Foreign, listeners),
        // Without a queue, no client waits.
        Form::Alone(part) => (kind_of(part.kind, part.weight, part.capacity)?, Some(0)),
        Form::Queue(_) => return None,
    };
    let holder = Participant {
        value: value.to_vec(),
        holder: Holder {
            lease_remaining: remaining,
            ..record::read(value)
        },
    };
    Some(LockSnapshot {
        kind,
        holders: vec![holder],
        holder_count: 1,
        waiters: Vec::new(),
        waiter_count,
        mode: None,
    })
}

/// Returns the public kind for a kind on the wire.
fn kind_of(kind: &str, used: u64, permits: u64) -> Option<LockKind> {
    match kind {
        "fair" => Some(LockKind::FairMutex),
        "semaphore" => Some(LockKind::Semaphore { used, permits }),
        "rw" => Some(LockKind::RwLock),
        _ => None,
    }
}

/// Reads a latch: a hash with the fields `kind` and `remaining`.
fn read_latch(state: &Reply) -> Option<LockSnapshot> {
    let [kind, remaining] = state.list()? else {
        return None;
    };
    // A hash of another program may have a field `remaining`, too.
    kind.text().filter(|kind| *kind == "latch")?;
    Some(LockSnapshot {
        kind: LockKind::Latch {
            remaining: remaining.text()?.parse().ok()?,
        },
        holders: Vec::new(),
        holder_count: 0,
        waiters: Vec::new(),
        waiter_count: Some(0),
        mode: None,
    })
}

/// Reads the reply of `queue/inspect.lua`.
fn read_queue(reply: &Reply) -> Option<LockSnapshot> {
    // The last item is a flat list, three items for each owner.
    let (owners, state) = reply.list()?.split_last()?;
    let owners = owners.list()?;
    if state.len() != 6 {
        return None;
    }
    let number = |at: usize| u64::try_from(state[at].int()?).ok();
    let (used, permits, now) = (number(1)?, number(2)?, number(3)?);
    let kind = kind_of(state[0].text()?, used, permits)?;
    let of_role = |role: i64| {
        let mut found = Vec::new();
        for owner in owners.chunks_exact(3) {
            if owner[0].int() == Some(role) {
                let end = u64::try_from(owner[2].int()?).ok()?;
                let (value, holder) = queue_reply::participant(&owner[1], end, now)?;
                found.push(Participant { value, holder });
            }
        }
        Some(found)
    };
    Some(LockSnapshot {
        kind,
        holders: of_role(1)?,
        holder_count: number(4)?,
        waiters: of_role(2)?,
        waiter_count: number(5),
        mode: None,
    })
}

/// Reads a lock of Redisson's, with the waiters of a fair one.
fn read_redisson(
    fields: &Reply,
    remaining: Option<Duration>,
    waiter_count: &Reply,
    queue: &Reply,
) -> Option<LockSnapshot> {
    let [_, fields] = fields.list()? else {
        return None;
    };
    // Only this library's values identify a process that can be asked for.
    let participant = |holder| Participant {
        value: Vec::new(),
        holder,
    };
    let lock = redisson_hash::read(fields.list()?, remaining)?;
    let waiters = queue.list().unwrap_or_default().iter();
    let waiters: Vec<_> = waiters
        .filter_map(|waiter| redisson_hash::read_owner(waiter.text()?, None))
        .map(participant)
        .collect();
    Some(LockSnapshot {
        kind: match (lock.mode, waiters.is_empty()) {
            (Some(_), _) => LockKind::RedissonReadWriteLock,
            (None, false) => LockKind::RedissonFairLock,
            (None, true) => LockKind::RedissonLock,
        },
        holder_count: lock.holders.len() as u64,
        holders: lock.holders.into_iter().map(participant).collect(),
        waiter_count: match waiters.is_empty() {
            // The channel of a lock without a queue has other subscribers than
            // its waiters.
            true => None,
            false => waiter_count
                .int()
                .and_then(|count| u64::try_from(count).ok()),
        },
        waiters,
        mode: lock.mode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn foreign_string_is_recognised() {
        let value = record::write(
            &crate::owner::Owner::random(),
            record::Description::default(),
        );
        let listeners = Reply::List(vec![bytes("channel"), Reply::Int(2)]);
        let listeners = subscriber_count(&listeners, Messages::Sharded);
        let snapshot = read_string(&value, None, listeners).unwrap();
        assert_eq!(
            (snapshot.kind, snapshot.waiter_count),
            (LockKind::Mutex, Some(2))
        );
        let foreign = read_string(b"token", None, None).unwrap();
        assert_eq!(
            (foreign.kind, foreign.waiter_count),
            (LockKind::Foreign, None)
        );
    }
}

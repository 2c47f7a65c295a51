//! What anybody can see of a lock without knowing its kind: who holds it, who waits, whether they are there.
//!
//! Only reads. A string is looked at by one pipeline, a queue and a hash by a second one. What a user may not ask for is
//! unknown, except the key itself.

use std::time::Duration;

use super::call::first;
use super::keys::QueueKeys;
use super::pttl::time_left;
use super::record::{self, Form};
use super::redisson::{Mode, owner_in};
use super::script::{digits, script};
use super::{Call, Keyspace, process_channel, queued};
use crate::backend::{Command, Reply, RequestError, ServerErrorKind, Slot};
use crate::info::Holder;
use crate::info::LockKind;

script!(LIST, "queue/prelude_state.lua", "queue/inspect.lua");

/// How much of a string is read: more than any value of ours has.
const VALUE: u64 = 2047;

/// How many fields of a hash that is not ours are read, to see whether it is Redisson's.
const FIELDS: u64 = 100;

/// What kind at a lock's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockSnapshot {
    pub(crate) kind: LockKind,
    /// As many as were asked for, of `holding`.
    pub(crate) holders: Vec<Participant>,
    pub(crate) holder_count: u64,
    /// In order, as many as were asked for, of `waiting`.
    pub(crate) waiters: Vec<Participant>,
    /// How many processes wait, where that can be known.
    pub(crate) waiter_count: Option<u64>,
    /// In which mode a read-write lock of Redisson's is held.
    pub(crate) mode: Option<Mode>,
}

impl LockSnapshot {
    /// Whether the server ends it by itself unless it is renewed.
    pub(crate) fn expires(&self) -> bool {
        let mut holders = self.holders.iter();
        holders.all(|participant| participant.holder.lease_remaining.is_some())
    }
}

/// One who holds or waits.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Participant {
    /// What kind on the server in its name.
    pub(crate) value: Vec<u8>,
    pub(crate) holder: Holder,
}

impl std::fmt::Debug for Participant {
    /// Leaves out the value: it holds the owner.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.holder.fmt(f)
    }
}

/// What a second look is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum More {
    Queue,
    /// A latch or a lock of Redisson's, and for how long it is there.
    Hash {
        left: Option<Duration>,
    },
}

/// What the first look sees.
pub(crate) enum Probe {
    Nothing,
    Lock(LockSnapshot),
    /// A second look is needed, at a queue of ours or at a hash.
    More(More),
    /// Nothing that could be a lock.
    Data,
}

impl Probe {
    /// Looks at the lock of `keys`.
    pub(crate) fn key(keys: &QueueKeys) -> Call<Self> {
        let commands = vec![
            Command::new("GETRANGE")
                .arg(keys.lock())
                .number(0)
                .number(VALUE),
            Command::new("PTTL").arg(keys.lock()),
            subscribers(keys.wake()),
        ];
        Call::new(commands, |replies| match replies.as_slice() {
            [Reply::Refused(refusal), left, _] if refusal.kind == ServerErrorKind::WrongType => {
                let left = left.int().and_then(time_left);
                Ok(Self::More(More::Hash { left }))
            }
            [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
            // It is not there, or was released between the two commands.
            [Reply::Bytes(_), Reply::Int(-2), _] => Ok(Self::Nothing),
            [Reply::Bytes(value), left, heard] => {
                let left = left.int().and_then(time_left);
                let snapshot = one_holder(value, left, heard);
                Ok(snapshot.map_or(Self::More(More::Queue), Self::Lock))
            }
            _ => Err(RequestError::malformed("GETRANGE", &replies)),
        })
    }

    /// Looks again. The particulars of at most `most` holders and waiters are read.
    pub(crate) fn probe_hash(keys: &QueueKeys, more: More, most: u64) -> Call<Self> {
        match more {
            More::Queue => Self::look_at_queue(keys, most),
            More::Hash { left } => Self::look_at_hash(keys, left, most),
        }
    }

    fn look_at_queue(keys: &QueueKeys, most: u64) -> Call<Self> {
        Call::script(&LIST, &keys.all(), &[&digits(most)], |replies| {
            let reply = match first("a second look", replies) {
                // It has become another lock between the two looks.
                Err(RequestError::Refused(refusal))
                    if refusal.kind == ServerErrorKind::WrongType =>
                {
                    return Ok(Self::Data);
                }
                reply => reply?,
            };
            let state = reply.list().unwrap_or_default();
            // It was released between the two looks, or all it had is over.
            let is_empty = |at: usize| state.get(at).and_then(Reply::int) == Some(0);
            if is_empty(4) && is_empty(5) {
                return Ok(Self::Nothing);
            }
            let snapshot = ours(&reply).map(Self::Lock);
            snapshot.ok_or_else(|| RequestError::malformed("a second look", &[reply]))
        })
    }

    fn look_at_hash(keys: &QueueKeys, left: Option<Duration>, most: u64) -> Call<Self> {
        let key = keys.lock();
        let line = super::redisson::prefixed("redisson_lock_queue", key);
        let scan = Command::new("HSCAN").arg(key).number(0);
        let commands = vec![
            Command::new("HMGET").arg(key).arg("kind").arg("remaining"),
            scan.arg("COUNT").number(FIELDS),
            Command::new("LLEN").arg(&line),
            Command::new("LRANGE").arg(&line).number(0).number(most - 1),
        ];
        Call::new(commands, move |replies| match replies.as_slice() {
            [Reply::Refused(refusal), ..] if refusal.kind == ServerErrorKind::WrongType => {
                Ok(Self::Data)
            }
            [Reply::Refused(refusal), ..] => Err(RequestError::Refused(refusal.clone())),
            // It was released between the two looks.
            [_, Reply::List(fields), ..] if fields.get(1) == Some(&Reply::List(Vec::new())) => {
                Ok(Self::Nothing)
            }
            [state, fields, waiting, line] => Ok(latch(state)
                .or_else(|| redissons(fields, left, waiting, line))
                .map_or(Self::Data, Self::Lock)),
            _ => Err(RequestError::malformed("a second look", &replies)),
        })
    }
}

/// Keys from a cursor on, and the cursor to go on from; zero at the end.
pub(crate) fn page(
    keyspace: &Keyspace,
    pattern: &str,
    cursor: u64,
    count: u64,
) -> Call<(u64, Vec<String>)> {
    let scan = Command::new("SCAN")
        .number(cursor)
        .arg("MATCH")
        .arg(keyspace.pattern(pattern))
        .arg("COUNT")
        .number(count);
    let keyspace = keyspace.clone();
    Call::new(vec![scan], move |replies| {
        let reply = first("SCAN", replies)?;
        let read = || {
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
        read().ok_or_else(|| RequestError::malformed("SCAN", std::slice::from_ref(&reply)))
    })
}

impl Participant {
    /// The process that holds or waits; `None` when it is not one of this library.
    pub(crate) fn process(&self) -> Option<&str> {
        record::process(&self.value)
    }

    /// Tells that process to look after it; whether anybody heard it.
    pub(crate) fn tell(&self) -> Option<(Slot, Call<bool>)> {
        let (channel, slot) = process_channel(self.process()?);
        let publish = Command::new("SPUBLISH").arg(channel).arg(&self.value);
        let call = Call::new(vec![publish], |replies| {
            let heard = first("SPUBLISH", replies)?.int();
            Ok(heard.is_some_and(|heard| heard > 0))
        });
        Some((slot, call))
    }
}

/// Asks whether a process is connected; `None` where that may not be asked.
pub(crate) fn is_connected(process: &str) -> (Slot, Call<Option<bool>>) {
    let (channel, slot) = process_channel(process);
    let call = Call::new(vec![subscribers(&channel)], |replies| {
        Ok(replies.first().and_then(heard_by).map(|count| count > 0))
    });
    (slot, call)
}

fn subscribers(channel: &str) -> Command {
    Command::new("PUBSUB").arg("SHARDNUMSUB").arg(channel)
}

/// How many hear a channel: the answer is its name and a number.
fn heard_by(reply: &Reply) -> Option<u64> {
    u64::try_from(reply.list()?.get(1)?.int()?).ok()
}

/// A lock that is one string; `None` when it has a queue.
fn one_holder(value: &[u8], left: Option<Duration>, heard: &Reply) -> Option<LockSnapshot> {
    let (kind, waiting) = match Form::of(value) {
        Form::Mutex => (LockKind::Mutex, heard_by(heard)),
        Form::Foreign => (LockKind::Foreign, heard_by(heard)),
        Form::Alone(part) => (seen(part.kind, part.weight, part.capacity)?, Some(0)),
        Form::Queue(_) => return None,
    };
    let holder = Participant {
        value: value.to_vec(),
        holder: Holder {
            lease_remaining: left,
            ..record::read(value)
        },
    };
    Some(LockSnapshot {
        kind,
        holders: vec![holder],
        holder_count: 1,
        waiters: Vec::new(),
        waiter_count: waiting,
        mode: None,
    })
}

/// What a kind is called by people.
fn seen(kind: &str, used: u64, permits: u64) -> Option<LockKind> {
    match kind {
        "fair" => Some(LockKind::FairMutex),
        "semaphore" => Some(LockKind::Semaphore { used, permits }),
        "rw" => Some(LockKind::RwLock),
        _ => None,
    }
}

/// A latch: a hash whose fields `kind` and `left` say so.
fn latch(state: &Reply) -> Option<LockSnapshot> {
    let [kind, left] = state.list()? else {
        return None;
    };
    kind.text().filter(|kind| *kind == "latch")?;
    Some(LockSnapshot {
        kind: LockKind::Latch {
            remaining: left.text()?.parse().ok()?,
        },
        holders: Vec::new(),
        holder_count: 0,
        waiters: Vec::new(),
        waiter_count: Some(0),
        mode: None,
    })
}

/// A lock with a queue: what `queue/inspect.lua` replies.
fn ours(reply: &Reply) -> Option<LockSnapshot> {
    let (people, state) = reply.list()?.split_last()?;
    let people = people.list()?;
    if state.len() != 6 {
        return None;
    }
    let number = |at: usize| u64::try_from(state[at].int()?).ok();
    let (used, permits, now) = (number(1)?, number(2)?, number(3)?);
    let kind = seen(state[0].text()?, used, permits)?;
    let of_part = |wanted: i64| {
        let mut found = Vec::new();
        for person in people.chunks_exact(3) {
            if person[0].int() == Some(wanted) {
                let end = u64::try_from(person[2].int()?).ok()?;
                let (value, holder) = queued::participant(&person[1], end, now)?;
                found.push(Participant { value, holder });
            }
        }
        Some(found)
    };
    Some(LockSnapshot {
        kind,
        holders: of_part(1)?,
        holder_count: number(4)?,
        waiters: of_part(2)?,
        waiter_count: number(5),
        mode: None,
    })
}

/// A lock of Redisson's: a hash of how often each of `UUID:THREAD` has entered, and `mode` where there are readers.
fn redissons(
    fields: &Reply,
    left: Option<Duration>,
    waiting: &Reply,
    line: &Reply,
) -> Option<LockSnapshot> {
    let [_, fields] = fields.list()? else {
        return None;
    };
    let (mut mode, mut owners) = (None, Vec::new());
    for field in fields.list()?.chunks_exact(2) {
        match field[0].text()? {
            "mode" => mode = Some(Mode::read(field[1].text()?)?),
            owner => owners.push(owner),
        }
    }
    let holders: Option<Vec<_>> = owners.iter().map(|owner| redisson(owner, left)).collect();
    let holders = holders.filter(|holders| !holders.is_empty())?;
    let waiters = line.list().unwrap_or_default().iter();
    let waiters: Vec<_> = waiters
        .filter_map(|waiter| redisson(waiter.text()?, None))
        .collect();
    Some(LockSnapshot {
        kind: match (mode, waiters.is_empty()) {
            (Some(_), _) => LockKind::RedissonReadWriteLock,
            (None, false) => LockKind::RedissonFairLock,
            (None, true) => LockKind::RedissonLock,
        },
        holder_count: holders.len() as u64,
        holders,
        waiter_count: match waiters.is_empty() {
            // Those who wait for a lock without a line cannot be told from others who hear its channel.
            true => None,
            false => waiting.int().and_then(|count| u64::try_from(count).ok()),
        },
        waiters,
        mode,
    })
}

/// One of Redisson's, if `owner` is `UUID:THREAD` or, of one who writes, `UUID:THREAD:write`.
fn redisson(owner: &str, left: Option<Duration>) -> Option<Participant> {
    let (owner, released) = owner_in(owner);
    let (id, thread) = owner.split_once(':')?;
    let is_id = id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    let is_thread = !thread.is_empty() && thread.bytes().all(|byte| byte.is_ascii_digit());
    (is_id && is_thread).then(|| Participant {
        value: Vec::new(),
        holder: Holder {
            redisson: Some(owner.clone()),
            lease_remaining: left,
            released,
            ..Holder::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn redissons_owners_are_told_from_other_fields() {
        let id = "a2b1f3c4-0000-4000-8000-123456789abc";
        for (owner, is_one) in [
            (format!("{id}:1"), true),
            (format!("{id}:77:write"), true),
            (format!("{id}:"), false),
            (id.to_owned(), false),
            ("name:1".to_owned(), false),
            (format!("{}:1", id.replace('-', "0")), false),
        ] {
            assert_eq!(redisson(&owner, None).is_some(), is_one, "{owner}");
        }
    }

    #[test]
    fn a_hash_of_data_is_no_lock() {
        let fields = Reply::List(vec![
            bytes("0"),
            Reply::List(vec![bytes("name"), bytes("value")]),
        ]);
        let list = Reply::List(vec![bytes("")]);
        assert_eq!(ours(&list), None);
        assert_eq!(
            redissons(&fields, None, &Reply::Int(0), &Reply::List(vec![])),
            None
        );
    }

    #[test]
    fn a_string_of_ours_is_told_from_others() {
        let value = record::write(&crate::owner::Owner::random(), 1_000_000, "x");
        let heard = Reply::List(vec![bytes("channel"), Reply::Int(2)]);
        let snapshot = one_holder(&value, None, &heard).unwrap();
        assert_eq!(
            (snapshot.kind, snapshot.waiter_count),
            (LockKind::Mutex, Some(2))
        );
        let foreign = one_holder(b"token", None, &Reply::Nil).unwrap();
        assert_eq!(
            (foreign.kind, foreign.waiter_count),
            (LockKind::Foreign, None)
        );
    }
}

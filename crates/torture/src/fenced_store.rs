//! A store that rejects stale fencing tokens, next to a store that accepts
//! every write and so shows what the tokens prevent.
//!
//! Each store holds a counter per lock. A holder reads it, pauses, and writes
//! the value plus one. Reading also presents the token to the fenced store,
//! which rejects every smaller token from then on. The fenced store keeps a
//! list of the writes that it accepted.

use testkit::{Connection, Reply};

/// The counters as a holder read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// `None` if the fenced store rejected the token.
    fenced: Option<u64>,
    unfenced: u64,
}

/// The final content of both stores for one lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// The accepted writes, in order.
    pub(crate) fenced: Vec<Write>,
    /// The number of writes that the unfenced store accepted, and its counter.
    pub(crate) unfenced: (u64, u64),
}

/// A write that the fenced store accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) token: u64,
    /// The value written.
    pub(crate) value: u64,
    pub(crate) writer: String,
}

const READ: &str = "local highest = tonumber(redis.call('HGET', KEYS[1], 'highest') or 0) \
    local unfenced = redis.call('HGET', KEYS[2], 'value') or '0' \
    if tonumber(ARGV[1]) < highest then return {'-', unfenced} end \
    redis.call('HSET', KEYS[1], 'highest', ARGV[1]) \
    return {redis.call('HGET', KEYS[1], 'value') or '0', unfenced}";

const WRITE: &str = "redis.call('HINCRBY', KEYS[2], 'accepted', 1) \
    redis.call('HSET', KEYS[2], 'value', ARGV[4]) \
    local highest = tonumber(redis.call('HGET', KEYS[1], 'highest') or 0) \
    if ARGV[3] == '-' or tonumber(ARGV[1]) < highest then return 0 end \
    redis.call('HSET', KEYS[1], 'highest', ARGV[1], 'value', ARGV[3]) \
    redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[3] .. ' ' .. ARGV[2]) \
    return 1";

/// Returns the name of a writer in the store: its process and hold.
pub(crate) fn writer(process: usize, hold: u64) -> String {
    format!("{process}-{hold}")
}

fn keys(lock: u32) -> [String; 3] {
    [
        format!("fenced:{lock}"),
        format!("unfenced:{lock}"),
        format!("writes:{lock}"),
    ]
}

/// Reads the counters of both stores. Returns `None` if the store failed.
pub(crate) fn read(store: &mut Connection, lock: u32, token: u64) -> Option<Counters> {
    let [fenced, unfenced, _] = keys(lock);
    let token = token.to_string();
    let reply = store.ask(&["EVAL", READ, "2", &fenced, &unfenced, &token]);
    match reply.ok()? {
        Reply::List(read) => Some(Counters {
            fenced: read[0].text().parse().ok(),
            unfenced: read[1].text().parse().ok()?,
        }),
        _ => None,
    }
}

/// Writes both counters plus one. Returns whether the fenced store accepted
/// the write, or `None` if that is unknown.
pub(crate) fn write(
    store: &mut Connection,
    lock: u32,
    token: u64,
    writer: &str,
    read: Counters,
) -> Option<bool> {
    let [fenced, unfenced, writes] = keys(lock);
    let value = read
        .fenced
        .map_or_else(|| "-".to_owned(), |value| (value + 1).to_string());
    let (token, unfenced_value) = (token.to_string(), (read.unfenced + 1).to_string());
    let words = ["EVAL", WRITE, "3", &fenced, &unfenced, &writes, &token];
    let reply = store.ask(&[&words[..], &[writer, &value, &unfenced_value]].concat());
    reply.ok().map(|reply| reply == Reply::Int(1))
}

/// Returns the final content of both stores for one lock.
pub(crate) fn contents(store: &mut Connection, lock: u32) -> Contents {
    let [_, unfenced, writes] = keys(lock);
    let mut ask = |words: &[&str]| store.ask(words).expect("the store is up");
    let parse = |reply: &Reply| {
        let mut words = reply.text().split(' ');
        Some(Write {
            token: words.next()?.parse().ok()?,
            value: words.next()?.parse().ok()?,
            writer: words.next()?.to_owned(),
        })
    };
    let fenced = ask(&["LRANGE", &writes, "0", "-1"]);
    let counts = ask(&["HMGET", &unfenced, "accepted", "value"]);
    let count = |index: usize| match &counts.list()[index] {
        Reply::Text(text) => text.parse().unwrap_or_default(),
        _ => 0,
    };
    Contents {
        fenced: fenced.list().iter().filter_map(parse).collect(),
        unfenced: (count(0), count(1)),
    }
}

//! The coupon sale: a store that counts what was sold and refuses tokens smaller than one it has seen, and beside it one that
//! believes everybody, to see what tokens are for.
//!
//! A seller reads how many were sold, takes its time, and writes one more. In the fenced store that reading shows the token too: whoever
//! comes with a smaller one afterwards is refused. Each store keeps a list of what it accepted.

use testkit::{Connection, Reply};

/// What one who sells has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Not known where the token was refused.
    fenced: Option<u64>,
    unfenced: u64,
}

/// What the stores have in the end, for one lock, in the order in which they accepted it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    pub(crate) fenced: Vec<Entry>,
    /// How many the store without fencing accepted, and how many it believes were sold.
    pub(crate) unfenced: (u64, u64),
}

/// One accepted sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: u64,
    /// How many were sold with it.
    pub(crate) sold: u64,
    pub(crate) seller: String,
}

const READ: &str = "local seen = tonumber(redis.call('HGET', KEYS[1], 'seen') or 0) \
    local unfenced = redis.call('HGET', KEYS[2], 'sold') or '0' \
    if tonumber(ARGV[1]) < seen then return {'-', unfenced} end \
    redis.call('HSET', KEYS[1], 'seen', ARGV[1]) \
    return {redis.call('HGET', KEYS[1], 'sold') or '0', unfenced}";

const WRITE: &str = "redis.call('HINCRBY', KEYS[2], 'accepted', 1) \
    redis.call('HSET', KEYS[2], 'sold', ARGV[4]) \
    local seen = tonumber(redis.call('HGET', KEYS[1], 'seen') or 0) \
    if ARGV[3] == '-' or tonumber(ARGV[1]) < seen then return 0 end \
    redis.call('HSET', KEYS[1], 'seen', ARGV[1], 'sold', ARGV[3]) \
    redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[3] .. ' ' .. ARGV[2]) \
    return 1";

/// Who sells, as the store knows it: process and holding.
pub(crate) fn seller(process: usize, holding: u64) -> String {
    format!("{process}-{holding}")
}

fn keys(lock: u32) -> [String; 3] {
    [
        format!("coupons:{lock}"),
        format!("unfenced:{lock}"),
        format!("sales:{lock}"),
    ]
}

/// Reads how many were sold, in both stores.
pub(crate) fn read(store: &mut Connection, lock: u32, token: u64) -> Option<Read> {
    let [coupons, unfenced, _] = keys(lock);
    let token = token.to_string();
    let answer = store.ask(&["EVAL", READ, "2", &coupons, &unfenced, &token]);
    match answer.ok()? {
        Reply::List(read) => Some(Read {
            fenced: read[0].text().parse().ok(),
            unfenced: read[1].text().parse().ok()?,
        }),
        _ => None,
    }
}

/// Sells one more than was read, in both stores; whether the fenced one accepted it, where that is known.
pub(crate) fn sell(
    store: &mut Connection,
    lock: u32,
    token: u64,
    seller: &str,
    read: Read,
) -> Option<bool> {
    let [coupons, unfenced, sales] = keys(lock);
    let fenced = read
        .fenced
        .map_or_else(|| "-".to_owned(), |sold| (sold + 1).to_string());
    let (token, more) = (token.to_string(), (read.unfenced + 1).to_string());
    let words = ["EVAL", WRITE, "3", &coupons, &unfenced, &sales, &token];
    let answer = store.ask(&[&words[..], &[seller, &fenced, &more]].concat());
    answer.ok().map(|answer| answer == Reply::Int(1))
}

/// The books of one lock.
pub(crate) fn books(store: &mut Connection, lock: u32) -> Books {
    let [_, unfenced, sales] = keys(lock);
    let mut ask = |words: &[&str]| store.ask(words).expect("the store is up");
    let entry = |answer: &Reply| {
        let mut words = answer.text().split(' ');
        Some(Entry {
            token: words.next()?.parse().ok()?,
            sold: words.next()?.parse().ok()?,
            seller: words.next()?.to_owned(),
        })
    };
    let fenced = ask(&["LRANGE", &sales, "0", "-1"]);
    let counts = ask(&["HMGET", &unfenced, "accepted", "sold"]);
    let count = |index: usize| match &counts.list()[index] {
        Reply::Text(text) => text.parse().unwrap_or_default(),
        _ => 0,
    };
    Books {
        fenced: fenced.list().iter().filter_map(entry).collect(),
        unfenced: (count(0), count(1)),
    }
}

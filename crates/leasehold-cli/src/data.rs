//! What is shown of locks, as JSON: one object for each lock.

use std::time::{Duration, SystemTime};

use leasehold::{Holder, Seen, Waiter};
use serde::Serialize;

use crate::say::acts;

/// A lock.
#[derive(Serialize, Debug)]
pub(crate) struct Lock<'a> {
    name: &'a str,
    kind: String,
    holding: u64,
    waiting: Option<u64>,
    holders: Vec<Person<'a>>,
    waiters: Vec<Person<'a>>,
}

/// One who holds or waits.
#[derive(Serialize, Debug)]
pub(crate) struct Person<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    redisson: Option<&'a str>,
    note: Option<&'a str>,
    /// Milliseconds since 1970, by the server's clock.
    since_ms: Option<u64>,
    lease_left_ms: Option<u64>,
    /// Whether it released the lock, which is kept for `lease_left_ms` more.
    kept: bool,
    /// Whether it is connected to the server.
    alive: Option<bool>,
}

impl<'a> From<&'a Seen> for Lock<'a> {
    fn from(seen: &'a Seen) -> Self {
        Self {
            name: &seen.name,
            kind: seen.kind.to_string(),
            holding: seen.holding,
            waiting: seen.waiting,
            holders: seen.holders.iter().map(Person::from).collect(),
            waiters: seen.waiters.iter().map(Person::from).collect(),
        }
    }
}

impl<'a> From<&'a Holder> for Person<'a> {
    fn from(holder: &'a Holder) -> Self {
        Self {
            host: holder.host.as_deref(),
            pid: holder.pid,
            redisson: holder.redisson.as_deref(),
            note: holder.note.as_deref(),
            since_ms: holder.since.map(since_1970),
            lease_left_ms: holder.lease_left.map(millis),
            kept: holder.kept,
            alive: holder.alive,
        }
    }
}

impl<'a> From<&'a Waiter> for Person<'a> {
    fn from(waiter: &'a Waiter) -> Self {
        Self {
            host: waiter.host.as_deref(),
            pid: waiter.pid,
            redisson: waiter.redisson.as_deref(),
            note: waiter.note.as_deref(),
            since_ms: waiter.since.map(since_1970),
            lease_left_ms: None,
            kept: false,
            alive: waiter.alive,
        }
    }
}

fn since_1970(moment: SystemTime) -> u64 {
    millis(
        moment
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Anything as one line. JSON may have characters that speak to a terminal; they are escaped, and mean the same.
pub(crate) fn line(data: &impl Serialize) -> String {
    let json = serde_json::to_string(data).expect("BUG: what is shown can be written as JSON");
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match acts(c) {
            true => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_hostile_text_is_harmless_and_the_same() {
        let hostile = "\n\x1b\u{7f}\u{9b}\u{202e}\u{2069}b\"\\";
        let line = line(&hostile);
        assert!(!line.trim_end().contains(acts), "{line:?}");
        let read: String = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read, hostile);
    }
}

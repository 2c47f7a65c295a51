//! Locks of Redisson as they lie on the server: a hash with a hold count for
//! each `UUID:THREAD`, and `mode` if it is a read-write lock.
//!
//! Inspection recognises them whether or not this client can acquire them.

use std::time::Duration;

use crate::backend::Reply;
use crate::info::{Holder, Process};

/// A held lock of Redisson.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RedissonHash {
    pub(super) holders: Vec<Holder>,
    /// Present if it is a read-write lock.
    pub(super) mode: Option<Mode>,
}

/// The mode in which a read-write lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Returns the mode as stored in the hash.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Reads a mode from the hash; `None` if the word is unknown.
    pub(crate) fn read(word: &str) -> Option<Self> {
        [Self::Read, Self::Write]
            .into_iter()
            .find(|mode| mode.word() == word)
    }
}

/// Returns the owner in a field of a lock's hash, and whether that owner has
/// released the lock.
pub(crate) fn owner_in(field: &str) -> (String, bool) {
    // A writer's field has this suffix.
    let owner = field.trim_end_matches(":write");
    match owner.split_once(":0") {
        Some((client, thread)) if !thread.is_empty() => (format!("{client}:{thread}"), true),
        _ => (owner.to_owned(), false),
    }
}

/// Returns another key or channel of the object at `key`. Redisson adds braces
/// only to names without any.
pub(crate) fn prefixed(what: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{what}:{key}"),
        false => format!("{what}:{{{key}}}"),
    }
}

/// Reads the fields and values of a hash; `None` if it is no lock of Redisson.
pub(super) fn read(fields: &[Reply], remaining: Option<Duration>) -> Option<RedissonHash> {
    let mut lock = RedissonHash {
        holders: Vec::new(),
        mode: None,
    };
    for field in fields.chunks_exact(2) {
        match field[0].text()? {
            "mode" => lock.mode = Some(Mode::read(field[1].text()?)?),
            owner => lock.holders.push(read_owner(owner, remaining)?),
        }
    }
    (!lock.holders.is_empty()).then_some(lock)
}

/// Reads an owner in Redisson's notation: `UUID:THREAD`, or `UUID:THREAD:write`
/// for a writer.
pub(super) fn read_owner(owner: &str, remaining: Option<Duration>) -> Option<Holder> {
    let (owner, released) = owner_in(owner);
    let (id, thread) = owner.split_once(':')?;
    let is_id = id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    let is_thread = !thread.is_empty() && thread.bytes().all(|byte| byte.is_ascii_digit());
    (is_id && is_thread).then(|| Holder {
        process: Process {
            redisson: Some(owner.clone()),
            ..Process::default()
        },
        lease_remaining: remaining,
        released,
        ..Holder::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redisson_owner_is_recognised_by_its_form() {
        let id = "a2b1f3c4-0000-4000-8000-123456789abc";
        for (owner, is_owner) in [
            (format!("{id}:1"), true),
            (format!("{id}:77:write"), true),
            (format!("{id}:"), false),
            (id.to_owned(), false),
            ("name:1".to_owned(), false),
            (format!("{}:1", id.replace('-', "0")), false),
        ] {
            assert_eq!(read_owner(&owner, None).is_some(), is_owner, "{owner}");
        }
    }

    #[test]
    fn hash_of_data_is_no_lock() {
        let fields = ["name", "value"].map(|text| Reply::Bytes(text.into()));
        assert_eq!(read(&fields, None), None);
    }
}

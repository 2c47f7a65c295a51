//! From names to Redisson's keys, channels and owners.
//!
//! # Invariants
//!
//! 1. The lock's key is the prefix and the name as they are; its other keys are those that Redisson derives.
//! 2. In a cluster, a name whose keys would lie in different slots is refused: Redisson fails with it too.

use std::sync::Arc;
use std::time::Duration;

use super::super::keys::{NAME_LIMIT, slot_of};
use super::super::{ChannelName, Keys};
use crate::backend::Slot;
use crate::owner::Owner;

/// How the clients of one fleet map names to keys, and announce.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) prefix: String,
    /// Whether announcements are sharded.
    pub(crate) sharded: bool,
    /// Whether slots belong to different nodes.
    pub(crate) divided: bool,
    /// By how much longer each waits for the one before it in a fair lock's line.
    pub(crate) fair_wait: Duration,
    /// A UUID, as every client of Redisson has one.
    pub(crate) client: Arc<str>,
}

impl Naming {
    /// For the client that 32 random hex digits tell from others.
    pub(crate) fn new(client: &str, divided: bool, fair_wait: Duration) -> Self {
        Self {
            prefix: String::new(),
            sharded: divided,
            divided,
            fair_wait,
            client: uuid(client).into(),
        }
    }

    /// The object `name`, or why it cannot be a name.
    pub(crate) fn object(&self, name: &str) -> Result<Object, String> {
        if name.is_empty() {
            return Err("it is empty".to_owned());
        }
        if name.len() > NAME_LIMIT {
            return Err(format!("longer than {NAME_LIMIT} bytes"));
        }
        let key = format!("{}{name}", self.prefix);
        let object = Object {
            slot: slot_of(key.as_bytes(), b""),
            name_at: self.prefix.len(),
            key,
            sharded: self.sharded,
            client: self.client.clone(),
        };
        self.in_one_slot(&object, &object.prefixed("redisson_lock__channel"))?;
        Ok(object)
    }

    /// The latch `name`: its channel has braces whatever the name has.
    pub(crate) fn latch(&self, name: &str) -> Result<(Object, String), String> {
        let object = self.object(name)?;
        let channel = format!("redisson_countdownlatch__channel__{{{}}}", object.key);
        self.in_one_slot(&object, &channel)?;
        Ok((object, channel))
    }

    fn in_one_slot(&self, object: &Object, other: &str) -> Result<(), String> {
        if self.divided && slot_of(other.as_bytes(), b"") != object.slot {
            return Err("its braces put Redisson's keys for it in different slots".to_owned());
        }
        Ok(())
    }
}

/// One object of Redisson's.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    key: String,
    name_at: usize,
    slot: Slot,
    sharded: bool,
    client: Arc<str>,
}

impl Keys for Object {
    fn name(&self) -> &str {
        &self.key[self.name_at..]
    }

    fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    fn slot(&self) -> Slot {
        self.slot
    }
}

impl Object {
    /// Another key or channel of it.
    pub(super) fn prefixed(&self, what: &str) -> String {
        prefixed(what, &self.key)
    }

    /// What its other keys begin with where what they are comes last.
    pub(super) fn stem(&self) -> String {
        match self.key.contains('{') {
            true => self.key.clone(),
            false => format!("{{{}}}", self.key),
        }
    }

    /// Where it is noted for a while that something was done under this number: as Redisson notes its unlocks.
    pub(super) fn note(&self, number: &str) -> String {
        format!("{}:{number}", self.prefixed("redisson_unlock_latch"))
    }

    /// A thread of this client, as Redisson writes it. No two acquisitions have the same.
    pub(super) fn owner(&self, owner: &Owner) -> String {
        format!("{}:{}", self.client, owner.number())
    }

    /// The command by which this fleet announces.
    pub(super) fn publish(&self) -> &'static [u8] {
        match self.sharded {
            true => b"SPUBLISH",
            false => b"PUBLISH",
        }
    }

    /// Where this fleet announces under `name`.
    pub(super) fn announced<'a>(&self, name: &'a str) -> ChannelName<'a> {
        ChannelName {
            name: name.as_bytes(),
            sharded: self.sharded,
        }
    }
}

/// The owner that stands in place of `owner`, `CLIENT:THREAD`, after a release
/// that keeps the lock: `CLIENT:0THREAD`. No renewal has it, and Java numbers
/// no thread so. To Redisson it is another thread, which never comes back.
pub(super) fn kept(owner: &[u8]) -> Vec<u8> {
    let mut kept = owner.to_vec();
    if let Some(at) = owner.iter().position(|byte| *byte == b':') {
        kept.insert(at + 1, b'0');
    }
    kept
}

/// The owner in a field of a lock's hash, and whether the owner released the
/// lock, which is kept.
pub(crate) fn owner_in(field: &str) -> (String, bool) {
    let owner = field.trim_end_matches(":write");
    match owner.split_once(":0") {
        Some((client, thread)) if !thread.is_empty() => (format!("{client}:{thread}"), true),
        _ => (owner.to_owned(), false),
    }
}

/// Another key or channel of the object at `key`: Redisson adds braces only to names without any.
pub(crate) fn prefixed(what: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{what}:{key}"),
        false => format!("{what}:{{{key}}}"),
    }
}

/// A random UUID (version 4) made of 32 random hex digits.
fn uuid(digits: &str) -> String {
    let (variant, rest) = digits[16..].split_at(1);
    let variant = u8::from_str_radix(variant, 16).unwrap_or(0) & 3 | 8;
    format!(
        "{}-{}-4{}-{variant:x}{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &rest[..3],
        &rest[3..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(divided: bool) -> Naming {
        let client = Owner::random().to_string();
        Naming::new(&client, divided, Duration::from_secs(300))
    }

    #[test]
    fn keys_are_those_of_redisson() {
        let plain = naming(false).object("job").unwrap();
        assert_eq!(plain.key(), b"job");
        assert_eq!(
            plain.prefixed("redisson_lock__channel"),
            "redisson_lock__channel:{job}"
        );
        assert_eq!(plain.stem(), "{job}");
        let tagged = naming(false).object("{user}:job").unwrap();
        assert_eq!(
            tagged.prefixed("redisson_lock__channel"),
            "redisson_lock__channel:{user}:job"
        );
        assert_eq!(tagged.stem(), "{user}:job");
        let mut app = naming(false);
        app.prefix = "app:".to_owned();
        let mapped = app.object("job").unwrap();
        assert_eq!((mapped.key(), mapped.name()), (&b"app:job"[..], "job"));
    }

    #[test]
    fn names_that_redisson_scatters_are_refused_in_a_cluster_only() {
        for name in ["a}b", "a{b", "{}x"] {
            assert!(naming(true).object(name).is_err(), "{name}");
            assert!(naming(false).object(name).is_ok(), "{name}");
        }
        assert!(naming(true).object("{x}").is_ok());
        assert!(naming(true).latch("{x}").is_err());
        assert!(naming(true).latch("x").is_ok());
    }

    #[test]
    fn kept_owner_differs_and_shows_the_same_owner() {
        for owner in ["a2b1:7", "a2b1:10", "a2b1:0"] {
            let kept = String::from_utf8(kept(owner.as_bytes())).unwrap();
            assert_ne!(kept, owner);
            assert_eq!(owner_in(&kept), (owner.to_owned(), true));
            assert_eq!(owner_in(&(kept + ":write")), (owner.to_owned(), true));
            assert_eq!(owner_in(owner), (owner.to_owned(), false));
        }
    }

    #[test]
    fn owners_have_the_form_of_redisson_s_and_differ() {
        let object = naming(false).object("job").unwrap();
        let owner = object.owner(&Owner::random());
        let (client, thread) = owner.split_once(':').unwrap();
        assert!(thread.parse::<i64>().unwrap() >= 0);
        let parts: Vec<_> = client.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&client[14..15], "4");
        assert!("89ab".contains(&client[19..20]));
        assert_ne!(owner, object.owner(&Owner::random()));
    }
}

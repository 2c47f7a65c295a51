//! Redisson's keys, channels and owners.
//!
//! # Invariants
//!
//! 1. The object's key is the prefix and the name as typed; its other keys are
//!    those that Redisson derives.
//! 2. In a cluster, a name whose keys fall in different slots is refused:
//!    Redisson fails with it too.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::slot_of;
use crate::owner::Owner;
use crate::protocol::keys::{LockName, check_length};
use crate::protocol::kind::ChannelName;
use crate::protocol::prefixed;

/// The conventions that all clients of one deployment share.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) prefix: String,
    /// Whether channels are sharded.
    pub(crate) sharded: bool,
    /// Whether slots belong to different nodes.
    pub(crate) divided: bool,
    /// How much longer each waiter of a fair lock may take than the one before.
    pub(crate) fair_wait: Duration,
    /// The client's id, a UUID.
    pub(crate) client: Arc<str>,
}

impl Naming {
    /// Creates the naming of a client with an id of 32 random hex digits.
    pub(crate) fn new(client: &str, divided: bool, fair_wait: Duration) -> Self {
        Self {
            prefix: String::new(),
            sharded: divided,
            divided,
            fair_wait,
            client: uuid(client).into(),
        }
    }

    /// Returns the object `name`, or why the name is invalid.
    pub(crate) fn object(&self, name: &str) -> Result<Object, String> {
        check_length(name)?;
        let key = format!("{}{name}", self.prefix);
        let object = Object {
            lock: LockName::new(key, self.prefix.len()),
            sharded: self.sharded,
            client: self.client.clone(),
        };
        // All derived keys have the same braces, so one of them stands for all.
        self.in_one_slot(&object, &object.prefixed("redisson_lock__channel"))?;
        Ok(object)
    }

    /// Returns the latch `name` and the channel, which always has braces.
    pub(crate) fn latch(&self, name: &str) -> Result<(Object, String), String> {
        let object = self.object(name)?;
        let channel = format!(
            "redisson_countdownlatch__channel__{{{}}}",
            object.lock.key()
        );
        // A name with a hash tag gets a second pair of braces here, and with it
        // perhaps another slot.
        self.in_one_slot(&object, &channel)?;
        Ok((object, channel))
    }

    fn in_one_slot(&self, object: &Object, other: &str) -> Result<(), String> {
        if self.divided && slot_of(other.as_bytes(), b"") != object.lock.slot() {
            return Err("its braces put Redisson's keys in different slots".to_owned());
        }
        Ok(())
    }
}

/// An object of Redisson's.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(super) lock: LockName,
    sharded: bool,
    client: Arc<str>,
}

impl Object {
    pub(super) fn key(&self) -> &[u8] {
        self.lock.key().as_bytes()
    }

    /// Returns another key or channel of the object.
    pub(super) fn prefixed(&self, what: &str) -> String {
        prefixed(what, self.lock.key())
    }

    /// Returns the prefix of its keys that have their purpose as a suffix.
    pub(super) fn stem(&self) -> String {
        let key = self.lock.key();
        match key.contains('{') {
            true => key.to_owned(),
            false => format!("{{{key}}}"),
        }
    }

    /// Returns the key that records that a request with this id was executed.
    /// Redisson records its unlocks at such keys.
    pub(super) fn dedup_key(&self, id: &str) -> String {
        format!("{}:{id}", self.prefixed("redisson_unlock_latch"))
    }

    /// Returns the owner in Redisson's notation: a thread of this client. Each
    /// acquisition has another.
    pub(super) fn owner(&self, owner: &Owner) -> String {
        // 63 bits, because a thread's number is a signed `long` in Java.
        format!("{}:{}", self.client, owner.number())
    }

    /// Returns the publish command of this deployment.
    pub(super) fn publish(&self) -> &'static [u8] {
        match self.sharded {
            true => b"SPUBLISH",
            false => b"PUBLISH",
        }
    }

    /// Returns the channel `name` of this deployment.
    pub(super) fn channel_name<'a>(&self, name: &'a str) -> ChannelName<'a> {
        ChannelName {
            name: name.as_bytes(),
            sharded: self.sharded,
        }
    }
}

/// Returns the owner that replaces `owner`, `CLIENT:THREAD`, after a release
/// with `hold_for`: `CLIENT:0THREAD`. No renewal matches it, and no Java thread
/// has such a number. To Redisson it is another thread, which never unlocks.
pub(super) fn released_owner(owner: &[u8]) -> Vec<u8> {
    let mut released = owner.to_vec();
    if let Some(at) = owner.iter().position(|byte| *byte == b':') {
        // A Java thread's number never begins with a zero.
        released.insert(at + 1, b'0');
    }
    released
}

/// Returns a random UUID (version 4) made of 32 random hex digits.
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
    use crate::protocol::owner_in;

    fn naming(divided: bool) -> Naming {
        let client = Owner::random().to_string();
        Naming::new(&client, divided, Duration::from_secs(300))
    }

    #[test]
    fn keys_match_redisson() {
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
        assert_eq!((mapped.lock.key(), mapped.lock.name()), ("app:job", "job"));
    }

    #[test]
    fn names_across_slots_are_refused_in_clusters() {
        for name in ["a}b", "a{b", "{}x"] {
            assert!(naming(true).object(name).is_err(), "{name}");
            assert!(naming(false).object(name).is_ok(), "{name}");
        }
        assert!(naming(true).object("{x}").is_ok());
        assert!(naming(true).latch("{x}").is_err());
        assert!(naming(true).latch("x").is_ok());
    }

    #[test]
    fn released_owner_differs_and_names_the_owner() {
        for owner in ["a2b1:7", "a2b1:10", "a2b1:0"] {
            let released = String::from_utf8(released_owner(owner.as_bytes())).unwrap();
            assert_ne!(released, owner);
            assert_eq!(owner_in(&released), (owner.to_owned(), true));
            assert_eq!(owner_in(&(released + ":write")), (owner.to_owned(), true));
            assert_eq!(owner_in(owner), (owner.to_owned(), false));
        }
    }

    #[test]
    fn owners_match_redisson_and_differ() {
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

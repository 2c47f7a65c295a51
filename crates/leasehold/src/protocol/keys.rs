//! The keys and channels of a lock.
//!
//! The lock's key is the prefix and the name, exactly as typed, so other
//! libraries can share it. Its other keys begin with `leasehold:` and have a
//! hash tag chosen for the lock's slot.
//!
//! # Invariants
//!
//! 1. All keys and channels of a lock hash to one slot, for any name.
//! 2. Two names never share a key or channel, and no lock's key begins with
//!    `leasehold:`.

use std::fmt::Write;
use std::sync::{Arc, LazyLock, OnceLock};

use crate::backend::{SLOTS, Slot, slot_of};
use crate::error::Error;
use crate::owner::Owner;

/// The maximum length of a lock's name, in bytes.
const NAME_LIMIT: usize = 512;

/// The maximum length of a prefix, in bytes.
const PREFIX_LIMIT: usize = 128;

/// The prefix of all keys of this library that are not a lock's own key.
const RESERVED: &str = "leasehold:";

/// The mapping from a client's names to keys.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    prefix: String,
    counters: Counters,
    /// Identifies this client in channel names.
    client: Arc<str>,
}

/// The counters that issue tokens.
#[derive(Clone, Debug)]
pub(crate) enum Counters {
    /// One counter for all locks, on a server that has all slots.
    One(Arc<str>),
    /// One counter per slot, in that slot.
    PerSlot,
}

impl Counters {
    pub(crate) fn one() -> Self {
        Self::One(counter(0))
    }
}

impl Keyspace {
    pub(crate) fn new(prefix: &str, counters: Counters) -> Result<Self, Error> {
        if prefix.len() > PREFIX_LIMIT {
            let length = prefix.len();
            let why = format!("{length} bytes is above the maximum of {PREFIX_LIMIT}");
            return Err(Error::invalid("prefix", why));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            counters,
            client: Owner::random().to_string().into(),
        })
    }

    /// Returns whether slots belong to different nodes.
    pub(crate) fn divides_slots(&self) -> bool {
        matches!(self.counters, Counters::PerSlot)
    }

    /// Returns the id of this client: 32 random hex digits.
    #[cfg(feature = "redisson")]
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// Returns the key where a node of a quorum records whether it votes.
    pub(crate) fn voter(&self) -> String {
        format!("{RESERVED}voter:{{{}}}:{}", tag_of(0), self.prefix)
    }

    /// Returns the `SCAN` pattern of keys whose name matches `pattern`.
    pub(crate) fn pattern(&self, pattern: &str) -> String {
        // The prefix is literal; only the pattern for names may match several.
        let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
        let mut escaped = String::new();
        for c in self.prefix.chars() {
            if special(c) {
                escaped.push('\\');
            }
            escaped.push(c);
        }
        escaped + pattern
    }

    /// Returns the name of the lock at `key`; `None` if it cannot be a lock's
    /// key.
    pub(crate) fn name_of<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key).ok()?;
        let name = key.strip_prefix(&self.prefix)?;
        // A key that this client could not have created is no lock.
        self.lock(name).is_ok().then_some(name)
    }

    /// Returns the prefix of all names.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the keys of the lock `name`, or why the name is invalid.
    pub(crate) fn lock(&self, name: &str) -> Result<LockKeys, String> {
        check_length(name)?;
        let prefix = &self.prefix;
        // The reserved prefix may span both parts, such as `lease` + `hold:x`.
        if RESERVED
            .bytes()
            .eq(prefix.bytes().chain(name.bytes()).take(RESERVED.len()))
        {
            return Err(format!(
                "its key would begin with the reserved prefix `{RESERVED}`"
            ));
        }
        // The channel ends with the key, and the key with the name: one string
        // holds all three.
        let slot = slot_of(prefix.as_bytes(), name.as_bytes());
        let mut channel = String::with_capacity(RESERVED.len() + 16 + prefix.len() + name.len());
        let _ = write!(
            channel,
            "{RESERVED}wake:{{{}}}:{prefix}{name}",
            tag_of(slot)
        );
        Ok(LockKeys {
            lock: LockName {
                key_at: channel.len() - name.len() - prefix.len(),
                name_at: channel.len() - name.len(),
                text: channel,
                slot,
            },
            counter: match &self.counters {
                Counters::One(counter) => counter.clone(),
                Counters::PerSlot => counter(slot),
            },
        })
    }
}

/// Returns the channel on which a process learns that it may have lost a lock,
/// and the channel's slot.
pub(crate) fn process_channel(process: &str) -> (String, Slot) {
    let channel = format!("{RESERVED}process:{{{process}}}");
    (channel, slot_of(process.as_bytes(), b""))
}

impl Keyspace {
    /// Returns the keys of a lock with a queue, or why the name is invalid.
    pub(crate) fn queue(&self, name: &str) -> Result<QueueKeys, String> {
        let keys = self.lock(name)?;
        Ok(QueueKeys {
            // A sharded channel must be in the lock's slot; a server that has
            // all slots needs only one.
            grant_slot: match &self.counters {
                Counters::One(_) => 0,
                Counters::PerSlot => keys.lock.slot,
            },
            client: self.client.clone(),
            related: OnceLock::new(),
            keys,
        })
    }
}

/// The keys of a lock with a queue, and the channel of this client's grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueKeys {
    keys: LockKeys,
    grant_slot: Slot,
    client: Arc<str>,
    /// Built for the first script: a lock without waiters needs none of them,
    /// and formatting them takes a fifth of an uncontended pair.
    related: OnceLock<Box<RelatedKeys>>,
}

/// The keys that a lock has only while it has a queue, and the channel of
/// grants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RelatedKeys {
    holders: String,
    queue: String,
    heartbeats: String,
    entries: String,
    grants: String,
}

impl QueueKeys {
    pub(super) fn name(&self) -> &LockName {
        &self.keys.lock
    }

    /// Returns the lock's own key.
    pub(crate) fn lock(&self) -> &str {
        self.keys.lock()
    }

    pub(crate) fn slot(&self) -> Slot {
        self.keys.lock.slot
    }

    /// Returns the token counter's key.
    pub(super) fn counter(&self) -> &str {
        &self.keys.counter
    }

    /// Returns the channel that announces a release, for a mutex.
    pub(super) fn wake(&self) -> &str {
        self.keys.channel()
    }

    /// Returns the key of the terms of an election.
    pub(super) fn terms(&self) -> String {
        self.keys.related("terms")
    }

    /// Returns the channel that announces the leaders of an election.
    pub(super) fn election_channel(&self) -> String {
        self.keys.channel().replacen("wake:", "election:", 1)
    }

    /// Returns the channel of this client's grants.
    pub(crate) fn grants(&self) -> &str {
        &self.related().grants
    }

    fn related(&self) -> &RelatedKeys {
        self.related.get_or_init(|| {
            let tag = tag_of(self.grant_slot);
            Box::new(RelatedKeys {
                holders: self.keys.related("holders"),
                queue: self.keys.related("queue"),
                heartbeats: self.keys.related("heartbeats"),
                entries: self.keys.related("entries"),
                grants: format!("{RESERVED}grant:{{{tag}}}:{}", self.client),
            })
        })
    }

    /// Returns all keys, in the order of the scripts' headers.
    pub(crate) fn all(&self) -> [&[u8]; 6] {
        let related = self.related();
        [
            self.lock().as_bytes(),
            related.holders.as_bytes(),
            related.queue.as_bytes(),
            related.heartbeats.as_bytes(),
            related.entries.as_bytes(),
            self.keys.counter.as_bytes(),
        ]
    }
}

fn counter(slot: Slot) -> Arc<str> {
    format!("{RESERVED}token:{{{}}}", tag_of(slot)).into()
}

/// A lock's name, its own key, and the key's slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockName {
    /// Ends with the key, which ends with the name.
    text: String,
    key_at: usize,
    name_at: usize,
    slot: Slot,
}

impl LockName {
    /// Creates the name of the lock whose key is `key`, from `name_at` on.
    #[cfg(feature = "redisson")]
    pub(crate) fn new(key: String, name_at: usize) -> Self {
        Self {
            slot: slot_of(key.as_bytes(), b""),
            text: key,
            key_at: 0,
            name_at,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.text[self.name_at..]
    }

    pub(crate) fn key(&self) -> &str {
        &self.text[self.key_at..]
    }

    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }
}

/// Fails if a lock cannot have this name, and says why.
pub(crate) fn check_length(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("it must not be empty".to_owned()),
        length if length > NAME_LIMIT => Err(format!(
            "{length} bytes is above the maximum of {NAME_LIMIT}"
        )),
        _ => Ok(()),
    }
}

/// The keys and the channel of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys {
    /// The text before the key makes it the channel that announces releases.
    pub(super) lock: LockName,
    pub(crate) counter: Arc<str>,
}

impl LockKeys {
    /// Returns the lock's own key.
    pub(crate) fn lock(&self) -> &str {
        self.lock.key()
    }

    /// Returns the channel that announces releases.
    pub(crate) fn channel(&self) -> &str {
        &self.lock.text
    }

    /// Returns the channel that announces the opening of a latch. It differs
    /// from a mutex's channel: tasks that wait on one channel share a waiter.
    pub(super) fn latch_channel(&self) -> String {
        self.channel().replacen("wake:", "latch:", 1)
    }

    /// Returns another key of this lock, in the same slot.
    pub(super) fn related(&self, what: &str) -> String {
        format!(
            "{RESERVED}{what}:{{{}}}:{}",
            tag_of(self.lock.slot),
            self.lock()
        )
    }
}

/// Returns the smallest decimal number whose hash slot is `slot`.
fn tag_of(slot: Slot) -> u32 {
    // Computed once: a search for one slot takes 16,384 hashes on average.
    static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut tags = vec![None; SLOTS];
        let mut missing = SLOTS;
        for number in 0u32.. {
            let tag = &mut tags[usize::from(slot_of(number.to_string().as_bytes(), b""))];
            if tag.is_none() {
                *tag = Some(number);
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        tags.into_iter().flatten().collect()
    });
    TAGS[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 9] = [
        "a",
        "a}b",
        "a{b",
        "{}x",
        "{}",
        "{user}:1",
        "}{",
        "ключ",
        "a b\r\n\0",
    ];

    fn keyspace(prefix: &str) -> Keyspace {
        Keyspace::new(prefix, Counters::PerSlot).unwrap()
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS as Slot {
            assert_eq!(slot_of(tag_of(slot).to_string().as_bytes(), b""), slot);
        }
    }

    #[test]
    fn all_keys_of_a_lock_share_its_slot() {
        for prefix in ["lock:", "", "{", "{t}:", "}"] {
            for name in NAMES {
                let keys = keyspace(prefix).lock(name).unwrap();
                assert_eq!(keys.lock(), format!("{prefix}{name}"));
                assert_eq!(keys.lock.name(), name);
                assert_eq!(slot_of(keys.lock().as_bytes(), b""), keys.lock.slot);
                assert_eq!(
                    slot_of(keys.counter.as_bytes(), b""),
                    keys.lock.slot,
                    "{name:?}"
                );
                assert_eq!(
                    slot_of(keys.channel().as_bytes(), b""),
                    keys.lock.slot,
                    "{name:?}"
                );
                let queue = keyspace(prefix).queue(name).unwrap();
                for key in queue.all().into_iter().chain([queue.grants().as_bytes()]) {
                    assert_eq!(slot_of(key, b""), keys.lock.slot, "{name:?}");
                }
            }
        }
    }

    #[test]
    fn prefix_is_escaped_and_name_read_from_key() {
        let keyspace = keyspace("a[b]*:");
        assert_eq!(keyspace.pattern("x*"), "a\\[b\\]\\*:x*");
        assert_eq!(keyspace.name_of(b"a[b]*:job"), Some("job"));
        for other in [&b"lock:job"[..], b"a[b]*:", b"a[b]*:\xff"] {
            assert_eq!(keyspace.name_of(other), None);
        }
    }

    #[test]
    fn process_channel_is_in_its_slot() {
        let (channel, slot) = process_channel(&Owner::process());
        assert_eq!(slot_of(channel.as_bytes(), b""), slot);
    }

    #[test]
    fn standalone_server_has_one_counter() {
        let keyspace = Keyspace::new("lock:", Counters::one()).unwrap();
        let counters: std::collections::HashSet<_> = NAMES
            .iter()
            .map(|name| keyspace.lock(name).unwrap().counter)
            .collect();
        assert_eq!(counters.len(), 1);
    }

    #[test]
    fn names_do_not_share_keys_or_channels() {
        let mut seen = std::collections::HashSet::new();
        for name in NAMES {
            let keys = keyspace("lock:").lock(name).unwrap();
            assert!(seen.insert(keys.lock().to_owned()));
            assert!(seen.insert(keys.channel().to_owned()));
        }
    }

    #[test]
    fn invalid_names_and_reserved_keys_are_refused() {
        let long = "x".repeat(513);
        for (prefix, name) in [("lock:", ""), ("lock:", &long), ("", "leasehold:token:{0}")] {
            assert!(keyspace(prefix).lock(name).is_err(), "{prefix}{name}");
        }
        assert!(keyspace("lock:").lock(&"x".repeat(512)).is_ok());
        assert!(Keyspace::new(&long, Counters::one()).is_err());
    }
}

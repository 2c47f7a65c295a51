//! From names to keys: which keys and channels a lock uses.
//!
//! The lock's key is the prefix and the name, exactly as typed, so that other libraries can share it.
//! What else a lock needs lives below `leasehold:` and carries a hash tag chosen for the lock's slot.
//!
//! # Invariants
//!
//! 1. Everything of one lock hashes to one slot, whatever its name is.
//! 2. Two names never share a key or channel, and no lock's key lies below `leasehold:`.

use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use super::Keys;
use crate::backend::Slot;
use crate::error::Error;
use crate::owner::Owner;

/// Longest name of a lock, in bytes.
pub(super) const NAME_LIMIT: usize = 512;

/// Longest prefix, in bytes.
const PREFIX_LIMIT: usize = 128;

/// Where this library keeps what is not a lock's own key.
const RESERVED: &str = "leasehold:";

const SLOTS: usize = 16_384;

/// How a client maps names to keys.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    prefix: String,
    counters: Counters,
    /// Tells this client from others where it is spoken to.
    client: Arc<str>,
}

/// Where tokens are counted.
#[derive(Clone, Debug)]
pub(crate) enum Counters {
    /// In one counter for all, on a server that has all slots.
    One(Arc<str>),
    /// In a counter per slot, each where its locks are.
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
            let why = format!("longer than {PREFIX_LIMIT} bytes");
            return Err(Error::invalid("prefix", why));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            counters,
            client: Owner::random().to_string().into(),
        })
    }

    /// Whether slots belong to different nodes.
    pub(crate) fn divides_slots(&self) -> bool {
        matches!(self.counters, Counters::PerSlot)
    }

    /// What tells this client from others: 32 random hex digits.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// Where a node of several notes whether it may vote.
    pub(crate) fn standing(&self) -> String {
        format!("{RESERVED}voter:{{{}}}:{}", tag_of(0), self.prefix)
    }

    /// What is kept below the prefix, as a server's `SCAN` wants it, of which the name matches `pattern`.
    pub(crate) fn pattern(&self, pattern: &str) -> String {
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

    /// The name of the lock whose key this is; `None` when it cannot be a lock's.
    pub(crate) fn name_of<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key).ok()?;
        let name = key.strip_prefix(&self.prefix)?;
        self.lock(name).is_ok().then_some(name)
    }

    /// What stands before every name.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The keys of the lock `name`, or why it cannot be a name.
    pub(crate) fn lock(&self, name: &str) -> Result<LockKeys, String> {
        if name.is_empty() {
            return Err("it is empty".to_owned());
        }
        if name.len() > NAME_LIMIT {
            return Err(format!("longer than {NAME_LIMIT} bytes"));
        }
        let prefix = &self.prefix;
        if RESERVED
            .bytes()
            .eq(prefix.bytes().chain(name.bytes()).take(RESERVED.len()))
        {
            return Err(format!(
                "its key would begin with `{RESERVED}`, which is reserved"
            ));
        }
        // The channel ends with the key, and the key with the name: one text holds all three.
        let slot = slot_of(prefix.as_bytes(), name.as_bytes());
        let mut channel = String::with_capacity(RESERVED.len() + 16 + prefix.len() + name.len());
        let _ = write!(
            channel,
            "{RESERVED}wake:{{{}}}:{prefix}{name}",
            tag_of(slot)
        );
        Ok(LockKeys {
            lock_at: channel.len() - name.len() - prefix.len(),
            name_at: channel.len() - name.len(),
            channel,
            counter: match &self.counters {
                Counters::One(counter) => counter.clone(),
                Counters::PerSlot => counter(slot),
            },
            slot,
        })
    }
}

/// Where a process hears that one of its leases may be gone: the channel and its slot.
pub(crate) fn process_channel(process: &str) -> (String, Slot) {
    let channel = format!("{RESERVED}process:{{{process}}}");
    (channel, slot_of(process.as_bytes(), b""))
}

impl Keyspace {
    /// The keys of a lock that has a line, or why it cannot be a name.
    pub(crate) fn queue(&self, name: &str) -> Result<Arc<QueueKeys>, String> {
        let keys = self.lock(name)?;
        // Sharded channels must lie where the lock is; on a server that has all slots one is enough.
        let spoken_to = match &self.counters {
            Counters::One(_) => 0,
            Counters::PerSlot => keys.slot,
        };
        Ok(Arc::new(QueueKeys {
            holders: keys.beside("holders"),
            queue: keys.beside("queue"),
            heartbeats: keys.beside("heartbeats"),
            entries: keys.beside("entries"),
            grants: format!("{RESERVED}grant:{{{}}}:{}", tag_of(spoken_to), self.client),
            keys,
        }))
    }
}

/// The keys of a lock that has a line, and where this client hears of grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueKeys {
    keys: LockKeys,
    holders: String,
    queue: String,
    heartbeats: String,
    entries: String,
    grants: String,
}

impl Keys for QueueKeys {
    fn name(&self) -> &str {
        self.keys.name()
    }

    fn key(&self) -> &[u8] {
        self.keys.key()
    }

    fn slot(&self) -> Slot {
        self.keys.slot
    }
}

impl QueueKeys {
    /// The lock's own key.
    pub(crate) fn lock(&self) -> &str {
        self.keys.lock()
    }

    /// Where its tokens are counted.
    pub(super) fn counter(&self) -> &str {
        &self.keys.counter
    }

    /// Where its release is announced if it is a mutex.
    pub(super) fn wake(&self) -> &str {
        self.keys.channel()
    }

    /// Where this client is told that the lock is its own.
    pub(crate) fn grants(&self) -> &str {
        &self.grants
    }

    /// All of them, in the order in which the scripts name them.
    pub(crate) fn all(&self) -> [&[u8]; 6] {
        [
            self.lock().as_bytes(),
            self.holders.as_bytes(),
            self.queue.as_bytes(),
            self.heartbeats.as_bytes(),
            self.entries.as_bytes(),
            self.keys.counter.as_bytes(),
        ]
    }
}

fn counter(slot: Slot) -> Arc<str> {
    format!("{RESERVED}token:{{{}}}", tag_of(slot)).into()
}

/// The keys and the channel of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys {
    channel: String,
    lock_at: usize,
    name_at: usize,
    pub(crate) counter: Arc<str>,
    pub(crate) slot: Slot,
}

impl Keys for LockKeys {
    /// The name as it was given.
    fn name(&self) -> &str {
        &self.channel[self.name_at..]
    }

    fn key(&self) -> &[u8] {
        self.lock().as_bytes()
    }

    fn slot(&self) -> Slot {
        self.slot
    }
}

impl LockKeys {
    /// The lock's own key.
    pub(crate) fn lock(&self) -> &str {
        &self.channel[self.lock_at..]
    }

    /// Where a release is announced.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Where the opening of a latch is announced. Tasks of one process wait
    /// together for what is announced in one channel, so it is not that of a
    /// mutex of this name.
    pub(super) fn latch_channel(&self) -> String {
        self.channel.replacen("wake:", "latch:", 1)
    }

    /// Another key of this lock, in the same slot.
    pub(super) fn beside(&self, what: &str) -> String {
        format!("{RESERVED}{what}:{{{}}}:{}", tag_of(self.slot), self.lock())
    }
}

/// The slot a cluster puts the key `start` + `end` in: of its hash tag if it has one, else of all of it.
pub(super) fn slot_of(start: &[u8], end: &[u8]) -> Slot {
    let mut crc = crc16::State::<crc16::XMODEM>::new();
    if start.iter().chain(end).any(|byte| *byte == b'{') {
        let key = [start, end].concat();
        crc.update(hash_tag(&key).unwrap_or(&key));
    } else {
        crc.update(start);
        crc.update(end);
    }
    crc.get() % (SLOTS as Slot)
}

/// What stands between the first `{` and the first `}` after it, unless that is nothing.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[start..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

/// The smallest decimal number that, taken as a hash tag, falls in `slot`.
fn tag_of(slot: Slot) -> u32 {
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
    fn known_slots_are_those_of_the_servers() {
        // From the cluster specification and `CLUSTER KEYSLOT`.
        assert_eq!(slot_of(b"123456789", b""), 12739);
        assert_eq!(slot_of(b"foo{bar}zap", b""), slot_of(b"bar", b""));
        assert_eq!(slot_of(b"foo{}{bar}", b""), slot_of(b"foo{}{bar}", b""));
        assert_ne!(slot_of(b"foo{}{bar}", b""), slot_of(b"bar", b""));
    }

    #[test]
    fn every_slot_has_a_tag_that_falls_in_it() {
        for slot in 0..SLOTS as Slot {
            assert_eq!(slot_of(tag_of(slot).to_string().as_bytes(), b""), slot);
        }
    }

    #[test]
    fn all_of_one_lock_lies_in_one_slot_whatever_its_name() {
        for prefix in ["lock:", "", "{", "{t}:", "}"] {
            for name in NAMES {
                let keys = keyspace(prefix).lock(name).unwrap();
                assert_eq!(keys.lock(), format!("{prefix}{name}"));
                assert_eq!(keys.name(), name);
                assert_eq!(slot_of(keys.lock().as_bytes(), b""), keys.slot);
                assert_eq!(slot_of(keys.counter.as_bytes(), b""), keys.slot, "{name:?}");
                assert_eq!(
                    slot_of(keys.channel().as_bytes(), b""),
                    keys.slot,
                    "{name:?}"
                );
                let queue = keyspace(prefix).queue(name).unwrap();
                for key in queue.all().into_iter().chain([queue.grants().as_bytes()]) {
                    assert_eq!(slot_of(key, b""), keys.slot, "{name:?}");
                }
            }
        }
    }

    #[test]
    fn a_name_is_found_in_its_key_and_a_prefix_matches_only_itself() {
        let keyspace = keyspace("a[b]*:");
        assert_eq!(keyspace.pattern("x*"), "a\\[b\\]\\*:x*");
        assert_eq!(keyspace.name_of(b"a[b]*:job"), Some("job"));
        for other in [&b"lock:job"[..], b"a[b]*:", b"a[b]*:\xff"] {
            assert_eq!(keyspace.name_of(other), None);
        }
    }

    #[test]
    fn the_channel_of_a_process_lies_in_its_slot() {
        let (channel, slot) = process_channel(&Owner::process());
        assert_eq!(slot_of(channel.as_bytes(), b""), slot);
    }

    #[test]
    fn a_server_on_its_own_has_one_counter() {
        let keyspace = Keyspace::new("lock:", Counters::one()).unwrap();
        let counters: std::collections::HashSet<_> = NAMES
            .iter()
            .map(|name| keyspace.lock(name).unwrap().counter)
            .collect();
        assert_eq!(counters.len(), 1);
    }

    #[test]
    fn different_names_have_different_keys_and_channels() {
        let mut seen = std::collections::HashSet::new();
        for name in NAMES {
            let keys = keyspace("lock:").lock(name).unwrap();
            assert!(seen.insert(keys.lock().to_owned()));
            assert!(seen.insert(keys.channel().to_owned()));
        }
    }

    #[test]
    fn names_out_of_range_and_reserved_keys_are_refused() {
        let long = "x".repeat(513);
        for (prefix, name) in [("lock:", ""), ("lock:", &long), ("", "leasehold:token:{0}")] {
            assert!(keyspace(prefix).lock(name).is_err(), "{prefix}{name}");
        }
        assert!(keyspace("lock:").lock(&"x".repeat(512)).is_ok());
        assert!(Keyspace::new(&long, Counters::one()).is_err());
    }
}

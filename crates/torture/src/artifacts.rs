//! What a run leaves behind: the input of the checkers.

use crate::fenced_store::Contents;
use crate::history::Event;

/// Prefixes of keys that outlive their locks: token counters, the state and the
/// votes of a quorum's node, and the tokens of Redisson's fenced locks.
const PERMANENT: [&str; 4] = [
    "leasehold:token:",
    "leasehold:voter:",
    "leasehold:votes:",
    "redisson_lock_token:",
];

#[derive(Default)]
pub(crate) struct Artifacts {
    pub(crate) histories: Vec<Vec<Event>>,
    /// The content of the store, by lock.
    pub(crate) store: Vec<Contents>,
    /// The keys of all servers, with their TTL in milliseconds.
    pub(crate) keys: Vec<(String, i64)>,
    /// The channels of all servers that have a subscriber.
    pub(crate) channels: Vec<String>,
    /// Locks whose full capacity a single client could not acquire at the end.
    pub(crate) unavailable: Vec<u32>,
    /// How many requests were cut, dropped, duplicated or delayed.
    pub(crate) faulty_requests: u64,
    /// By how many bytes the servers' memory grew.
    pub(crate) grown: i64,
}

/// Returns whether a key is meant to outlive its lock.
pub(crate) fn is_permanent(key: &str) -> bool {
    PERMANENT.iter().any(|prefix| key.starts_with(prefix))
}

//! One inspection: of the named locks one by one, or of all locks by kind.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use leasehold::{Client, Error, LockInfo, LockKind, Run};

use crate::{duration, jobs};

/// The kinds that are exported even if no lock of the kind exists. The JSON
/// output uses the same names.
const KINDS: [&str; 9] = [
    "mutex",
    "fair_mutex",
    "semaphore",
    "rw_lock",
    "latch",
    "redisson_lock",
    "redisson_fair_lock",
    "redisson_read_write_lock",
    "foreign",
];

/// Which locks to inspect.
pub(super) struct Selection {
    /// The locks to inspect, and no others: a scan reads every key of the
    /// server. If it is empty, all locks are counted by kind.
    pub(super) names: BTreeSet<String>,
    /// Whether strings of other libraries are data, because the prefix is
    /// empty.
    pub(super) skip_foreign: bool,
}

/// The result of one inspection.
#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) named: BTreeMap<String, NamedLock>,
    /// The named locks that cannot be inspected, and why: a key holds data of
    /// another type, for example.
    pub(super) failed: BTreeMap<String, Error>,
    /// The sums of all locks by kind, also of kinds without locks. Empty if
    /// locks are named.
    pub(super) sums: BTreeMap<&'static str, Sum>,
}

/// A lock that is exported separately.
#[derive(Debug)]
pub(super) struct NamedLock {
    /// `None` if the lock has neither holders nor waiters.
    pub(super) kind: Option<&'static str>,
    pub(super) gauges: Gauges,
    /// The last run of the job of this name.
    pub(super) last_run: Option<Run>,
}

/// The locks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) locks: u64,
    pub(super) gauges: Gauges,
}

/// The values of one lock, or the sums of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gauges {
    pub(super) holders: u64,
    /// `None` if it is unknown.
    pub(super) waiters: Option<u64>,
    /// `None` if it is unknown.
    pub(super) oldest_hold: Option<Duration>,
    /// Holders that are known to be disconnected.
    pub(super) disconnected: u64,
}

impl Inspection {
    /// Inspects the locks. Requests are sent one after the other.
    pub(super) async fn take(client: &Client, selection: &Selection) -> Result<Self, Error> {
        let mut inspection = Self {
            named: BTreeMap::new(),
            failed: BTreeMap::new(),
            sums: BTreeMap::new(),
        };
        match selection.names.is_empty() {
            true => inspection.add_all(client, selection).await?,
            false => {
                for name in &selection.names {
                    inspection.add_named(client, name).await?;
                }
            }
        }
        Ok(inspection)
    }

    async fn add_named(&mut self, client: &Client, name: &str) -> Result<(), Error> {
        match NamedLock::inspect(client, name).await {
            Ok(lock) => {
                self.named.insert(name.to_owned(), lock);
            }
            // The server does not serve any lock.
            Err(error) if error.is_transient() || matches!(error, Error::Denied(_)) => {
                return Err(error);
            }
            Err(error) => {
                self.failed.insert(name.to_owned(), error);
            }
        }
        Ok(())
    }

    async fn add_all(&mut self, client: &Client, selection: &Selection) -> Result<(), Error> {
        self.sums = KINDS.map(|kind| (kind, Sum::NONE)).into();
        // A scan may return a name twice. Hashes need less memory than names.
        let hasher = RandomState::new();
        let mut counted = HashSet::new();
        let mut scan = client.scan("*");
        while let Some(page) = scan.next().await? {
            for lock in page {
                let skipped = selection.skip_foreign && lock.kind == LockKind::Foreign;
                if skipped || !counted.insert(hasher.hash_one(&lock.name)) {
                    continue;
                }
                if let Some(lock) = with_all_holders(client, lock).await? {
                    let sum = self.sums.entry(lock.kind.label()).or_insert(Sum::NONE);
                    sum.add(&lock);
                }
            }
        }
        Ok(())
    }
}

impl NamedLock {
    async fn inspect(client: &Client, name: &str) -> Result<Self, Error> {
        let lock = client.inspect(name).await?;
        Ok(Self {
            kind: lock.as_ref().map(|lock| lock.kind.label()),
            gauges: lock.as_ref().map_or(Gauges::NONE, Gauges::of),
            last_run: jobs::last_run(client, name).await?,
        })
    }
}

impl Sum {
    const NONE: Self = Self {
        locks: 0,
        gauges: Gauges::NONE,
    };

    fn add(&mut self, lock: &LockInfo) {
        let gauges = Gauges::of(lock);
        self.gauges = match self.locks {
            // A kind of which nothing is known has no values, not 0.
            0 => gauges,
            _ => self.gauges.plus(gauges),
        };
        self.locks += 1;
    }
}

impl Gauges {
    /// The values of a free lock.
    pub(super) const NONE: Self = Self {
        holders: 0,
        waiters: Some(0),
        oldest_hold: Some(Duration::ZERO),
        disconnected: 0,
    };

    fn of(lock: &LockInfo) -> Self {
        let ages = lock
            .holders
            .iter()
            .filter_map(|holder| holder.process.since);
        let oldest_hold = ages.map(duration::since).max();
        let disconnected = lock.holders.iter();
        let disconnected = disconnected.filter(|holder| holder.process.connected == Some(false));
        Self {
            holders: lock.holder_count,
            waiters: lock.waiter_count,
            oldest_hold: match lock.holder_count {
                0 => Some(Duration::ZERO),
                _ => oldest_hold,
            },
            disconnected: disconnected.count() as u64,
        }
    }

    /// Adds the values that are known. A sum is unknown if no value is known.
    fn plus(self, other: Self) -> Self {
        let waiters = self.waiters.into_iter().chain(other.waiters);
        Self {
            holders: self.holders + other.holders,
            waiters: waiters.reduce(|sum, count| sum + count),
            oldest_hold: self.oldest_hold.max(other.oldest_hold),
            disconnected: self.disconnected + other.disconnected,
        }
    }
}

/// Returns the lock with all holders. A scan lists only the first one.
///
/// Returns `None` if the lock was released since then.
async fn with_all_holders(client: &Client, lock: LockInfo) -> Result<Option<LockInfo>, Error> {
    if lock.holder_count <= lock.holders.len() as u64 {
        return Ok(Some(lock));
    }
    match client.inspect(&lock.name).await {
        // Its key holds other data now.
        Err(Error::WrongType { .. }) => Ok(None),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_names_are_those_of_json() {
        let (used, permits) = (1, 3);
        let kinds = [
            LockKind::Mutex,
            LockKind::FairMutex,
            LockKind::Semaphore { used, permits },
            LockKind::RwLock,
            LockKind::Latch { remaining: 1 },
            LockKind::RedissonLock,
            LockKind::RedissonFairLock,
            LockKind::RedissonReadWriteLock,
            LockKind::Foreign,
        ];
        assert_eq!(kinds.map(|kind| kind.label()), KINDS);
        for kind in kinds {
            let json = serde_json::to_value(kind).expect("JSON");
            assert_eq!(json["kind"], kind.label());
        }
    }

    #[test]
    fn sum_ignores_unknown_values() {
        let unknown = Gauges {
            holders: 2,
            waiters: None,
            oldest_hold: None,
            disconnected: 0,
        };
        let known = Gauges {
            holders: 1,
            waiters: Some(3),
            oldest_hold: Some(Duration::from_secs(5)),
            disconnected: 1,
        };
        let expected = Gauges {
            holders: 3,
            ..known
        };
        assert_eq!(unknown.plus(known), expected);
        assert_eq!(known.plus(unknown), expected);
        let unknown_sum = unknown.plus(unknown);
        assert_eq!((unknown_sum.waiters, unknown_sum.oldest_hold), (None, None));
    }
}

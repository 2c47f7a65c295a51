//! The state of `top`: the first locks in the sort order, the selection, and
//! the meaning of the keys.

use std::cmp::Reverse;
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Client, Error, Holder, LockInfo, LockKind};

use crate::args::{SortKey, TopArgs};
use crate::output::{CliError, revoked};

/// The number of locks in the list. All others are only counted.
const MAX_LOCKS: usize = 500;

pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) filter: String,
    pub(super) sort: SortKey,
    /// The index of the selected lock.
    pub(super) selection: usize,
    pub(super) snapshot: Snapshot,
    /// Shown instead of the keys until the next refresh.
    pub(super) message: Option<String>,
    pub(super) allow_release: bool,
    interval: Duration,
    skip_foreign: bool,
}

/// The meaning of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    List,
    Detail,
    Filter,
    /// Asks whether to revoke the lock of this name.
    Confirm(String),
}

/// What a scan selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    sort: SortKey,
    filter: String,
    skip_foreign: bool,
    /// The lock to inspect in full.
    detail: Option<String>,
    pub(super) interval: Duration,
}

/// The result of one scan.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) locks: Vec<LockInfo>,
    pub(super) held: u64,
    pub(super) waiters: u64,
    /// The number of locks with a disconnected holder.
    pub(super) disconnected: u64,
    pub(super) scan_time: Duration,
    pub(super) detail: Option<LockInfo>,
}

impl Snapshot {
    pub(super) async fn take(client: &Client, pattern: &str, query: &Query) -> Result<Self, Error> {
        let start = Instant::now();
        let mut snapshot = Self::default();
        let mut scan = client.scan(pattern);
        while let Some(page) = scan.next().await? {
            for lock in page {
                snapshot.add(lock, query);
            }
            snapshot.keep_first(query.sort, MAX_LOCKS * 4);
        }
        snapshot.keep_first(query.sort, MAX_LOCKS);
        if let Some(name) = &query.detail {
            snapshot.detail = client.inspect(name).await?;
        }
        snapshot.scan_time = start.elapsed();
        Ok(snapshot)
    }

    fn add(&mut self, lock: LockInfo, query: &Query) {
        let skipped = query.skip_foreign && lock.kind == LockKind::Foreign;
        if skipped || !lock.name.contains(&query.filter) {
            return;
        }
        self.held += u64::from(lock.holder_count > 0);
        self.waiters += lock.waiter_count.unwrap_or_default();
        let disconnected = |holder: &Holder| holder.process.connected == Some(false);
        self.disconnected += u64::from(lock.holders.iter().any(disconnected));
        self.locks.push(lock);
    }

    fn keep_first(&mut self, sort: SortKey, count: usize) {
        let since = |lock: &LockInfo| {
            let holder = lock.holders.first().and_then(|holder| holder.process.since);
            holder.unwrap_or_else(SystemTime::now)
        };
        let waiters = |lock: &LockInfo| Reverse(lock.waiter_count.unwrap_or_default());
        match sort {
            SortKey::Waiters => self
                .locks
                .sort_by_cached_key(|lock| (waiters(lock), since(lock))),
            SortKey::Held => self.locks.sort_by_cached_key(since),
            SortKey::Name => self.locks.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        // A scan may return the same lock twice.
        self.locks.dedup_by(|a, b| a.name == b.name);
        self.locks.truncate(count);
    }
}

impl State {
    pub(super) fn new(args: &TopArgs, skip_foreign: bool) -> Self {
        Self {
            mode: Mode::List,
            filter: String::new(),
            sort: args.sort,
            selection: 0,
            snapshot: Snapshot::default(),
            message: Some("scanning …".to_owned()),
            allow_release: args.allow_release,
            interval: args.interval,
            skip_foreign,
        }
    }

    pub(super) fn query(&self) -> Query {
        Query {
            sort: self.sort,
            filter: self.filter.clone(),
            skip_foreign: self.skip_foreign,
            detail: match self.mode {
                Mode::Detail => self.selected().map(|lock| lock.name.clone()),
                _ => None,
            },
            interval: self.interval,
        }
    }

    /// Returns the selected lock.
    pub(super) fn selected(&self) -> Option<&LockInfo> {
        self.snapshot.locks.get(self.selection)
    }

    /// Replaces the snapshot. The selection follows its lock to a new row.
    pub(super) fn on_refresh(&mut self, snapshot: Snapshot) {
        let name = self.selected().map(|lock| lock.name.clone());
        self.snapshot = snapshot;
        let locks = &self.snapshot.locks;
        let index = name.and_then(|name| locks.iter().position(|lock| lock.name == name));
        let last = locks.len().saturating_sub(1);
        self.selection = index.unwrap_or(self.selection).min(last);
        self.message = None;
    }

    pub(super) fn on_failure(&mut self, error: &Error) {
        self.message = Some(format!("refresh failed, locks are outdated: {error}"));
    }

    pub(super) fn move_selection(&mut self, by: isize) {
        let last = self.snapshot.locks.len().saturating_sub(1);
        self.selection = self.selection.saturating_add_signed(by).min(last);
    }

    pub(super) fn next_sort(&mut self) {
        self.sort = match self.sort {
            SortKey::Waiters => SortKey::Held,
            SortKey::Held => SortKey::Name,
            SortKey::Name => SortKey::Waiters,
        };
        self.snapshot.keep_first(self.sort, MAX_LOCKS);
    }

    pub(super) fn clear_filter(&mut self) {
        self.filter.clear();
        self.mode = Mode::List;
    }

    pub(super) fn confirm_release(&mut self) {
        if !self.allow_release {
            self.message = Some("read-only: restart with --allow-release".to_owned());
        } else if let Some(lock) = self.selected() {
            self.mode = Mode::Confirm(lock.name.clone());
        }
    }

    pub(super) fn on_release(&mut self, name: &str, outcome: Result<Vec<Holder>, Error>) {
        self.message = Some(match outcome {
            Ok(holders) if holders.is_empty() => format!("`{name}` is not held"),
            Ok(holders) => revoked(name, &holders[0]),
            Err(error) => CliError::from(error).to_string(),
        });
    }
}

//! What `top` knows and shows: the first locks in some order, which one is chosen, what is being asked.

use std::time::{Duration, Instant, SystemTime};

use leasehold::{Client, Error, Holder, LockInfo, LockKind};

use crate::args::{SortKey, TopArgs};
use crate::output::{CliError, revoked};

/// How many locks are kept; the others are only counted.
const KEPT: usize = 500;

pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) filter: String,
    pub(super) sort: SortKey,
    pub(super) chosen: usize,
    pub(super) found: Found,
    /// What is said in place of the keys, until the next look.
    pub(super) message: Option<String>,
    pub(super) allow_release: bool,
    interval: Duration,
    only_locks: bool,
}

/// What the keys are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    List,
    Detail,
    Filter,
    Confirm(String),
}

/// What is to be looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    sort: SortKey,
    filter: String,
    only_locks: bool,
    /// Of which lock everything is wanted.
    detail: Option<String>,
    pub(super) interval: Duration,
}

/// What one walk through all locks has found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) locks: Vec<LockInfo>,
    pub(super) held: u64,
    pub(super) waiting: u64,
    pub(super) gone: u64,
    pub(super) took: Duration,
    pub(super) detail: Option<LockInfo>,
}

impl Found {
    pub(super) async fn look(client: &Client, pattern: &str, order: &Order) -> Result<Self, Error> {
        let start = Instant::now();
        let mut found = Self::default();
        let mut scan = client.scan(pattern);
        while let Some(page) = scan.next().await? {
            for seen in page {
                found.take_in(seen, order);
            }
            found.keep_first(order.sort, KEPT * 4);
        }
        found.keep_first(order.sort, KEPT);
        if let Some(name) = &order.detail {
            found.detail = client.inspect(name).await?;
        }
        found.took = start.elapsed();
        Ok(found)
    }

    fn take_in(&mut self, seen: LockInfo, order: &Order) {
        let no_lock = order.only_locks && seen.kind == LockKind::Foreign;
        if no_lock || !seen.name.contains(&order.filter) {
            return;
        }
        self.held += u64::from(seen.holder_count > 0);
        self.waiting += seen.waiter_count.unwrap_or_default();
        let gone = |holder: &Holder| holder.connected == Some(false);
        self.gone += u64::from(seen.holders.iter().any(gone));
        self.locks.push(seen);
    }

    fn keep_first(&mut self, sort: SortKey, count: usize) {
        let since = |seen: &LockInfo| {
            let holder = seen.holders.first().and_then(|holder| holder.since);
            holder.unwrap_or_else(SystemTime::now)
        };
        let waiting = |seen: &LockInfo| std::cmp::Reverse(seen.waiter_count.unwrap_or_default());
        match sort {
            SortKey::Waiters => self
                .locks
                .sort_by_cached_key(|seen| (waiting(seen), since(seen))),
            SortKey::Held => self.locks.sort_by_cached_key(since),
            SortKey::Name => self.locks.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        // A walk may come across the same lock twice.
        self.locks.dedup_by(|a, b| a.name == b.name);
        self.locks.truncate(count);
    }
}

impl State {
    pub(super) fn new(args: &TopArgs, only_locks: bool) -> Self {
        Self {
            mode: Mode::List,
            filter: String::new(),
            sort: args.sort,
            chosen: 0,
            found: Found::default(),
            message: Some("looking …".to_owned()),
            allow_release: args.allow_release,
            interval: args.interval,
            only_locks,
        }
    }

    pub(super) fn order(&self) -> Order {
        Order {
            sort: self.sort,
            filter: self.filter.clone(),
            only_locks: self.only_locks,
            detail: match self.mode {
                Mode::Detail => self.chosen().map(|seen| seen.name.clone()),
                _ => None,
            },
            interval: self.interval,
        }
    }

    /// The lock that is chosen.
    pub(super) fn chosen(&self) -> Option<&LockInfo> {
        self.found.locks.get(self.chosen)
    }

    /// Stays with the lock that is chosen, wherever it has moved to.
    pub(super) fn found(&mut self, found: Found) {
        let name = self.chosen().map(|seen| seen.name.clone());
        self.found = found;
        let locks = &self.found.locks;
        let at = name.and_then(|name| locks.iter().position(|seen| seen.name == name));
        self.chosen = at.unwrap_or(self.chosen).min(locks.len().saturating_sub(1));
        self.message = None;
    }

    pub(super) fn failed(&mut self, error: &Error) {
        self.message = Some(format!("what is shown is old: {error}"));
    }

    pub(super) fn select(&mut self, by: isize) {
        let last = self.found.locks.len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(by).min(last);
    }

    pub(super) fn sort_otherwise(&mut self) {
        self.sort = match self.sort {
            SortKey::Waiters => SortKey::Held,
            SortKey::Held => SortKey::Name,
            SortKey::Name => SortKey::Waiters,
        };
        self.found.keep_first(self.sort, KEPT);
    }

    pub(super) fn drop_filter(&mut self) {
        self.filter.clear();
        self.mode = Mode::List;
    }

    pub(super) fn ask_to_release(&mut self) {
        if !self.allow_release {
            self.message = Some("only looking: start with --allow-release".to_owned());
        } else if let Some(seen) = self.chosen() {
            self.mode = Mode::Confirm(seen.name.clone());
        }
    }

    pub(super) fn released(&mut self, name: &str, outcome: Result<Vec<Holder>, Error>) {
        self.message = Some(match outcome {
            Ok(holders) if holders.is_empty() => format!("nobody held `{name}` any more"),
            Ok(holders) => revoked(name, &holders[0]),
            Err(error) => CliError::from(error).to_string(),
        });
    }
}

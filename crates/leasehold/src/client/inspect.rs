//! Looking at locks from outside: who holds which, who waits, who is still there; and taking one away by force.
//!
//! Looking changes nothing and never keeps the server busy: it reads what every client of the same prefix has written,
//! a page at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Client;
use crate::backend::Slot;
use crate::error::Error;
use crate::info::{Holder, LockInfo, LockKind, Waiter};
use crate::lease::Engine;
use crate::protocol::redisson::Mode;
use crate::protocol::{
    Keys, Kind, LockSnapshot, Notified, Participant, Probe, QueueKeys, QueueParams, Queued,
    SingleKey, is_connected, page,
};

/// Of how many holders and how many waiters the particulars are told.
const MOST: u64 = 1000;

/// How many keys a server looks at for one page; far below a millisecond of its time.
const PAGE: u64 = 500;

/// How often one who waits until a lock is free looks, where nobody tells it.
const LOOK: Duration = Duration::from_millis(500);

impl Client {
    /// What is under `name`: which kind of lock, who holds it and who waits. `None` when nobody does.
    ///
    /// Needs the rights to `GETRANGE`, and to `PUBSUB SHARDNUMSUB` to know who is there; for locks of Redisson's also to
    /// `HSCAN`, `LLEN` and `LRANGE`.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// if let Some(lock) = client.inspect("nightly-import").await? {
    ///     for holder in &lock.holders {
    ///         println!("{}: held by {holder}, there: {:?}", lock.name, holder.connected);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] when what is there is no lock; or the server cannot be asked.
    pub async fn inspect(&self, name: &str) -> Result<Option<LockInfo>, Error> {
        let Some(mut snapshot) = self.snapshot(name).await? else {
            return Ok(None);
        };
        know_who_is_there(&self.engine, std::slice::from_mut(&mut snapshot)).await?;
        Ok(Some(LockInfo::new(name, snapshot)))
    }

    /// All locks of this client's prefix whose names match `pattern`, a glob of `*`, `?` and `[…]`; page by page, on
    /// every node of a cluster.
    ///
    /// What is taken or released meanwhile may be seen or not, and a name may be seen twice. Needs the right to `SCAN`
    /// besides those of [`inspect`](Self::inspect).
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let mut scan = client.scan("coupon:*");
    /// while let Some(page) = scan.next().await? {
    ///     for lock in page {
    ///         println!("{} is held by {}", lock.name, lock.holder_count);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn scan(&self, pattern: &str) -> Scan {
        Scan {
            client: self.clone(),
            pattern: pattern.to_owned(),
            nodes: None,
            cursor: 0,
        }
    }

    /// Waits until nobody holds what is under `name`, for at most `limit`. It may be taken again at once: who needs
    /// the lock takes it.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when the limit is over; otherwise those of [`inspect`](Self::inspect).
    pub async fn wait_until_free(&self, name: &str, limit: Option<Duration>) -> Result<(), Error> {
        let mutex = self.as_mutex(name)?;
        let start = std::time::Instant::now();
        loop {
            let holder = match self.inspect(name).await? {
                Some(seen) if seen.holder_count > 0 => seen.holders.into_iter().next(),
                _ => return Ok(()),
            };
            let waited = start.elapsed();
            let left = limit.map_or(LOOK, |limit| limit.saturating_sub(waited).min(LOOK));
            if left.is_zero() {
                return Err(Error::Timeout {
                    name: name.to_owned(),
                    waited,
                    holder: holder.map(Box::new),
                    position: None,
                });
            }
            // A mutex is announced; of others the end is seen by looking.
            let hints: &dyn Notified = &mutex;
            match self
                .engine
                .watch(hints, mutex.slot(), name, Some(left))
                .await
            {
                Ok(()) | Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the lock away from all who hold it now, whatever they are doing, and tells them at once: their
    /// [`lost`](crate::Lease::lost) fires. Those who held it are returned; none when it was free.
    ///
    /// **Two may then work at the same time**: the one who lost it until it has stopped, and the next. Only what
    /// refuses old [tokens](crate::Token) is safe from that. Holders of other libraries are not told.
    ///
    /// A lock that is only [`released`](Holder::released) becomes free at once. No
    /// process works under it, and none is notified.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock taken away or not, and the holders told or not; those who were not find out
    /// at their next renewal.
    ///
    /// # Errors
    ///
    /// As for [`inspect`](Self::inspect), and [`Error::Invalid`] for a latch, or for a value of another library that has no
    /// expiry: locks have one, data often has none. After [`Error::OutcomeUnknown`] it may have happened.
    pub async fn force_release(&self, name: &str) -> Result<Vec<Holder>, Error> {
        let Some(snapshot) = self.snapshot(name).await? else {
            return Ok(Vec::new());
        };
        let kind: Box<dyn Kind> = match snapshot.kind {
            LockKind::Foreign if !snapshot.expires() => {
                let why = "its key holds a value without an expiry, which is data and no lock";
                return Err(Error::invalid("name", why));
            }
            LockKind::Mutex | LockKind::Foreign => Box::new(self.as_mutex(name)?),
            LockKind::FairMutex | LockKind::Semaphore { .. } | LockKind::RwLock => {
                Box::new(Queued::new(self.keys(name)?, QueueParams::RELEASE_ONLY))
            }
            LockKind::RedissonLock
            | LockKind::RedissonFairLock
            | LockKind::RedissonReadWriteLock => {
                return self.force_redisson(name, snapshot).await;
            }
            LockKind::Latch { .. } => {
                return Err(Error::invalid("name", "a latch is held by nobody"));
            }
        };
        let mut freed = Vec::new();
        for participant in snapshot.holders {
            if self.engine.take_away(&*kind, &participant).await? {
                freed.push(participant.holder);
            }
        }
        Ok(freed)
    }

    async fn force_redisson(
        &self,
        name: &str,
        snapshot: LockSnapshot,
    ) -> Result<Vec<Holder>, Error> {
        let redisson = self.redisson().prefix("");
        let key = format!("{}{name}", self.keyspace.prefix());
        let done = match snapshot.kind {
            LockKind::RedissonFairLock => redisson.fair_lock(&key).force_unlock().await?,
            LockKind::RedissonReadWriteLock => {
                let lock = redisson.read_write_lock(&key);
                match snapshot.mode {
                    Some(Mode::Write) => lock.write_lock().force_unlock().await?,
                    _ => lock.read_lock().force_unlock().await?,
                }
            }
            _ => redisson.lock(&key).force_unlock().await?,
        };
        let holders = snapshot
            .holders
            .into_iter()
            .map(|participant| participant.holder);
        Ok(holders.filter(|_| done).collect())
    }

    /// The calls of what is under `name` if it is one string.
    fn as_mutex(&self, name: &str) -> Result<SingleKey, Error> {
        let keys = self.keyspace.lock(name);
        let keys = keys.map_err(|why| Error::invalid("name", why))?;
        Ok(SingleKey::new(keys))
    }

    fn keys(&self, name: &str) -> Result<Arc<QueueKeys>, Error> {
        let keys = self.keyspace.queue(name);
        keys.map_err(|why| Error::invalid("name", why))
    }

    async fn snapshot(&self, name: &str) -> Result<Option<LockSnapshot>, Error> {
        let keys = self.keys(name)?;
        let ask = |call| self.engine.ask(keys.slot(), name, call);
        let seen = match ask(Probe::key(&keys)).await? {
            Probe::FollowUp(more) => ask(Probe::follow_up(&keys, more, MOST)).await?,
            seen => seen,
        };
        match seen {
            Probe::Nothing => Ok(None),
            Probe::Lock(snapshot) => Ok(Some(snapshot)),
            Probe::FollowUp(_) | Probe::Data => Err(Error::WrongType {
                name: name.to_owned(),
            }),
        }
    }
}

/// A walk through all locks, from [`Client::scan`].
#[must_use = "nothing is looked at until `next` is called"]
pub struct Scan {
    client: Client,
    pattern: String,
    /// Slots of the nodes still to be walked through, the one at hand last.
    nodes: Option<Vec<Slot>>,
    cursor: u64,
}

impl Scan {
    /// The next page, which may be empty; `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the same page is read again.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked; calling again goes on from the same page.
    pub async fn next(&mut self) -> Result<Option<Vec<LockInfo>>, Error> {
        let engine = self.client.engine.clone();
        let nodes = match &mut self.nodes {
            Some(nodes) => nodes,
            none => none.insert(engine.shards().await?),
        };
        let Some(node) = nodes.last().copied() else {
            return Ok(None);
        };
        let scan = page(&self.client.keyspace, &self.pattern, self.cursor, PAGE);
        let (cursor, names) = engine.ask(node, &self.pattern, scan).await?;
        let seen = self.client.look_at_all(names).await?;
        self.cursor = cursor;
        if cursor == 0 {
            nodes.pop();
        }
        Ok(Some(seen))
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scan").field(&self.pattern).finish()
    }
}

impl Client {
    /// What is under each of `names`, where it is a lock.
    async fn look_at_all(&self, names: Vec<String>) -> Result<Vec<LockInfo>, Error> {
        let mut found = Vec::new();
        for name in names {
            let keys = self.keys(&name)?;
            found.push((name, keys));
        }
        let looks = found.iter();
        let looks = looks.map(|(_, keys)| (keys.slot(), Probe::key(keys)));
        let first = self.engine.ask_all(looks.collect()).await?;
        let (mut seen, mut hashes, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for ((name, keys), first) in found.into_iter().zip(first) {
            match first? {
                Probe::Lock(snapshot) => seen.push((name, snapshot)),
                Probe::FollowUp(more) => {
                    again.push((keys.slot(), Probe::follow_up(&keys, more, 1)));
                    hashes.push(name);
                }
                Probe::Nothing | Probe::Data => {}
            }
        }
        let second = self.engine.ask_all(again).await?;
        for (name, second) in hashes.into_iter().zip(second) {
            if let Probe::Lock(snapshot) = second? {
                seen.push((name, snapshot));
            }
        }
        let (names, mut snapshots): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
        know_who_is_there(&self.engine, &mut snapshots).await?;
        let seen = names.into_iter().zip(snapshots);
        Ok(seen
            .map(|(name, snapshot)| LockInfo::new(&name, snapshot))
            .collect())
    }
}

/// Asks of every process in `snapshots` whether it is connected.
async fn know_who_is_there(engine: &Engine, snapshots: &mut [LockSnapshot]) -> Result<(), Error> {
    let everybody = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.holders.iter().chain(&snapshot.waiters));
    let mut processes: BTreeMap<String, Option<bool>> = BTreeMap::new();
    // The process of a kept lock has released it: whether it is connected
    // makes no difference.
    let renewing = everybody.filter(|participant| !participant.holder.released);
    for process in renewing.filter_map(Participant::process) {
        processes.insert(process.to_owned(), None);
    }
    let calls = processes.keys().map(|process| is_connected(process));
    let answers = engine.ask_all(calls.collect()).await?;
    for (alive, answer) in processes.values_mut().zip(answers) {
        *alive = answer?;
    }
    for snapshot in snapshots {
        let participant = snapshot.holders.iter_mut().chain(&mut snapshot.waiters);
        for participant in participant.filter(|participant| !participant.holder.released) {
            let alive = participant
                .process()
                .and_then(|process| processes.get(process));
            participant.holder.connected = alive.copied().flatten();
        }
    }
    Ok(())
}

impl LockInfo {
    fn new(name: &str, snapshot: LockSnapshot) -> Self {
        let people = |participant: Vec<Participant>| {
            participant
                .into_iter()
                .map(|participant| participant.holder)
        };
        Self {
            name: name.to_owned(),
            kind: snapshot.kind,
            holders: people(snapshot.holders).collect(),
            holder_count: snapshot.holder_count,
            waiters: people(snapshot.waiters).map(Waiter::from).collect(),
            waiter_count: snapshot.waiter_count,
        }
    }
}

impl From<Holder> for Waiter {
    /// One who waits stands on the server as a holder does.
    fn from(participant: Holder) -> Self {
        Self {
            host: participant.host,
            pid: participant.pid,
            since: participant.since,
            note: participant.note,
            redisson: participant.redisson,
            connected: participant.connected,
        }
    }
}

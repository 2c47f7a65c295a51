//! Inspection of locks, and forced release.
//!
//! Inspection only reads what the clients of the same prefix have written, one
//! page at a time, so it never blocks the server for long.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Client;
use crate::backend::Slot;
use crate::error::Error;
use crate::info::{Holder, LockInfo, LockKind, Messages};
use crate::lease::{Pending, RetryDelay};
use crate::protocol::{
    Call, Kind, LockSnapshot, Notified, Participant, Probe, QueueKeys, QueueParams, Queued,
    SingleKey, is_connected, page, process_channel,
};

/// The number of holders, and of waiters, that are listed for one lock.
const MAX_LISTED: u64 = 1000;

/// The number of keys that a server examines for one page. It takes the server
/// far less than a millisecond.
const PAGE_SIZE: u64 = 500;

/// How often to poll until a lock is free, where no message announces it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Client {
    /// Returns the lock with this name, with holders and waiters, or `None` if
    /// it has neither.
    ///
    /// The user needs permission for `GETRANGE`, and for `PUBSUB SHARDNUMSUB`
    /// to know which processes are connected. Locks of Redisson also need
    /// `HSCAN`, `LLEN` and `LRANGE`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if the key holds data that is not a lock, and
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// if let Some(lock) = client.inspect("nightly-import").await? {
    ///     for holder in &lock.holders {
    ///         let connected = holder.process.connected;
    ///         println!("held by {holder}, connected: {connected:?}");
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn inspect<'a>(&'a self, name: &'a str) -> Pending<'a, Option<LockInfo>> {
        self.engine.pending(self.inspect_now(name))
    }

    async fn inspect_now(&self, name: &str) -> Result<Option<LockInfo>, Error> {
        let Some(mut snapshot) = self.snapshot(name).await? else {
            return Ok(None);
        };
        self.mark_connected(&mut [&mut snapshot]).await?;
        Ok(Some(LockInfo::new(name.to_owned(), snapshot)))
    }

    /// Returns all locks with names that match `pattern`, page by page.
    ///
    /// `pattern` is a glob of `*`, `?` and `[…]`. The scan covers the locks
    /// with this client's prefix, on every node of a cluster. A lock that is
    /// acquired or released during the scan can be missing, and a name can be
    /// returned twice.
    ///
    /// The user needs permission for `SCAN`, in addition to those of
    /// [`inspect`](Self::inspect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let mut scan = client.scan("coupon:*");
    /// while let Some(page) = scan.next().await? {
    ///     for lock in page {
    ///         println!("{} has {} holders", lock.name, lock.holder_count);
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

    /// Waits until the lock with this name has no holder, for at most `limit`;
    /// without a limit if that is `None`.
    ///
    /// Another client can acquire the lock immediately afterwards. To use the
    /// lock, acquire it instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if `limit` elapses, and any error of
    /// [`inspect`](Self::inspect); after an outage that is longer than
    /// [`max_outage`](crate::Connect::max_outage), or than `limit`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// // Start the dashboard only after the import that runs now.
    /// let limit = Duration::from_secs(600);
    /// client.until_free("nightly-import", Some(limit)).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn until_free<'a>(&'a self, name: &'a str, limit: Option<Duration>) -> Pending<'a, ()> {
        self.engine.pending(self.until_free_now(name, limit))
    }

    async fn until_free_now(&self, name: &str, limit: Option<Duration>) -> Result<(), Error> {
        let mutex = self.single_key(name)?;
        let slot = mutex.slot();
        let mutex: Arc<dyn Notified> = Arc::new(mutex);
        let start = Instant::now();
        let (mut delay, mut replied) = (RetryDelay::new(), start);
        loop {
            let holder = match self.inspect(name).await {
                Ok(Some(lock)) if lock.holder_count > 0 => lock.holders.into_iter().next(),
                Ok(_) => return Ok(()),
                Err(error) => {
                    let is_over = limit.is_some_and(|limit| start.elapsed() >= limit)
                        || replied.elapsed() >= self.engine.max_outage();
                    if is_over || !error.is_transient() {
                        return Err(error);
                    }
                    delay.wait().await;
                    continue;
                }
            };
            replied = Instant::now();
            let waited = start.elapsed();
            let remaining = limit.map_or(POLL_INTERVAL, |limit| limit.saturating_sub(waited));
            if remaining.is_zero() {
                return Err(Error::Timeout {
                    name: name.to_owned(),
                    waited,
                    holder: holder.map(Box::new),
                    position: None,
                });
            }
            // The release of a mutex is announced. Other kinds are polled.
            let timeout = Some(remaining.min(POLL_INTERVAL));
            let watch = self.engine.wait_until_free(&mutex, slot, name, timeout);
            match watch.await {
                Ok(()) | Err(Error::Timeout { .. }) => delay.reset(),
                // The next inspection tells whether the outage lasts.
                Err(error) if error.is_transient() => delay.wait().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Revokes the lock from all holders and returns them; empty if the lock
    /// was free.
    ///
    /// The holders are notified, and their [`lost`](crate::Lease::lost) fires.
    /// Holders that use other libraries are not notified.
    ///
    /// **Two clients can then work at the same time**: the former holder until
    /// it has stopped, and the next one. Only a resource that rejects old
    /// [tokens](crate::Token) is safe from that.
    ///
    /// A lock that is only [`released`](Holder::released) or
    /// [`handed_over`](Holder::handed_over) becomes free immediately. No
    /// process works under it, and none is notified. A ticket for it is spent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the lock revoked or held. Holders that
    /// were not notified find out at their next renewal.
    ///
    /// # Errors
    ///
    /// Any error of [`inspect`](Self::inspect). [`Error::Invalid`] for a latch,
    /// and for a value of another library without an expiry, which is probably
    /// data. A lock of Redisson needs the feature `redisson`, and is
    /// [`Error::Invalid`] otherwise. After [`Error::OutcomeUnknown`], the lock
    /// may have been revoked.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// for holder in client.force_release("nightly-import").await? {
    ///     eprintln!("revoked from {holder}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn force_release<'a>(&'a self, name: &'a str) -> Pending<'a, Vec<Holder>> {
        self.engine.pending(self.force_release_now(name))
    }

    async fn force_release_now(&self, name: &str) -> Result<Vec<Holder>, Error> {
        let Some(snapshot) = self.snapshot(name).await? else {
            return Ok(Vec::new());
        };
        let kind: Box<dyn Kind> = match snapshot.kind {
            LockKind::Foreign if !snapshot.expires() => {
                let why = "its key holds a value without an expiry, which is not a lock";
                return Err(Error::invalid("name", why));
            }
            LockKind::Mutex | LockKind::Foreign => Box::new(self.single_key(name)?),
            LockKind::FairMutex | LockKind::Semaphore { .. } | LockKind::RwLock => {
                Box::new(Queued::new(self.keys(name)?, QueueParams::RELEASE_ONLY))
            }
            LockKind::RedissonLock
            | LockKind::RedissonFairLock
            | LockKind::RedissonReadWriteLock => {
                return self.force_unlock(name, snapshot).await;
            }
            LockKind::Latch { .. } => {
                return Err(Error::invalid("name", "a latch has no holders"));
            }
        };
        let mut revoked = Vec::new();
        for participant in snapshot.holders {
            if self.engine.revoke(&*kind, &participant).await? {
                revoked.push(participant.holder);
            }
        }
        Ok(revoked)
    }

    /// Revokes a Redisson lock from the holders.
    #[cfg(feature = "redisson")]
    async fn force_unlock(&self, name: &str, lock: LockSnapshot) -> Result<Vec<Holder>, Error> {
        let key = format!("{}{name}", self.keyspace.prefix());
        let redisson = self.redisson().prefix("");
        Ok(match redisson.force_unlock(&key, &lock).await? {
            true => holders_of(lock.holders).collect(),
            false => Vec::new(),
        })
    }

    #[cfg(not(feature = "redisson"))]
    async fn force_unlock(&self, name: &str, _: LockSnapshot) -> Result<Vec<Holder>, Error> {
        let why = format!(
            "`{name}` is a lock of Redisson: use `forceUnlock()` in Java, or the feature `redisson`"
        );
        Err(Error::invalid("name", why))
    }

    /// Returns the calls of a lock that is a single string key.
    fn single_key(&self, name: &str) -> Result<SingleKey, Error> {
        let keys = self.keyspace.lock(name);
        let keys = keys.map_err(|why| Error::invalid("name", why))?;
        Ok(SingleKey::new(keys))
    }

    fn keys(&self, name: &str) -> Result<QueueKeys, Error> {
        let keys = self.keyspace.queue(name);
        keys.map_err(|why| Error::invalid("name", why))
    }

    async fn snapshot(&self, name: &str) -> Result<Option<LockSnapshot>, Error> {
        let keys = self.keys(name)?;
        let messages = self.messages(keys.slot()).await?;
        let send = |call| self.engine.send(keys.slot(), name, call);
        let probe = match send(Probe::key(&keys, messages)).await? {
            Probe::FollowUp(follow_up) => {
                send(Probe::follow_up(&keys, follow_up, MAX_LISTED)).await?
            }
            probe => probe,
        };
        match probe {
            Probe::Nothing => Ok(None),
            Probe::Lock(snapshot) => Ok(Some(snapshot)),
            Probe::FollowUp(_) | Probe::Data => Err(Error::WrongType {
                name: name.to_owned(),
            }),
        }
    }

    /// Inspects several locks with three pipelines to each node. Keys that hold
    /// no lock are skipped.
    async fn inspect_all(&self, names: Vec<String>) -> Result<Vec<LockInfo>, Error> {
        let mut probes = Vec::new();
        for name in names {
            let keys = self.keys(&name)?;
            let messages = self.messages(keys.slot()).await?;
            let probe = (keys.slot(), Probe::key(&keys, messages));
            probes.push(((name, keys), probe));
        }
        let (mut locks, mut follow_ups) = (Vec::new(), Vec::new());
        for ((name, keys), probe) in self.send_all(probes).await? {
            match probe {
                Probe::Lock(snapshot) => locks.push((name, snapshot)),
                Probe::FollowUp(follow_up) => {
                    let probe = (keys.slot(), Probe::follow_up(&keys, follow_up, 1));
                    follow_ups.push((name, probe));
                }
                Probe::Nothing | Probe::Data => {}
            }
        }
        for (name, probe) in self.send_all(follow_ups).await? {
            if let Probe::Lock(snapshot) = probe {
                locks.push((name, snapshot));
            }
        }
        let mut snapshots: Vec<_> = locks.iter_mut().map(|(_, snapshot)| snapshot).collect();
        self.mark_connected(&mut snapshots).await?;
        let locks = locks.into_iter();
        Ok(locks
            .map(|(name, snapshot)| LockInfo::new(name, snapshot))
            .collect())
    }

    /// Returns how messages reach the subscribers of `slot`.
    async fn messages(&self, slot: Slot) -> Result<Messages, Error> {
        let facts = self.engine.facts(slot).await?;
        Ok(facts.capabilities.messages)
    }

    /// Sets `connected` for all holders and waiters of `snapshots`.
    async fn mark_connected(&self, snapshots: &mut [&mut LockSnapshot]) -> Result<(), Error> {
        // The process of a lock that was released or handed over does not renew
        // it. Whether it is connected makes no difference.
        let participants: Vec<_> = snapshots
            .iter_mut()
            .flat_map(|snapshot| snapshot.holders.iter_mut().chain(&mut snapshot.waiters))
            .filter(|participant| participant.holder.is_active())
            .collect();
        let processes: BTreeSet<String> = participants
            .iter()
            .filter_map(|participant| participant.process())
            .map(str::to_owned)
            .collect();
        let mut calls = Vec::new();
        for process in processes {
            let (_, slot) = process_channel(&process);
            let call = is_connected(&process, self.messages(slot).await?);
            calls.push((process, call));
        }
        let replies = self.send_all(calls).await?;
        let connected: BTreeMap<_, _> = replies.into_iter().collect();
        for participant in participants {
            let process = participant.process();
            let connected = process.and_then(|process| connected.get(process).copied());
            participant.holder.process.connected = connected.flatten();
        }
        Ok(())
    }

    /// Sends many calls, each with the item it is for. Calls to the same node
    /// share a pipeline.
    async fn send_all<T, R>(&self, calls: Vec<(T, (Slot, Call<R>))>) -> Result<Vec<(T, R)>, Error> {
        let (items, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let replies = self.engine.send_all(calls).await?;
        let replies = items.into_iter().zip(replies);
        replies.map(|(item, reply)| Ok((item, reply?))).collect()
    }
}

/// A scan of all locks, from [`Client::scan`].
///
/// A page that failed can be read again: call [`next`](Self::next) once more.
#[must_use = "nothing is scanned until `next` is called"]
pub struct Scan {
    client: Client,
    pattern: String,
    /// A slot of each node that remains; the last one is scanned at present.
    /// `None` until the first call.
    nodes: Option<Vec<Slot>>,
    cursor: u64,
}

impl Scan {
    /// Returns the next page, which can be empty, or `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing. The next call reads the same page
    /// again.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. The next call reads the same page again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let mut scan = client.scan("*");
    /// let mut held = 0;
    /// while let Some(page) = scan.next().wait()? {
    ///     held += page.len();
    /// }
    /// println!("{held} locks are held or waited for");
    /// # Ok(()) }
    /// ```
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot be awaited"
    )]
    pub fn next(&mut self) -> Pending<'_, Option<Vec<LockInfo>>> {
        let engine = self.client.engine.clone();
        engine.pending(self.next_now())
    }

    async fn next_now(&mut self) -> Result<Option<Vec<LockInfo>>, Error> {
        let engine = self.client.engine.clone();
        let nodes = match &mut self.nodes {
            Some(nodes) => nodes,
            none => none.insert(engine.shards().await?),
        };
        let Some(node) = nodes.last().copied() else {
            return Ok(None);
        };
        let scan = page(&self.client.keyspace, &self.pattern, self.cursor, PAGE_SIZE);
        let (cursor, names) = engine.send(node, &self.pattern, scan).await?;
        let locks = self.client.inspect_all(names).await?;
        // After the last await: a future that is dropped repeats the page, and
        // skips none.
        self.cursor = cursor;
        if cursor == 0 {
            nodes.pop();
        }
        Ok(Some(locks))
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scan").field(&self.pattern).finish()
    }
}

impl LockInfo {
    fn new(name: String, snapshot: LockSnapshot) -> Self {
        Self {
            name,
            kind: snapshot.kind,
            holders: holders_of(snapshot.holders).collect(),
            holder_count: snapshot.holder_count,
            waiters: holders_of(snapshot.waiters)
                .map(|waiter| waiter.process)
                .collect(),
            waiter_count: snapshot.waiter_count,
        }
    }
}

fn holders_of(participants: Vec<Participant>) -> impl Iterator<Item = Holder> {
    let participants = participants.into_iter();
    participants.map(|participant| participant.holder)
}

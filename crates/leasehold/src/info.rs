//! The types that inspection returns.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::owner::Token;
use crate::plain::plain;

/// What a lock is, who holds it and who waits for it, from
/// [`Client::inspect`](crate::Client::inspect) and
/// [`Client::scan`](crate::Client::scan).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's name, without the prefix.
    pub name: String,
    /// The kind of lock.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub kind: LockKind,
    /// The holders; at most 1,000, and only the first one in a
    /// [`Scan`](crate::Scan).
    pub holders: Vec<Holder>,
    /// The number of holders.
    pub holder_count: u64,
    /// The waiters in queue order; at most 1,000, and only the first one in a
    /// [`Scan`](crate::Scan). Empty for a mutex and for a Redisson lock that is
    /// not fair, because the server does not store their waiters.
    pub waiters: Vec<Process>,
    /// The number of waiters, or of waiting processes for a mutex. `None` if
    /// it is unknown.
    pub waiter_count: Option<u64>,
}

/// A process that holds a lock, waits for one, leads, or runs a job.
///
/// Every field is `None` if it is unknown, as for a lock that another library
/// acquired. The `Display` form is one line, such as "process 4711 on web-3
/// (nightly import), for 90.0 s".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Process {
    /// The machine's host name.
    pub host: Option<String>,
    /// The process id on that machine.
    pub pid: Option<u32>,
    /// When it acquired the lock, or began to wait, lead or run, by the
    /// server's clock.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "since_ms", serialize_with = "unix_millis")
    )]
    pub since: Option<SystemTime>,
    /// What the process stored with the lock: a [`note`](crate::Acquire::note).
    pub note: Option<String>,
    /// The id of a Redisson client and thread, as in `UUID:THREAD`.
    pub redisson: Option<String>,
    /// Whether the process is connected to the server. A holder that is not
    /// connected does not renew its lock.
    ///
    /// `None` if it is unknown, and for a lock that is
    /// [`released`](Holder::released) or [`handed_over`](Holder::handed_over).
    /// Only [`Client::inspect`] and [`Client::scan`] query it. A process that
    /// connected within the last few milliseconds may not be visible yet.
    ///
    /// [`Client::inspect`]: crate::Client::inspect
    /// [`Client::scan`]: crate::Client::scan
    pub connected: Option<bool>,
}

/// A leader's term; see [`Election`](crate::Election).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Term {
    /// The epoch, which is the leader's fencing token. It is larger than in
    /// every earlier term. `None` if the leader was elected just now and has
    /// not announced the term.
    #[cfg_attr(feature = "serde", serde(serialize_with = "token"))]
    pub epoch: Option<Token>,
    /// The leader, with a [`note`](crate::Election::note), such as an address.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "announced"))]
    pub process: Process,
}

/// One run of a job; see [`Once`](crate::Once).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Run {
    /// The [number](crate::Tick::number) of the tick.
    pub tick: u64,
    /// The schedule's period: how long one tick lasts.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "period_ms", serialize_with = "period")
    )]
    pub period: Duration,
    /// The runner, with a [`note`](crate::Once::note).
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "announced"))]
    pub process: Process,
    /// When the next tick begins. From then on the job may run again.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "next_ms", serialize_with = "unix_millis")
    )]
    pub next: Option<SystemTime>,
    /// How the run ended. `None` while it runs, and if the runner crashed.
    pub report: Option<String>,
}

/// How a server's messages reach waiting clients; see
/// [`ServerInfo::messages`](crate::ServerInfo::messages).
///
/// A client decides this for each connection, when it connects. Locks are
/// exclusive in any case. Messages only tell a waiter sooner that it should
/// ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum Messages {
    /// By sharded pub/sub (`SPUBLISH`). A waiter is woken within a round trip.
    #[default]
    Sharded,
    /// By classic pub/sub (`PUBLISH`), since the server lacks sharded channels,
    /// or the user may not use them. As fast as sharded ones.
    Classic,
    /// Not at all: the server refuses both, or is a cluster without sharded
    /// channels. Waiters ask the server once a second.
    Polled,
}

/// A lock's holder. The `Display` form is one line.
///
/// For a lock acquired by another library on the same key, only
/// [`lease_remaining`](Self::lease_remaining) is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The process that holds the lock.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub process: Process,
    /// The holder's W3C `traceparent`, if that client stores one; see
    /// [`Connect::trace_parent`](crate::Connect::trace_parent).
    pub trace_parent: Option<String>,
    /// How long the lease lasts unless it is renewed. `None` if the lock does
    /// not expire, or if it was not queried.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lease_remaining_ms", serialize_with = "millis")
    )]
    pub lease_remaining: Option<Duration>,
    /// Whether the holder released the lock and
    /// [`at_least`](crate::Acquire::at_least) still keeps other clients
    /// out. Such a lock is not renewed. It is free once
    /// [`lease_remaining`](Self::lease_remaining) has passed. Locks of other
    /// libraries never set it.
    pub released: bool,
    /// Whether this holder [handed the lock over](crate::Guard::hand_over), and
    /// no process has adopted it. `process` handed it over, and no longer
    /// holds it. Such a lock is not renewed. It is free once
    /// [`lease_remaining`](Self::lease_remaining) has passed.
    pub handed_over: bool,
}

impl Holder {
    /// Returns whether a process works under the lock and renews it.
    pub(crate) fn is_active(&self) -> bool {
        !self.released && !self.handed_over
    }
}

/// A lock's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LockKind {
    /// A [`Mutex`](crate::Mutex) of one server, or of this node of a
    /// [`Quorum`](crate::Quorum).
    Mutex,
    /// A [`FairMutex`](crate::FairMutex).
    FairMutex,
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore {
        /// How many permits are held.
        used: u64,
        /// The total number of permits.
        permits: u64,
    },
    /// An [`RwLock`](crate::RwLock).
    RwLock,
    /// A [`Latch`](crate::Latch), which has no holders.
    Latch {
        /// The number of count-downs that remain.
        remaining: u64,
    },
    /// A plain or fenced lock of Redisson, or a fair one without waiters.
    RedissonLock,
    /// A fair lock of Redisson with waiters.
    RedissonFairLock,
    /// A read-write lock of Redisson.
    RedissonReadWriteLock,
    /// A string that this library did not write: a lock of another library, or
    /// other data.
    Foreign,
}

impl LockKind {
    /// Returns the kind in one word, without a semaphore's or latch's numbers.
    ///
    /// These words are stable, and suit a metric's label: `mutex`,
    /// `fair_mutex`, `semaphore`, `rw_lock`, `latch`, `redisson_lock`,
    /// `redisson_fair_lock`, `redisson_read_write_lock` and `foreign`.
    ///
    /// Events of [`observe`](crate::observe) also have `redisson_semaphore` and
    /// `redisson_permit_expirable_semaphore`, which inspection does not
    /// recognise.
    ///
    /// # Examples
    ///
    /// ```
    /// # use leasehold::LockKind;
    /// let kind = LockKind::Semaphore { used: 3, permits: 10 };
    /// assert_eq!(kind.label(), "semaphore");
    /// assert_eq!(kind.to_string(), "semaphore 3/10");
    /// ```
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair_mutex",
            Self::Semaphore { .. } => "semaphore",
            Self::RwLock => "rw_lock",
            Self::Latch { .. } => "latch",
            Self::RedissonLock => "redisson_lock",
            Self::RedissonFairLock => "redisson_fair_lock",
            Self::RedissonReadWriteLock => "redisson_read_write_lock",
            Self::Foreign => "foreign",
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair",
            Self::Semaphore { used, permits } => return write!(f, "semaphore {used}/{permits}"),
            Self::RwLock => "rw",
            Self::Latch { remaining } => return write!(f, "latch {remaining} remaining"),
            Self::RedissonLock => "redisson",
            Self::RedissonFairLock => "redisson fair",
            Self::RedissonReadWriteLock => "redisson rw",
            Self::Foreign => "foreign",
        })
    }
}

/// Describes the process in one line. Text that it wrote is escaped.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.pid, &self.redisson) {
            (Some(host), Some(pid), _) => write!(f, "process {pid} on {}", plain(host))?,
            (_, _, Some(owner)) => write!(f, "Redisson client {}", plain(owner))?,
            _ => f.write_str("a client of another library")?,
        }
        if let Some(note) = &self.note {
            write!(f, " ({})", plain(note))?;
        }
        if let Some(since) = self.since {
            let age = since.elapsed().unwrap_or_default();
            write!(f, ", for {}", seconds(age))?;
        }
        Ok(())
    }
}

/// Describes the holder in one line. Text that it wrote is escaped.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.process.fmt(f)?;
        match self.lease_remaining {
            Some(remaining) if self.released => {
                write!(f, ", released, held for {} more", seconds(remaining))
            }
            Some(remaining) if self.handed_over => {
                let remaining = seconds(remaining);
                write!(f, ", handed over, not adopted, held for {remaining} more")
            }
            Some(remaining) => {
                write!(f, ", lease ends in {} unless renewed", seconds(remaining))
            }
            None => Ok(()),
        }
    }
}

/// Serializes a token as a number.
#[cfg(feature = "serde")]
fn token<S>(token: &Option<Token>, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    serde::Serialize::serialize(&token.map(Token::as_u64), serializer)
}

/// Serializes what a leader or a runner stores of itself. Whether it is
/// connected is never queried.
#[cfg(feature = "serde")]
fn announced<S>(process: &Process, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    #[derive(serde::Serialize)]
    struct Announced<'a> {
        host: &'a Option<String>,
        pid: Option<u32>,
        #[serde(rename = "since_ms", serialize_with = "unix_millis")]
        since: Option<SystemTime>,
        note: &'a Option<String>,
    }
    let announced = Announced {
        host: &process.host,
        pid: process.pid,
        since: process.since,
        note: &process.note,
    };
    serde::Serialize::serialize(&announced, serializer)
}

#[cfg(feature = "serde")]
fn period<S>(period: &Duration, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    millis(&Some(*period), serializer)
}

/// Serializes a time as milliseconds since 1970.
#[cfg(feature = "serde")]
fn unix_millis<S>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    let since = time.map(|time| time.duration_since(SystemTime::UNIX_EPOCH));
    millis(&since.map(Result::unwrap_or_default), serializer)
}

/// Serializes a duration as whole milliseconds.
#[cfg(feature = "serde")]
pub(crate) fn millis<S>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    let millis = duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    serde::Serialize::serialize(&millis, serializer)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web_3() -> Process {
        Process {
            host: Some("web-3".to_owned()),
            pid: Some(4711),
            ..Process::default()
        }
    }

    #[test]
    fn display_shows_process_age_and_lease() {
        let holder = Holder {
            process: Process {
                since: SystemTime::now().checked_sub(Duration::from_secs(90)),
                note: Some("nightly import".to_owned()),
                ..web_3()
            },
            lease_remaining: Some(Duration::from_millis(12_300)),
            ..Holder::default()
        };
        assert_eq!(
            holder.to_string(),
            "process 4711 on web-3 (nightly import), for 90.0 s, lease ends in 12.3 s unless renewed"
        );
    }

    #[test]
    fn display_of_released_lock_shows_when_free() {
        let holder = Holder {
            process: web_3(),
            lease_remaining: Some(Duration::from_millis(12_300)),
            released: true,
            ..Holder::default()
        };
        let expected = "process 4711 on web-3, released, held for 12.3 s more";
        assert_eq!(holder.to_string(), expected);
    }

    #[test]
    fn display_of_handed_over_lock_says_so() {
        let holder = Holder {
            process: web_3(),
            lease_remaining: Some(Duration::from_millis(12_300)),
            handed_over: true,
            ..Holder::default()
        };
        let expected = "process 4711 on web-3, handed over, not adopted, held for 12.3 s more";
        assert_eq!(holder.to_string(), expected);
    }

    #[test]
    fn display_escapes_text_of_the_holder() {
        let holder = Process {
            host: Some("web\x1b[2J".to_owned()),
            pid: Some(1),
            note: Some("x\nERROR \u{202e}forged".to_owned()),
            ..Process::default()
        };
        let expected = r"process 1 on web\u{1b}[2J (x\nERROR \u{202e}forged)";
        assert_eq!(holder.to_string(), expected);
    }

    #[test]
    fn display_of_foreign_holder() {
        assert_eq!(Holder::default().to_string(), "a client of another library");
    }
}

//! What inspection returns: a lock, its kind, its holders and its waiters.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::plain::plain;

/// A lock as anybody sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The name, without the prefix.
    pub name: String,
    /// What it is.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub kind: LockKind,
    /// Who holds it: up to 1,000, the first only in a [`Scan`].
    pub holders: Vec<Holder>,
    /// How many hold it.
    pub holder_count: u64,
    /// Who waits, in the order of service: up to 1,000, the first only in a [`Scan`]. Those who wait for a mutex, or
    /// for a lock of Redisson's that is not fair, are nowhere noted.
    pub waiters: Vec<Waiter>,
    /// How many wait; of a mutex, how many processes. `None` where that cannot be known.
    pub waiter_count: Option<u64>,
}

/// One who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiter {
    /// The host name of the machine that waits.
    pub host: Option<String>,
    /// The process on that machine.
    pub pid: Option<u32>,
    /// Since when, by the server's clock.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "since_ms", serialize_with = "unix_millis")
    )]
    pub since: Option<SystemTime>,
    /// What it wrote about itself.
    pub note: Option<String>,
    /// How a client of Redisson calls itself.
    pub redisson: Option<String>,
    /// Whether the process is connected to the server now; `None` where that cannot be known.
    pub connected: Option<bool>,
}

/// The holder of a lock as others see it.
///
/// A lock taken by another library on the same key has a holder of whom only the remaining time is
/// known; the other fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The host name of the machine that holds it.
    pub host: Option<String>,
    /// The process on that machine.
    pub pid: Option<u32>,
    /// Since when, by the server's clock.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "since_ms", serialize_with = "unix_millis")
    )]
    pub since: Option<SystemTime>,
    /// What the holder wrote about itself ([`note`](crate::Acquire::note)).
    pub note: Option<String>,
    /// How a client of Redisson calls itself: its id and a thread's, as in `UUID:THREAD`.
    pub redisson: Option<String>,
    /// Whether the process is connected to the server now. `None` when that
    /// was not asked or cannot be known, and for a lock that is
    /// [`released`](Self::released). A process that is not connected does not renew.
    /// A process that connected within the last few milliseconds may not be
    /// visible yet.
    pub connected: Option<bool>,
    /// How long the lease still lasts unless it is renewed; `None` when it does not expire or was
    /// not asked for.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lease_remaining_ms", serialize_with = "millis")
    )]
    pub lease_remaining: Option<Duration>,
    /// Whether the holder released the lock and
    /// [`at_least`](crate::Acquire::at_least) still keeps other clients
    /// out. No client renews such a lock: it is free once
    /// [`lease_remaining`](Self::lease_remaining) is over. Other libraries never set it.
    pub released: bool,
}

/// What was found under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LockKind {
    /// A [`Mutex`](crate::Mutex), of one server or of this node of a [`Quorum`](crate::Quorum).
    Mutex,
    /// A [`FairMutex`](crate::FairMutex).
    FairMutex,
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore {
        /// How many permits are taken.
        used: u64,
        /// How many there are.
        permits: u64,
    },
    /// An [`RwLock`](crate::RwLock).
    RwLock,
    /// A [`Latch`](crate::Latch), which nobody holds.
    Latch {
        /// The number of count-downs that remain.
        remaining: u64,
    },
    /// A lock of Redisson's, plain or fenced; or a fair one for which nobody waits.
    RedissonLock,
    /// A fair lock of Redisson's.
    RedissonFairLock,
    /// A read-write lock of Redisson's.
    RedissonReadWriteLock,
    /// A string that is not of this library: the lock of another one, or no lock at all.
    Foreign,
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair",
            Self::Semaphore { used, permits } => return write!(f, "semaphore {used}/{permits}"),
            Self::RwLock => "rw",
            Self::Latch { remaining } => return write!(f, "latch {remaining} left"),
            Self::RedissonLock => "redisson",
            Self::RedissonFairLock => "redisson fair",
            Self::RedissonReadWriteLock => "redisson rw",
            Self::Foreign => "foreign",
        })
    }
}

/// What the holder wrote is escaped: it begins no line and moves no cursor.
impl fmt::Display for Holder {
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
        match self.lease_remaining {
            Some(left) if self.released => write!(f, ", released, kept for {} more", seconds(left)),
            Some(left) => write!(f, ", lease ends in {} unless renewed", seconds(left)),
            None => Ok(()),
        }
    }
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

    #[test]
    fn says_who_for_how_long_and_how_long_still() {
        let holder = Holder {
            host: Some("web-3".to_owned()),
            pid: Some(4711),
            since: SystemTime::now().checked_sub(Duration::from_secs(90)),
            note: Some("nightly import".to_owned()),
            redisson: None,
            connected: None,
            lease_remaining: Some(Duration::from_millis(12_300)),
            released: false,
        };
        assert_eq!(
            holder.to_string(),
            "process 4711 on web-3 (nightly import), for 90.0 s, lease ends in 12.3 s unless renewed"
        );
    }

    #[test]
    fn kept_holder_shows_when_the_lock_is_free() {
        let holder = Holder {
            host: Some("web-3".to_owned()),
            pid: Some(4711),
            lease_remaining: Some(Duration::from_millis(12_300)),
            released: true,
            ..Holder::default()
        };
        let expected = "process 4711 on web-3, released, kept for 12.3 s more";
        assert_eq!(holder.to_string(), expected);
    }

    #[test]
    fn what_a_holder_wrote_stays_on_its_line() {
        let holder = Holder {
            host: Some("web\x1b[2J".to_owned()),
            pid: Some(1),
            note: Some("x\nERROR \u{202e}forged".to_owned()),
            ..Holder::default()
        };
        let expected = r"process 1 on web\u{1b}[2J (x\nERROR \u{202e}forged)";
        assert_eq!(holder.to_string(), expected);
    }

    #[test]
    fn a_foreign_holder_is_named_as_such() {
        assert_eq!(Holder::default().to_string(), "a client of another library");
    }
}

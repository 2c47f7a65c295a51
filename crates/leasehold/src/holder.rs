//! Who holds a lock, as far as the server's record tells.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::plain::plain;

/// The holder of a lock as others see it.
///
/// A lock taken by another library on the same key has a holder of whom only the remaining time is
/// known; the other fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The host name of the machine that holds it.
    pub host: Option<String>,
    /// The process on that machine.
    pub pid: Option<u32>,
    /// Since when, by the server's clock.
    pub since: Option<SystemTime>,
    /// What the holder wrote about itself ([`note`](crate::kinds::Lock::note)).
    pub note: Option<String>,
    /// How a client of Redisson calls itself: its id and a thread's, as in `UUID:THREAD`.
    pub redisson: Option<String>,
    /// Whether the process is connected to the server now. `None` when that
    /// was not asked or cannot be known, and for a lock that is
    /// [`kept`](Self::kept). A process that is not connected does not renew.
    /// A process that connected within the last few milliseconds may not be
    /// visible yet.
    pub alive: Option<bool>,
    /// How long the lease still lasts unless it is renewed; `None` when it does not expire or was
    /// not asked for.
    pub lease_left: Option<Duration>,
    /// Whether the holder released the lock and
    /// [`at_least`](crate::kinds::Lock::at_least) still keeps other clients
    /// out. No client renews such a lock: it is free once
    /// [`lease_left`](Self::lease_left) is over. Other libraries never set it.
    pub kept: bool,
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
        match self.lease_left {
            Some(left) if self.kept => write!(f, ", released, kept for {} more", seconds(left)),
            Some(left) => write!(f, ", lease ends in {} unless renewed", seconds(left)),
            None => Ok(()),
        }
    }
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
            alive: None,
            lease_left: Some(Duration::from_millis(12_300)),
            kept: false,
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
            lease_left: Some(Duration::from_millis(12_300)),
            kept: true,
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

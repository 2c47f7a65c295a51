//! The history of a worker: one line per event, timed by a clock that all
//! processes of the machine share.
//!
//! A line consists of words separated by spaces, for example
//! `acquired LOCK HOLD AT TOKEN DEADLINE`. The worker writes each line before
//! it continues, so a killed process loses at most its last event.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::str::FromStr;

/// Nanoseconds since boot, including suspend.
pub(crate) type Timestamp = u64;

/// Reads the clock that all processes of this machine share.
pub(crate) fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or_default()
}

/// An event in the life of one hold of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) lock: u32,
    /// Number of the hold, unique within its process.
    pub(crate) hold: u64,
    pub(crate) at: Timestamp,
    pub(crate) kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A task requests `weight` of the lock, and waits for it if `waits`.
    Requested { weight: u32, waits: bool },
    /// The request succeeded. `token` is 0 for an unfenced lock.
    Acquired { token: u64, deadline: Timestamp },
    /// The lease is still valid, at least until `deadline`.
    Valid { deadline: Timestamp },
    /// The lease reported its loss.
    Lost,
    /// The release starts; the holder no longer relies on the lock.
    Releasing,
    /// The server confirmed the release.
    Released,
    /// The request failed.
    Failed(Failure),
    /// The holder wrote to the store. `accepted` is `None` if the outcome is
    /// unknown.
    Wrote { token: u64, accepted: Option<bool> },
    /// The holder handed the lock over, and passes a ticket on.
    HandedOver { ticket: u64 },
    /// The holder acquired the lock with a ticket. The token of the holder that
    /// handed it over is `given`.
    Adopted { ticket: u64, token: u64, given: u64 },
    /// The process exits with `tasks` live tasks, its memory `grown` bytes
    /// above the start.
    Exited { tasks: u64, grown: u64 },
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another owner holds the lock, and the request does not wait.
    Busy,
    /// Other owners held the lock until the timeout.
    Timeout,
    /// The task dropped the request before it completed.
    Cancelled,
    /// The server was unreachable, returned an error, or the outcome is
    /// unknown.
    Error,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lock, hold, at) = (self.lock, self.hold, self.at);
        let head = |f: &mut fmt::Formatter<'_>, word| write!(f, "{word} {lock} {hold} {at}");
        match self.kind {
            EventKind::Requested { weight, waits } => {
                head(f, "requested")?;
                write!(f, " {weight} {}", u8::from(waits))
            }
            EventKind::Acquired { token, deadline } => {
                head(f, "acquired")?;
                write!(f, " {token} {deadline}")
            }
            EventKind::Valid { deadline } => {
                head(f, "valid")?;
                write!(f, " {deadline}")
            }
            EventKind::Lost => head(f, "lost"),
            EventKind::Releasing => head(f, "releasing"),
            EventKind::Released => head(f, "released"),
            EventKind::Failed(failure) => {
                head(f, "failed")?;
                write!(f, " {}", failure as u8)
            }
            EventKind::Wrote { token, accepted } => {
                head(f, "wrote")?;
                write!(f, " {token} {}", accepted.map_or(2, u8::from))
            }
            EventKind::HandedOver { ticket } => {
                head(f, "handed-over")?;
                write!(f, " {ticket}")
            }
            EventKind::Adopted {
                ticket,
                token,
                given,
            } => {
                head(f, "adopted")?;
                write!(f, " {ticket} {token} {given}")
            }
            EventKind::Exited { tasks, grown } => {
                head(f, "exited")?;
                write!(f, " {tasks} {grown}")
            }
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let malformed = || line.to_owned();
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let mut numbers = words.map(|word| word.parse::<u64>().map_err(|_| malformed()));
        let mut number = || numbers.next().ok_or_else(malformed)?;
        let (lock, hold, at) = (number()?, number()?, number()?);
        let kind = match word {
            "requested" => EventKind::Requested {
                weight: u32::try_from(number()?).map_err(|_| malformed())?,
                waits: number()? == 1,
            },
            "acquired" => EventKind::Acquired {
                token: number()?,
                deadline: number()?,
            },
            "valid" => EventKind::Valid {
                deadline: number()?,
            },
            "lost" => EventKind::Lost,
            "releasing" => EventKind::Releasing,
            "released" => EventKind::Released,
            "failed" => EventKind::Failed(match number()? {
                0 => Failure::Busy,
                1 => Failure::Timeout,
                2 => Failure::Cancelled,
                _ => Failure::Error,
            }),
            "wrote" => EventKind::Wrote {
                token: number()?,
                accepted: match number()? {
                    0 => Some(false),
                    1 => Some(true),
                    _ => None,
                },
            },
            "handed-over" => EventKind::HandedOver { ticket: number()? },
            "adopted" => EventKind::Adopted {
                ticket: number()?,
                token: number()?,
                given: number()?,
            },
            "exited" => EventKind::Exited {
                tasks: number()?,
                grown: number()?,
            },
            _ => return Err(malformed()),
        };
        let lock = u32::try_from(lock).map_err(|_| malformed())?;
        Ok(Self {
            lock,
            hold,
            at,
            kind,
        })
    }
}

/// A writer that appends to the history of a process.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
}

impl Log {
    /// Opens the history at `path`, and appends to it if it exists.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file })
    }

    /// Appends an event in a single write.
    pub(crate) fn record(&self, event: &Event) {
        let line = format!("{event}\n");
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the history is writable");
    }
}

/// Reads all events of a history, and skips a truncated line.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for line in BufReader::new(File::open(path)?).lines() {
        events.extend(line?.parse::<Event>());
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip_through_text() {
        let (token, deadline) = (7, 99);
        let mut kinds = vec![
            EventKind::Requested {
                weight: 2,
                waits: true,
            },
            EventKind::Acquired { token, deadline },
            EventKind::Valid { deadline },
            EventKind::Lost,
            EventKind::Releasing,
            EventKind::Released,
            EventKind::HandedOver { ticket: 4 },
            EventKind::Adopted {
                ticket: 4,
                token,
                given: 6,
            },
            EventKind::Exited { tasks: 3, grown: 9 },
        ];
        for failure in [
            Failure::Busy,
            Failure::Timeout,
            Failure::Cancelled,
            Failure::Error,
        ] {
            kinds.push(EventKind::Failed(failure));
        }
        for accepted in [None, Some(false), Some(true)] {
            kinds.push(EventKind::Wrote { token, accepted });
        }
        for kind in kinds {
            let event = Event {
                lock: 3,
                hold: 12,
                at: 55,
                kind,
            };
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for truncated in ["acquired 3 12 55 7", "acquired 3", "", "nonsense 1 2 3"] {
            assert!(truncated.parse::<Event>().is_err(), "{truncated}");
        }
    }
}

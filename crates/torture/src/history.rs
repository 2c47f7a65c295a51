//! What happened, as each process wrote it down: one line for each event, by a clock that all processes of a machine share.
//!
//! A line is words separated by blanks: `got LOCK HOLDING AT TOKEN DEADLINE` and its like. It is written before the program goes on,
//! so that a process that is killed leaves all it did but perhaps the last.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::str::FromStr;

/// Nanoseconds on the machine's clock, which counts suspend.
pub(crate) type Moment = u64;

/// The clock that all processes of this machine share.
pub(crate) fn now() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or_default()
}

/// One thing that happened to one holding of one lock. Holdings are numbered within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) lock: u32,
    pub(crate) holding: u64,
    pub(crate) at: Moment,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It began to want so much of the lock; whether it is ready to wait for it.
    Want { weight: u32, patient: bool },
    /// It has it, with this token (0 for none), at least until the deadline.
    Got { token: u64, deadline: Moment },
    /// It has it still.
    Valid { deadline: Moment },
    /// It was told that it has lost it.
    Lost,
    /// It begins to give it back, and relies on it no longer.
    End,
    /// It was given back, as far as is known.
    Gave,
    /// It does not have it, for this reason.
    Failed(Failure),
    /// It sold a coupon under its token: whether that was accepted, where that is known.
    Sold { token: u64, accepted: Option<bool> },
    /// The process ends: how many tasks it has left, and by how many bytes its memory has grown.
    Over { tasks: u64, grown: u64 },
}

/// Why a lock was not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Somebody else has it.
    Busy,
    /// Others had it for as long as it was waited for.
    Timeout,
    /// The asker went away before it was answered.
    Abandoned,
    /// The server could not be asked, refused, or nobody knows.
    Trouble,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lock, holding, at) = (self.lock, self.holding, self.at);
        let head = |f: &mut fmt::Formatter<'_>, word| write!(f, "{word} {lock} {holding} {at}");
        match self.what {
            What::Want { weight, patient } => {
                head(f, "want")?;
                write!(f, " {weight} {}", u8::from(patient))
            }
            What::Got { token, deadline } => {
                head(f, "got")?;
                write!(f, " {token} {deadline}")
            }
            What::Valid { deadline } => {
                head(f, "valid")?;
                write!(f, " {deadline}")
            }
            What::Lost => head(f, "lost"),
            What::End => head(f, "end"),
            What::Gave => head(f, "gave"),
            What::Failed(failure) => {
                head(f, "failed")?;
                write!(f, " {}", failure as u8)
            }
            What::Sold { token, accepted } => {
                head(f, "sold")?;
                write!(f, " {token} {}", accepted.map_or(2, u8::from))
            }
            What::Over { tasks, grown } => {
                head(f, "over")?;
                write!(f, " {tasks} {grown}")
            }
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || line.to_owned();
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let mut numbers = words.map(|word| word.parse::<u64>().map_err(|_| wrong()));
        let mut number = || numbers.next().ok_or_else(wrong)?;
        let (lock, holding, at) = (number()?, number()?, number()?);
        let what = match word {
            "want" => What::Want {
                weight: u32::try_from(number()?).map_err(|_| wrong())?,
                patient: number()? == 1,
            },
            "got" => What::Got {
                token: number()?,
                deadline: number()?,
            },
            "valid" => What::Valid {
                deadline: number()?,
            },
            "lost" => What::Lost,
            "end" => What::End,
            "gave" => What::Gave,
            "failed" => What::Failed(match number()? {
                0 => Failure::Busy,
                1 => Failure::Timeout,
                2 => Failure::Abandoned,
                _ => Failure::Trouble,
            }),
            "sold" => What::Sold {
                token: number()?,
                accepted: match number()? {
                    0 => Some(false),
                    1 => Some(true),
                    _ => None,
                },
            },
            "over" => What::Over {
                tasks: number()?,
                grown: number()?,
            },
            _ => return Err(wrong()),
        };
        let lock = u32::try_from(lock).map_err(|_| wrong())?;
        Ok(Self {
            lock,
            holding,
            at,
            what,
        })
    }
}

/// Where a process writes its history.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
}

impl Log {
    /// Goes on with the history in this file, if there is one.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file })
    }

    /// Notes an event, in one write.
    pub(crate) fn note(&self, event: &Event) {
        let line = format!("{event}\n");
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the history can be written");
    }
}

/// Everything that was written to a file; a line that was cut off is left out.
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
    fn what_is_written_is_read_back() {
        let (token, deadline) = (7, 99);
        let mut whats = vec![
            What::Want {
                weight: 2,
                patient: true,
            },
            What::Got { token, deadline },
            What::Valid { deadline },
            What::Lost,
            What::End,
            What::Gave,
            What::Over { tasks: 3, grown: 9 },
        ];
        for failure in [
            Failure::Busy,
            Failure::Timeout,
            Failure::Abandoned,
            Failure::Trouble,
        ] {
            whats.push(What::Failed(failure));
        }
        for accepted in [None, Some(false), Some(true)] {
            whats.push(What::Sold { token, accepted });
        }
        for what in whats {
            let event = Event {
                lock: 3,
                holding: 12,
                at: 55,
                what,
            };
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for cut_off in ["got 3 12 55 7", "got 3", "", "nonsense 1 2 3"] {
            assert!(cut_off.parse::<Event>().is_err(), "{cut_off}");
        }
    }
}

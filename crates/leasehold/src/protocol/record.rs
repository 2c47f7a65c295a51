//! The value of a held lock: its owner, and who that is for people who look.
//!
//! `lh1 OWNER SINCE PID HOST NOTE`, separated by single spaces: `lh1` the version of this layout,
//! OWNER 32 hex digits, SINCE the server's clock in milliseconds, NOTE free text to the end. A lock that is released
//! and still kept from others has `lh1:kept` there. A lock that can have a queue has `lh1:KIND:CAPACITY:WEIGHT`.

use std::fmt::{Display, Write};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::info::Holder;
use crate::owner::Owner;

const VERSION: &str = "lh1";

/// What stands in place of the version once the owner has released the lock and `at_least` keeps it from others.
const KEPT: &str = "lh1:released";

/// What the summary of a queue begins with, which names no holder.
const QUEUE: &str = "lh1:queue:";

/// Which lock a value belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form<'a> {
    /// A mutex.
    Mutex,
    /// The only holder of a lock that can have a queue.
    Alone(Part<'a>),
    /// The summary of a queue of this kind.
    Queue(&'a str),
    /// A value of another library.
    Foreign,
}

/// How much of a lock that can have a queue its holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) kind: &'a str,
    pub(super) capacity: u64,
    pub(super) weight: u64,
}

impl Display for Part<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            capacity,
            weight,
        } = self;
        write!(f, "{VERSION}:{kind}:{capacity}:{weight}")
    }
}

impl<'a> Form<'a> {
    pub(super) fn of(value: &'a [u8]) -> Self {
        let end = value.iter().position(|byte| *byte == b' ');
        let first = std::str::from_utf8(&value[..end.unwrap_or(0)]).unwrap_or_default();
        if first == VERSION || first == KEPT {
            return Self::Mutex;
        }
        if let Some(kind) = first.strip_prefix(QUEUE) {
            return Self::Queue(kind);
        }
        let mut parts = first.split(':');
        let mut part = || {
            let is_ours = parts.next()? == VERSION;
            let kind = parts.next().filter(|_| is_ours)?;
            let mut number = || parts.next()?.parse().ok();
            let (capacity, weight) = (number()?, number()?);
            Some(Part {
                kind,
                capacity,
                weight,
            })
        };
        part().map_or(Self::Foreign, Self::Alone)
    }
}

/// The value that stands for one acquisition of a mutex by this process.
pub(super) fn write(owner: &Owner, since_micros: u64, note: &str) -> Vec<u8> {
    write_as(VERSION, owner, since_micros, note)
}

/// The value that stands for one acquisition of `part` of a lock by this process.
pub(super) fn write_part(part: Part<'_>, owner: &Owner, since_micros: u64, note: &str) -> Vec<u8> {
    write_as(part, owner, since_micros, note)
}

fn write_as(form: impl Display, owner: &Owner, since_micros: u64, note: &str) -> Vec<u8> {
    let (since, pid, host) = (since_micros / 1000, std::process::id(), host());
    // 96: the form, the owner, the two numbers and the spaces.
    let mut value = String::with_capacity(96 + host.len() + note.len());
    let _ = write!(value, "{form} {owner} {since} {pid} {host} {note}");
    value.into_bytes()
}

/// Returns the value that keeps others out after a release. It names the same holder as `mark`, and no renewal matches it.
pub(super) fn kept(mark: &[u8]) -> Vec<u8> {
    let rest = mark.strip_prefix(VERSION.as_bytes()).unwrap_or(mark);
    [KEPT.as_bytes(), rest].concat()
}

/// The owner in a value of this layout.
pub(super) fn owner(mark: &[u8]) -> &[u8] {
    mark.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

/// The process that made `value`, by what its owners end with; `None` when it is not of this layout.
pub(super) fn process(value: &[u8]) -> Option<&str> {
    if !matches!(Form::of(value), Form::Mutex | Form::Alone(_)) {
        return None;
    }
    let owner = std::str::from_utf8(owner(value)).ok()?;
    let is_owner = owner.len() == 32 && owner.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_owner.then(|| &owner[16..])
}

/// Who wrote `value`; a holder without particulars when it is not of this layout.
pub(super) fn read(value: &[u8]) -> Holder {
    let ours = matches!(Form::of(value), Form::Mutex | Form::Alone(_));
    let text = std::str::from_utf8(value).ok().filter(|_| ours);
    text.and_then(particulars).unwrap_or_default()
}

fn particulars(value: &str) -> Option<Holder> {
    let mut parts = value.splitn(6, ' ');
    let released = parts.next()? == KEPT;
    let _owner = parts.next()?;
    let since = Duration::from_millis(parts.next()?.parse().ok()?);
    let pid = parts.next()?.parse().ok()?;
    let host = parts.next()?.to_owned();
    let note = parts.next().filter(|note| !note.is_empty());
    Some(Holder {
        host: Some(host),
        pid: Some(pid),
        since: UNIX_EPOCH
            .checked_add(since)
            .or(Some(SystemTime::UNIX_EPOCH)),
        note: note.map(str::to_owned),
        released,
        ..Holder::default()
    })
}

/// This machine's name, in one word.
fn host() -> &'static str {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let system = rustix::system::uname();
        let name = system.nodename().to_string_lossy();
        match name.is_empty() {
            true => "-".to_owned(),
            false => name.replace(char::is_whitespace, "_"),
        }
    });
    &HOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_without_the_owner() {
        let owner = Owner::random();
        let holder = read(&write(&owner, 1_763_000_000_123_456, "batch of the day"));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.host.as_deref(), Some(host()));
        assert_eq!(holder.note.as_deref(), Some("batch of the day"));
        assert_eq!(
            holder.since,
            UNIX_EPOCH.checked_add(Duration::from_millis(1_763_000_000_123))
        );
        assert!(!format!("{holder:?}").contains(&owner.to_string()));
    }

    #[test]
    fn kept_value_differs_and_shows_the_same_holder() {
        let value = write(&Owner::random(), 1_763_000_000_123_456, "nightly");
        let kept = kept(&value);
        assert_ne!(kept, value);
        let holder = Holder {
            released: true,
            ..read(&value)
        };
        assert_eq!(read(&kept), holder);
        assert_eq!(process(&kept), process(&value));
    }

    #[test]
    fn the_process_is_found_in_what_it_wrote() {
        let value = write(&Owner::random(), 0, "");
        assert_eq!(process(&value), Some(Owner::process().as_str()));
        for foreign in [&b"lh1 0123"[..], b"lh1 \xff", b"0b2c9f", b""] {
            assert_eq!(process(foreign), None);
        }
    }

    #[test]
    fn foreign_values_give_a_holder_without_particulars() {
        for value in [
            &b""[..],
            b"\xff\xfe",
            b"0b2c9f",
            b"lh1",
            b"lh1 x y z",
            b"lh2 a 1 2 h n",
        ] {
            assert_eq!(read(value), Holder::default(), "{value:?}");
        }
    }
}

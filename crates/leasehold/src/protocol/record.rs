//! A held lock's value: the owner, and a description for people.
//!
//! `lh1 OWNER SINCE PID HOST TRACE NOTE`, separated by single spaces. `lh1` is
//! the version of this layout, OWNER has 32 hex digits, SINCE is the server's
//! clock in milliseconds, TRACE is the holder's `traceparent` or `-`, and NOTE
//! is free text to the end. A released lock that `at_least` still holds begins
//! with `lh1:released`. A lock that was handed over begins with
//! `lh1:handover:TOKEN` until it is adopted. A lock that can have a queue
//! begins with `lh1:KIND:CAPACITY:WEIGHT`.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

use super::outcome::LockValue;
use crate::backend::Digits;
use crate::info::{Holder, Process};
use crate::owner::{Owner, Token};
use crate::trace_parent::is_valid;

const VERSION: &str = "lh1";

/// Replaces the version once the owner has released the lock and `at_least`
/// keeps other clients out.
const RELEASED: &str = "lh1:released";

/// Precedes the holder's token once it has handed the lock over, until a
/// process adopts it.
const HANDED_OVER: &str = "lh1:handover:";

/// The prefix of a queue's summary.
const QUEUE: &str = "lh1:queue:";

/// Stands for the trace of a holder without one.
const NO_TRACE: &str = "-";

/// What a value tells people about the owner, besides the host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Description<'a> {
    /// The server's clock when the lock was requested.
    pub(crate) since_micros: u64,
    pub(crate) pid: u32,
    pub(crate) trace: Option<&'a str>,
    pub(crate) note: &'a str,
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form<'a> {
    /// A mutex's holder.
    Mutex,
    /// The only holder of a lock that can have a queue.
    Alone(Part<'a>),
    /// The summary of a queue of this kind.
    Queue(&'a str),
    /// A value of another library.
    Foreign,
}

/// The part of a lock that one holder takes, if the lock can have a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) kind: &'a str,
    pub(super) capacity: u64,
    pub(super) weight: u64,
}

impl<'a> Form<'a> {
    pub(super) fn of(value: &'a [u8]) -> Self {
        // Without a space the value is not ours: every one of our forms has
        // one.
        let end = value.iter().position(|byte| *byte == b' ');
        let first = std::str::from_utf8(&value[..end.unwrap_or(0)]).unwrap_or_default();
        if first == VERSION || first == RELEASED || first.starts_with(HANDED_OVER) {
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

/// Returns the value of one acquisition of a mutex by this process.
pub(super) fn write(owner: &Owner, description: Description<'_>) -> LockValue {
    write_as(&[VERSION.as_bytes()], owner, description)
}

/// Returns the value of one acquisition of `part` of a lock by this process.
pub(super) fn write_part(part: Part<'_>, owner: &Owner, description: Description<'_>) -> LockValue {
    let mut capacity = Digits::default();
    let mut weight = Digits::default();
    let form = [
        VERSION.as_bytes(),
        b":",
        part.kind.as_bytes(),
        b":",
        capacity.of(part.capacity),
        b":",
        weight.of(part.weight),
    ];
    write_as(&form, owner, description)
}

fn write_as(form: &[&[u8]], owner: &Owner, description: Description<'_>) -> LockValue {
    let owner = owner.digits();
    let mut since = Digits::default();
    let mut pid = Digits::default();
    let fields = [
        &owner[..],
        since.of(description.since_micros / 1000),
        pid.of(u64::from(description.pid)),
        host().as_bytes(),
        description.trace.unwrap_or(NO_TRACE).as_bytes(),
        description.note.as_bytes(),
    ];
    let fields = fields.iter().flat_map(|field| [&b" "[..], field]);
    let parts = form.iter().copied().chain(fields);
    // Allocated once, with the final length: each acquire writes a value.
    let length = parts.clone().map(<[u8]>::len).sum();
    let mut value: LockValue = std::iter::repeat_n(0, length).collect();
    let mut rest = Arc::get_mut(&mut value).expect("BUG: a new value is shared");
    for part in parts {
        let (start, end) = rest.split_at_mut(part.len());
        start.copy_from_slice(part);
        rest = end;
    }
    value
}

/// Returns the text of this process: `SINCE PID HOST NOTE`.
pub(super) fn write_process(since_micros: u64, note: &str) -> String {
    let since = since_micros / 1000;
    format!("{since} {}", write_process_now(note))
}

/// Returns the text of this process without SINCE, which a script adds.
pub(super) fn write_process_now(note: &str) -> String {
    let pid = std::process::id();
    format!("{pid} {} {note}", host())
}

/// Reads a process's text.
pub(super) fn read_process(text: &str) -> Option<Process> {
    let mut parts = text.splitn(4, ' ');
    let since = Duration::from_millis(parts.next()?.parse().ok()?);
    Some(Process {
        since: UNIX_EPOCH.checked_add(since),
        pid: Some(parts.next()?.parse().ok()?),
        host: Some(parts.next()?.to_owned()),
        note: parts
            .next()
            .filter(|note| !note.is_empty())
            .map(str::to_owned),
        ..Process::default()
    })
}

/// Returns the value that replaces `value` after a release with `hold_for`. It
/// names the same holder, and no renewal matches it.
pub(super) fn released(value: &[u8]) -> Vec<u8> {
    // The owner stays, but renewals compare the whole value, so none matches.
    let rest = value.strip_prefix(VERSION.as_bytes()).unwrap_or(value);
    [RELEASED.as_bytes(), rest].concat()
}

/// Returns the value that replaces `value` after a hand-over to `owner`. It
/// names the same process, and its token for the adopter to exceed.
pub(super) fn handed_over(value: &[u8], owner: &Owner, token: Token) -> Vec<u8> {
    with_owner(format!("{HANDED_OVER}{token}").as_bytes(), value, owner)
}

/// Returns the value with another owner.
pub(super) fn replace_owner(value: &[u8], owner: &Owner) -> Vec<u8> {
    let form = value.split(|byte| *byte == b' ').next();
    with_owner(form.unwrap_or_default(), value, owner)
}

fn with_owner(form: &[u8], value: &[u8], owner: &Owner) -> Vec<u8> {
    // Everything behind the form and the owner.
    let rest = value.splitn(3, |byte| *byte == b' ').nth(2);
    let owner = owner.to_string();
    [form, owner.as_bytes(), rest.unwrap_or_default()].join(&b' ')
}

/// Returns the owner in a value of this layout.
pub(super) fn owner(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

/// Returns the process that wrote `value`, which is the second half of the
/// owner; `None` if the value has another layout.
pub(super) fn process(value: &[u8]) -> Option<&str> {
    if !matches!(Form::of(value), Form::Mutex | Form::Alone(_)) {
        return None;
    }
    let owner = std::str::from_utf8(owner(value)).ok()?;
    // The process half names a channel, so nothing but hex digits may get
    // there.
    let is_owner = owner.len() == 32 && owner.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_owner.then(|| &owner[16..])
}

/// Reads the holder that wrote `value`. All fields are empty if the value has
/// another layout.
pub(super) fn read(value: &[u8]) -> Holder {
    let ours = matches!(Form::of(value), Form::Mutex | Form::Alone(_));
    let text = std::str::from_utf8(value).ok().filter(|_| ours);
    text.and_then(read_fields).unwrap_or_default()
}

fn read_fields(value: &str) -> Option<Holder> {
    let mut parts = value.splitn(3, ' ');
    let form = parts.next()?;
    let _owner = parts.next()?;
    let process = read_process(parts.next()?)?;
    let (trace, note) = process.note.as_deref()?.split_once(' ')?;
    let note = (!note.is_empty()).then(|| note.to_owned());
    Some(Holder {
        // Any client can write the value: we link to nothing but a trace.
        trace_parent: is_valid(trace).then(|| trace.to_owned()),
        process: Process { note, ..process },
        released: form == RELEASED,
        handed_over: form.starts_with(HANDED_OVER),
        ..Holder::default()
    })
}

/// Returns this machine's name, without whitespace.
fn host() -> &'static str {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let name = host_name();
        match name.is_empty() {
            true => "-".to_owned(),
            // Fields are separated by spaces.
            false => name.replace(char::is_whitespace, "_"),
        }
    });
    &HOST
}

#[cfg(unix)]
fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Returns the name that Windows sets for every process.
#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn described(note: &str) -> Description<'_> {
        Description {
            since_micros: 1_763_000_000_123_456,
            pid: 4711,
            trace: None,
            note,
        }
    }

    #[test]
    fn trace_and_note_are_read_back() {
        // A note that looks like a trace stays a note.
        for note in ["", "monthly report", " two  spaces ", TRACE] {
            for trace in [None, Some(TRACE)] {
                let description = Description {
                    trace,
                    ..described(note)
                };
                let holder = read(&write(&Owner::random(), description));
                assert_eq!(holder.trace_parent.as_deref(), trace);
                assert_eq!(holder.process.note.unwrap_or_default(), note);
            }
        }
        let forged = b"lh1 0f1e 1 2 host 00-evil note";
        assert_eq!(read(forged).trace_parent, None);
        assert_eq!(read(forged).process.note.as_deref(), Some("note"));
    }

    #[test]
    fn holder_is_read_back_without_the_owner() {
        let owner = Owner::random();
        let holder = read(&write(&owner, described("daily batch")));
        assert_eq!(holder.process.pid, Some(4711));
        assert_eq!(holder.process.host.as_deref(), Some(host()));
        assert_eq!(holder.process.note.as_deref(), Some("daily batch"));
        assert_eq!(
            holder.process.since,
            UNIX_EPOCH.checked_add(Duration::from_millis(1_763_000_000_123))
        );
        assert!(!format!("{holder:?}").contains(&owner.to_string()));
    }

    #[test]
    fn released_value_differs_and_names_the_holder() {
        let value = write(&Owner::random(), described("nightly"));
        let released = released(&value);
        assert_ne!(released[..], value[..]);
        let holder = Holder {
            released: true,
            ..read(&value)
        };
        assert_eq!(read(&released), holder);
        assert_eq!(process(&released), process(&value));
    }

    #[test]
    fn handed_over_value_has_another_owner() {
        let (giver, next) = (Owner::random(), Owner::random());
        let value = write(&giver, described("a note"));
        let pending = handed_over(&value, &next, Token::new(42));
        assert_eq!(owner(&pending), next.to_string().as_bytes());
        assert!(pending.starts_with(b"lh1:handover:42 "));
        assert_eq!(Form::of(&pending), Form::Mutex);
        let holder = Holder {
            handed_over: true,
            ..read(&value)
        };
        assert_eq!(read(&pending), holder);
        let replaced = replace_owner(&value, &next);
        assert_eq!(owner(&replaced), next.to_string().as_bytes());
        assert_eq!(read(&replaced), read(&value));
    }

    #[test]
    fn process_is_read_from_its_values_only() {
        let value = write(&Owner::random(), Description::default());
        assert_eq!(process(&value), Some(Owner::process().as_str()));
        for foreign in [&b"lh1 0123"[..], b"lh1 \xff", b"0b2c9f", b""] {
            assert_eq!(process(foreign), None);
        }
    }

    #[test]
    fn foreign_value_reads_as_an_empty_holder() {
        for value in [
            &b""[..],
            b"\xff\xfe",
            b"0b2c9f",
            b"lh1",
            b"lh1 x y z",
            b"lh2 a 1 2 h - n",
        ] {
            assert_eq!(read(value), Holder::default(), "{value:?}");
        }
    }
}

//! The holder's trace in the note of a lock.
//!
//! A holder that is part of a distributed trace stores its W3C `traceparent`
//! in front of its note: `traceparent=00-…-…-01 NOTE`. A waiter reads it from
//! the reply that reports the lock busy, so the link to the holder's trace
//! costs no request. Clients that do not know the prefix show it as a part of
//! the note.

use std::fmt;
use std::sync::Arc;

const PREFIX: &str = "traceparent=";

/// The lengths of the parts of a `traceparent`: version, trace id, span id and
/// flags.
const PARTS: [usize; 4] = [2, 32, 16, 2];

/// A function that returns the `traceparent` of the current task.
#[derive(Clone)]
pub(crate) struct TraceParentSource(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl TraceParentSource {
    pub(crate) fn new(source: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Returns `note` with the trace of the current task, if it has a valid
    /// one.
    pub(crate) fn add_to(&self, note: &str) -> Option<String> {
        let parent = (self.0)().filter(|parent| is_valid(parent))?;
        Some(format!("{PREFIX}{parent} {note}"))
    }
}

impl fmt::Debug for TraceParentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceParentSource")
    }
}

/// Splits a note into the holder's `traceparent` and the rest.
pub(crate) fn split(note: &str) -> (Option<&str>, &str) {
    let parts = note.strip_prefix(PREFIX);
    match parts.map(|rest| rest.split_once(' ').unwrap_or((rest, ""))) {
        Some((parent, rest)) if is_valid(parent) => (Some(parent), rest),
        _ => (None, note),
    }
}

/// Returns the trace id of a valid `traceparent`.
pub(crate) fn trace_id(parent: &str) -> &str {
    parent.split('-').nth(1).unwrap_or_default()
}

fn is_valid(parent: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let parts: Vec<_> = parent.split('-').collect();
    parts.len() == PARTS.len()
        && parts
            .iter()
            .zip(PARTS)
            .all(|(part, len)| part.len() == len && part.bytes().all(is_hex))
        && parts[0] != "ff"
        && parts[1..3]
            .iter()
            .all(|id| id.bytes().any(|digit| digit != b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn note_with_a_trace_is_split_again() {
        let source = TraceParentSource::new(|| Some(PARENT.to_owned()));
        for note in ["", "monthly report", " two  spaces "] {
            let stored = source.add_to(note).unwrap();
            assert_eq!(split(&stored), (Some(PARENT), note));
        }
        assert_eq!(trace_id(PARENT), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn invalid_trace_is_neither_stored_nor_read() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for parent in ["", "00", zero, &PARENT.to_uppercase(), "00-4bf9 evil-1-01"] {
            let invalid = parent.to_owned();
            let source = TraceParentSource::new(move || Some(invalid.clone()));
            assert_eq!(source.add_to("note"), None, "{parent}");
            let note = format!("{PREFIX}{parent} note");
            assert_eq!(split(&note), (None, note.as_str()));
        }
    }
}

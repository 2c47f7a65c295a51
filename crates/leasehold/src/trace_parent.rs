//! The W3C `traceparent` of a holder.
//!
//! A holder that is part of a distributed trace stores it in the lock's value.
//! A waiter reads it from the reply that reports the lock busy, so the link to
//! the holder's trace costs no request.

use std::fmt;
use std::sync::Arc;

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

    /// Returns the trace of the current task, if it has a valid one.
    pub(crate) fn current(&self) -> Option<String> {
        (self.0)().filter(|parent| is_valid(parent))
    }
}

impl fmt::Debug for TraceParentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceParentSource")
    }
}

/// Returns the trace id of a valid `traceparent`.
pub(crate) fn trace_id(parent: &str) -> &str {
    parent.split('-').nth(1).unwrap_or_default()
}

/// Returns whether a text is a `traceparent`, in the form that W3C defines.
pub(crate) fn is_valid(parent: &str) -> bool {
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
    fn trace_id_is_the_second_part() {
        assert!(is_valid(PARENT));
        assert_eq!(trace_id(PARENT), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn invalid_trace_is_not_stored() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for parent in ["", "00", zero, &PARENT.to_uppercase(), "00-4bf9 evil-1-01"] {
            let invalid = parent.to_owned();
            let source = TraceParentSource::new(move || Some(invalid.clone()));
            assert_eq!(source.current(), None, "{parent}");
        }
    }
}

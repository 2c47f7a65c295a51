//! Spans of time.

use crate::history::Timestamp;

/// A span from its start to its end.
pub(super) type Span = (Timestamp, Timestamp);

/// Sorts spans, and merges those that overlap or touch.
pub(super) fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for (from, until) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => merged.push((from, until)),
        }
    }
    merged
}

/// Returns the parts between `from` and `until` that no span covers.
pub(super) fn gaps(spans: &[Span], from: Timestamp, until: Timestamp) -> Vec<Span> {
    let first = spans.partition_point(|span| span.1 <= from);
    let inside = spans[first..].iter().take_while(|span| span.0 < until);
    let mut gaps = Vec::new();
    let mut free = from;
    for span in inside {
        if span.0 > free {
            gaps.push((free, span.0));
        }
        free = free.max(span.1);
    }
    if free < until {
        gaps.push((free, until));
    }
    gaps
}

/// Returns how much of the time between `from` and `until` the spans cover.
pub(super) fn overlap(spans: &[Span], from: Timestamp, until: Timestamp) -> u64 {
    let first = spans.partition_point(|span| span.1 <= from);
    let inside = spans[first..].iter().take_while(|span| span.0 < until);
    inside
        .map(|span| span.1.min(until) - span.0.max(from))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_spans_are_merged() {
        assert_eq!(
            merged(vec![(5, 9), (1, 3), (3, 4), (6, 7)]),
            [(1, 4), (5, 9)]
        );
    }

    #[test]
    fn gaps_and_overlap_are_complementary() {
        assert_eq!(gaps(&[(2, 4), (6, 8)], 1, 9), [(1, 2), (4, 6), (8, 9)]);
        assert_eq!(gaps(&[(0, 4), (6, 8)], 1, 7), [(4, 6)]);
        assert_eq!(overlap(&[(2, 4), (6, 8)], 3, 7), 2);
    }
}

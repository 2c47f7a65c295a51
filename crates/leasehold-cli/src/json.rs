//! JSON output: one line per value.

use serde::Serialize;

use crate::output::affects_terminal;

/// Serializes `value` as one line.
///
/// Characters that affect a terminal are escaped, which does not change the
/// value.
pub(crate) fn line(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("BUG: the value cannot be serialized");
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match affects_terminal(c) {
            true => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_escaped_and_unchanged() {
        let hostile = "\n\x1b\u{7f}\u{9b}\u{202e}\u{2069}b\"\\";
        let line = line(&hostile);
        assert!(!line.trim_end().contains(affects_terminal), "{line:?}");
        let parsed: String = serde_json::from_str(&line).expect("JSON");
        assert_eq!(parsed, hostile);
    }
}

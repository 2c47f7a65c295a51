//! JSON output: one line per value.

use serde::Serialize;

use crate::output::acts;

/// Anything as one line. JSON may have characters that speak to a terminal; they are escaped, and mean the same.
pub(crate) fn line(data: &impl Serialize) -> String {
    let json = serde_json::to_string(data).expect("BUG: what is shown can be written as JSON");
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match acts(c) {
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
    fn json_of_hostile_text_is_harmless_and_the_same() {
        let hostile = "\n\x1b\u{7f}\u{9b}\u{202e}\u{2069}b\"\\";
        let line = line(&hostile);
        assert!(!line.trim_end().contains(acts), "{line:?}");
        let read: String = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read, hostile);
    }
}

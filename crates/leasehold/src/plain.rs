//! Escaping of untrusted text in messages: names, notes and server errors.
//!
//! The text is shown unchanged, except for characters that act on a terminal or
//! a log: they start a line, move the cursor, or reverse the text after them.

use std::fmt::{self, Write};

/// Displays `text` with control characters escaped, as in `\n` and `\u{1b}`.
pub(crate) fn plain(text: &str) -> Plain<'_> {
    Plain(text)
}

/// The return type of [`plain`].
pub(crate) struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match is_active(c) {
                true => write!(f, "{}", c.escape_default())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Returns whether `c` is a control character, a line separator, or sets the
/// direction of text.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\r\n\x1b[2J\u{9b}2J\u{202e}b\u{2066}\u{2029}\u{200f}";
        assert_eq!(
            plain(hostile).to_string(),
            r"a\r\n\u{1b}[2J\u{9b}2J\u{202e}b\u{2066}\u{2029}\u{200f}"
        );
    }

    #[test]
    fn other_characters_are_unchanged() {
        let text = "C:\\temp \"état\" 夜間 e\u{301} 👩\u{200d}👧 שלום";
        assert_eq!(plain(text).to_string(), text);
    }
}

//! Text of others in messages: names, notes and what servers say.
//!
//! It is shown as it is, except for characters that would do something to a terminal or a log: begin a line, move the
//! cursor, or turn the text behind them around.

use std::fmt::{self, Write};

/// Displays `text` with such characters escaped, as in `\n` and `\u{1b}`.
pub(crate) fn plain(text: &str) -> Plain<'_> {
    Plain(text)
}

/// What [`plain`] returns.
pub(crate) struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match acts(c) {
                true => write!(f, "{}", c.escape_default())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Whether a character does something: controls, separators of lines, and what sets the direction of text.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_are_escaped() {
        let hostile = "a\r\n\x1b[2J\u{9b}2J\u{202e}b\u{2066}\u{2029}\u{200f}";
        assert_eq!(
            plain(hostile).to_string(),
            r"a\r\n\u{1b}[2J\u{9b}2J\u{202e}b\u{2066}\u{2029}\u{200f}"
        );
    }

    #[test]
    fn other_characters_stay_as_they_are() {
        let text = "C:\\temp \"état\" 夜間 e\u{301} 👩\u{200d}👧 שלום";
        assert_eq!(plain(text).to_string(), text);
    }
}

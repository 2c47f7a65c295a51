//! What the command says for itself: lines on standard error that begin with `leasehold:`, and a hint where one helps.
//!
//! Standard output is the program's, or the data asked for. Others have a hand in all of it: nothing that they wrote
//! begins a line or speaks to the terminal.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use leasehold::{Error, Holder};

use crate::{duration, exit};

/// A wait that is shorter than this was none.
const SHORT: std::time::Duration = std::time::Duration::from_millis(50);

/// Says something, in one line.
pub(crate) fn say(text: impl Display) {
    let text = printable(&text.to_string());
    // Where standard error is gone there is nobody to tell.
    let _ = writeln!(io::stderr(), "leasehold: {text}");
}

/// Says something of several lines, which is the command's own text.
pub(crate) fn say_lines(text: &str) {
    let lines: Vec<_> = text.lines().map(printable).collect();
    let _ = writeln!(io::stderr(), "leasehold: {}", lines.join("\n"));
}

/// Says what to do about what was said.
pub(crate) fn hint(text: impl Display) {
    let text = printable(&text.to_string());
    let _ = writeln!(io::stderr(), "  hint: {text}");
}

/// What a forced release did to one holder of `name`.
pub(crate) fn revoked(name: &str, holder: &Holder) -> String {
    match holder.released {
        true => format!("freed `{name}`, last held by {holder}"),
        false => format!("took `{name}` away from {holder}"),
    }
}

/// Prints what was asked for.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    let outcome = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    is_read(outcome).map(drop)
}

/// What came of printing: whether anybody reads on. A reader that has seen enough, as `head`, is no error.
pub(crate) fn is_read(outcome: io::Result<()>) -> Result<bool, CliError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let text = format!("cannot print: {error}");
            Err(CliError::new(exit::NOT_PRINTED, text))
        }
    }
}

/// Why the command cannot go on, to be told when it ends.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) code: u8,
    text: String,
    hint: Option<String>,
}

impl CliError {
    pub(crate) fn new(code: u8, text: impl Display) -> Self {
        Self {
            code,
            text: text.to_string(),
            hint: None,
        }
    }

    pub(crate) fn with_hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    pub(crate) fn usage(text: impl Display) -> Self {
        Self::new(exit::USAGE, text)
    }

    /// A wait that was in vain.
    pub(crate) fn busy(error: &Error) -> Self {
        let Error::Timeout {
            name,
            waited,
            holder,
            position,
        } = error
        else {
            return Self::new(exit::of(error), error);
        };
        let mut text = match *waited < SHORT {
            true => format!("`{name}` is held"),
            false => format!(
                "waited {} for `{name}`, which is held",
                duration::show(*waited)
            ),
        };
        if let Some(holder) = holder {
            text += &format!(" by {holder}");
        }
        if let Some(position) = position {
            text += &format!("; number {position} in line");
        }
        Self::new(exit::BUSY, text)
    }

    /// Tells it, and says which code to end with.
    pub(crate) fn tell(&self) -> u8 {
        say(&self.text);
        if let Some(text) = &self.hint {
            hint(text);
        }
        self.code
    }
}

impl Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        let trouble = match &error {
            Error::Timeout { .. } => Self::busy(&error),
            _ => Self::new(exit::of(&error), chain(&error)),
        };
        match hint_for(&error) {
            Some(hint) => trouble.with_hint(hint),
            None => trouble,
        }
    }
}

/// An error and all that lies behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn hint_for(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Unavailable(_) => {
            "is the address right? set it with --url, LEASEHOLD_URL or in the configuration file"
        }
        Error::Denied(_) => "`leasehold doctor` says which right is missing",
        Error::NoQuorum(_) => {
            "`leasehold quorum init` must be used once; nodes that were started again wait for a while"
        }
        Error::NotReplicated { .. } => "is a replica down? ask for fewer with --replicas",
        Error::OutOfMemory(_) => "free some of the server's memory; locks that are held stay held",
        Error::WrongType { .. } => {
            "-s and -x, --fair, --permits and none of them are locks of different kinds: all who use a name must agree"
        }
        _ => return None,
    })
}

/// Names and notes are anybody's: nothing in them may speak to the terminal.
pub(crate) fn printable(text: &str) -> String {
    let harmless = |c: char| if acts(c) { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// Whether a character does something: controls, separators of lines, and what sets the direction of text.
pub(crate) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether to use colours on this stream.
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_neither_moves_nor_turns_around() {
        let hostile = "a\n\x1b\u{9b}\u{202e}\u{2066}\u{2029}\u{200f}b";
        assert_eq!(printable(hostile), format!("a{}b", "\u{fffd}".repeat(7)));
        let harmless = "état 夜間 שלום e\u{301} 👩\u{200d}👧";
        assert_eq!(printable(harmless), harmless);
    }
}

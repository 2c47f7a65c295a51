//! What the command says for itself: lines on standard error that begin with `leasehold:`, and a hint where one helps.
//!
//! Standard output is the program's, or the data asked for.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

use leasehold::Error;

use crate::{exit, span};

/// A wait that is shorter than this was none.
const SHORT: std::time::Duration = std::time::Duration::from_millis(50);

/// Says something.
pub(crate) fn say(text: impl Display) {
    // Where standard error is gone there is nobody to tell.
    let text = text.to_string();
    let lines: Vec<_> = text.lines().map(printable).collect();
    let _ = writeln!(std::io::stderr(), "leasehold: {}", lines.join("\n"));
}

/// Says what to do about what was said.
pub(crate) fn hint(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "  hint: {text}");
}

/// Why the command cannot go on, to be told when it ends.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) code: u8,
    text: String,
    hint: Option<String>,
}

impl Trouble {
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
            false => format!("waited {} for `{name}`, which is held", span::show(*waited)),
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

impl Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Trouble {
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
            "`leasehold quorum found` must be used once; nodes that were started again wait for a while"
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
    let harmless = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// Whether to use colours on this stream.
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

//! Messages on standard error, output on standard output, and [`CliError`].
//!
//! Messages begin with `leasehold:`, and a hint may follow. Standard output
//! belongs to the command that `run` starts, or to the requested data. Names,
//! notes and server errors are written by others: no such text may begin a
//! line or affect the terminal.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use leasehold::{Error, Holder};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::{duration, exit, messages};

/// Writes a message of one line.
pub(crate) fn message(text: impl Display) {
    messages::write(format!("leasehold: {}\n", printable(&text.to_string())));
}

/// Writes a message of several lines. The line breaks must not come from
/// others.
pub(crate) fn message_lines(text: &str) {
    let lines: Vec<_> = text.lines().map(printable).collect();
    messages::write(format!("leasehold: {}\n", lines.join("\n")));
}

/// Writes advice on the previous message.
pub(crate) fn hint(text: impl Display) {
    messages::write(format!("  hint: {}\n", printable(&text.to_string())));
}

/// Describes the effect of a forced release of `name` on `holder`.
pub(crate) fn revoked(name: &str, holder: &Holder) -> String {
    match holder.released || holder.handed_over {
        true => format!("freed `{name}`, last held by {holder}"),
        false => format!("revoked `{name}` from {holder}"),
    }
}

/// Writes to standard output, and returns whether more can be written.
pub(crate) fn print(text: &str) -> Result<bool, CliError> {
    let mut out = io::stdout().lock();
    let outcome = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    reader_remains(outcome)
}

/// Waits until the reader of standard output closes the pipe. Never resolves
/// if standard output is a file.
pub(crate) async fn reader_closed() {
    let (sender, closed) = oneshot::channel();
    // The thread ends with the process.
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // Errors of a descriptor are reported without being requested.
        let mut descriptors = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        while poll(&mut descriptors, PollTimeout::NONE) == Err(Errno::EINTR) {}
        let _ = sender.send(());
    });
    let _ = closed.await;
}

/// Returns whether more output can be written after `outcome`.
///
/// A reader that closes the pipe early, as `head` does, is not an error.
pub(crate) fn reader_remains(outcome: io::Result<()>) -> Result<bool, CliError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let text = format!("cannot write to standard output: {error}");
            Err(CliError::new(exit::NOT_PRINTED, text))
        }
    }
}

/// An error that ends the CLI: a message, an optional hint, and an exit code.
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

    /// Returns the error for a lock that another client holds, and that the
    /// caller waited for or not.
    pub(crate) fn busy(error: &Error, waited_for: bool) -> Self {
        let Error::Timeout {
            name,
            waited,
            holder,
            position,
        } = error
        else {
            return Self::new(exit::of(error), error);
        };
        let mut text = match (waited_for, holder) {
            (false, Some(holder)) => format!("`{name}` is held by {holder}"),
            (false, None) => format!("`{name}` is held"),
            (true, holder) => {
                let waited = duration::format(*waited);
                let mut text = format!("timed out after {waited} waiting for `{name}`");
                if let Some(holder) = holder {
                    text += &format!(", held by {holder}");
                }
                text
            }
        };
        if let Some(position) = position {
            text += &format!(" (queue position {position})");
        }
        Self::new(exit::BUSY, text)
    }

    /// Writes the message and the hint, and returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        message(&self.text);
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
        let cli_error = match &error {
            Error::Timeout { .. } => Self::busy(&error, true),
            Error::Invalid { what, .. } => {
                let text = error.to_string();
                Self::usage(match option_for(what) {
                    Some(option) => text.replacen(&format!("`{what}`"), option, 1),
                    None => text,
                })
            }
            _ => Self::new(exit::of(&error), &error),
        };
        match hint_for(&error) {
            Some(hint) => cli_error.with_hint(hint),
            None => cli_error,
        }
    }
}

/// Returns the option that sets an argument of the library. Other arguments
/// can also come from the configuration file, which uses the same names.
fn option_for(what: &str) -> Option<&'static str> {
    Some(match what {
        "at_least" => "--at-least",
        "life" => "--life",
        "note" => "--note",
        "progress_within" => "--watchdog",
        "replicas" => "--replicas",
        "tick" => "--once-per",
        _ => return None,
    })
}

fn hint_for(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Unavailable(why) => hint_for_outage(&why.to_string()),
        Error::Denied(_) => "run `leasehold doctor` to find the missing permission",
        Error::NoQuorum(_) => {
            "new and restarted nodes: https://github.com/leasehold/leasehold/blob/main/docs/servers.md#quorum"
        }
        Error::NotReplicated { .. } => "check the replicas, or require fewer with --replicas",
        Error::OutOfMemory(_) => "free memory on the server; held locks stay held",
        Error::WrongType { .. } => {
            "use the same kind of lock for a name everywhere: -s and -x, --fair, --permits, or none of these; `leasehold run` cannot acquire Redisson's locks"
        }
        Error::Unexpected(why) => return hint_for_reply(&why.to_string()),
        _ => return None,
    })
}

/// Only the text tells why: a program does the same in all these cases.
fn hint_for_outage(why: &str) -> &'static str {
    if why.contains("credentials") {
        "check the user, and --password-file or --password-command"
    } else if why.contains("no reply") {
        "the server hangs or is slow (--request-timeout), or only one side uses TLS (rediss://)"
    } else {
        "check the address in --url, LEASEHOLD_URL or the configuration file"
    }
}

fn hint_for_reply(why: &str) -> Option<&'static str> {
    if why.contains("DB index") {
        Some("check the database at the end of the URL")
    } else if why.contains("'SENTINEL'") {
        Some("the server is no sentinel; use redis://HOST")
    } else {
        None
    }
}

/// Replaces characters that affect the terminal.
pub(crate) fn printable(text: &str) -> String {
    let replace = |c: char| if affects_terminal(c) { '\u{fffd}' } else { c };
    text.chars().map(replace).collect()
}

/// Returns whether a character is a control, a line separator, or sets the
/// direction of text.
pub(crate) fn affects_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether to use colors on this stream.
pub(crate) fn use_colors(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_replaces_only_hostile_characters() {
        let hostile = "a\n\x1b\u{9b}\u{202e}\u{2066}\u{2029}\u{200f}b";
        assert_eq!(printable(hostile), format!("a{}b", "\u{fffd}".repeat(7)));
        let harmless = "état 夜間 שלום e\u{301} 👩\u{200d}👧";
        assert_eq!(printable(harmless), harmless);
    }
}

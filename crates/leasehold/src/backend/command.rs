//! Commands, encoded as RESP while they are built.

use std::fmt;

/// A command: its name and arguments.
#[derive(Clone)]
pub(crate) struct Command {
    /// The number of words, including the name.
    words: usize,
    /// Each word as a RESP bulk string.
    encoded: Vec<u8>,
    /// The script behind an `EVALSHA`, sent as `EVAL` if the server does not
    /// know the digest.
    source: Option<&'static str>,
}

impl Command {
    pub(crate) fn new(name: &str) -> Self {
        let empty = Self {
            words: 0,
            encoded: Vec::with_capacity(192),
            source: None,
        };
        empty.arg(name)
    }

    /// Builds an `EVALSHA` of `digest`. If the server does not know the digest,
    /// the connection sends `source` instead.
    pub(crate) fn script(digest: &str, source: &'static str) -> Self {
        let mut command = Self::new("EVALSHA").arg(digest);
        command.source = Some(source);
        command
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        let arg = arg.as_ref();
        self.words += 1;
        write_length(&mut self.encoded, b'$', arg.len() as u64);
        self.encoded.extend_from_slice(arg);
        self.encoded.extend_from_slice(b"\r\n");
        self
    }

    pub(crate) fn number(self, number: u64) -> Self {
        let mut digits = Digits::default();
        self.arg(digits.of(number))
    }

    /// Appends the command to `out` as RESP.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        write_length(out, b'*', self.words as u64);
        out.extend_from_slice(&self.encoded);
    }

    /// Returns whether this is a `WAIT`, whose reply depends on earlier writes.
    pub(super) fn is_wait(&self) -> bool {
        self.encoded.starts_with(b"$4\r\nWAIT\r\n")
    }

    /// Returns the words, starting with the name.
    fn args(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.encoded.as_slice();
        std::iter::from_fn(move || {
            let end = rest.iter().position(|byte| *byte == b'\r')?;
            let length: usize = std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()?;
            let word = rest.get(end + 2..end + 2 + length)?;
            rest = &rest[end + 2 + length + 2..];
            Some(word)
        })
    }

    /// Returns this `EVALSHA` as an `EVAL`, which also loads the script into
    /// the server's cache.
    fn with_source(&self) -> Option<Self> {
        let eval = Self::new("EVAL").arg(self.source?);
        // Skips `EVALSHA` and the digest.
        Some(self.args().skip(2).fold(eval, Self::arg))
    }
}

/// Appends a RESP type byte and a length.
pub(super) fn write_length(out: &mut Vec<u8>, kind: u8, length: u64) {
    out.push(kind);
    out.extend_from_slice(Digits::default().of(length));
    out.extend_from_slice(b"\r\n");
}

/// A buffer for the decimal digits of a number.
#[derive(Default)]
pub(super) struct Digits([u8; 20]);

impl Digits {
    pub(super) fn of(&mut self, mut number: u64) -> &[u8] {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return &self.0[at..];
            }
        }
    }
}

/// Commands that are sent as one pipeline. Replies have the same order.
#[derive(Clone, Default)]
pub(crate) struct Batch {
    commands: Vec<Command>,
    /// Whether a quorum waits for every node instead of a majority.
    pub(super) await_all_nodes: bool,
}

impl Batch {
    pub(crate) fn new(commands: Vec<Command>, await_all_nodes: bool) -> Self {
        Self {
            commands,
            await_all_nodes,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns the words of the command at `index`, starting with the name.
    pub(crate) fn args(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        self.commands.get(index).into_iter().flat_map(Command::args)
    }

    pub(super) fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Appends a command.
    pub(super) fn with(mut self, command: Command) -> Self {
        self.commands.push(command);
        self
    }

    /// Returns a batch of the commands at `indices`.
    pub(super) fn select(&self, indices: &[usize]) -> Self {
        indices
            .iter()
            .filter_map(|index| self.command(*index))
            .collect()
    }

    pub(super) fn command(&self, index: usize) -> Option<Command> {
        self.commands.get(index).cloned()
    }

    /// Returns the script at `index` as an `EVAL`, or `None` if it is no
    /// script.
    pub(super) fn with_source(&self, index: usize) -> Option<Command> {
        self.commands.get(index)?.with_source()
    }
}

#[cfg(test)]
impl Batch {
    /// Returns the title in the first line of the script at `index`. A script
    /// with preludes begins with the first one's.
    pub(crate) fn script_name(&self, index: usize) -> Option<&'static str> {
        let source = self.commands.get(index)?.source?;
        source.lines().next()?.strip_prefix("-- ")
    }
}

impl FromIterator<Command> for Batch {
    fn from_iter<I: IntoIterator<Item = Command>>(commands: I) -> Self {
        Self::new(commands.into_iter().collect(), false)
    }
}

impl fmt::Debug for Batch {
    /// Shows command names only. Arguments contain owner ids, and an owner id
    /// is all that a release needs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0..self.len()).filter_map(|index| self.args(index).next());
        f.debug_list()
            .entries(names.map(String::from_utf8_lossy))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_encoded_as_resp() {
        let mut sent = Vec::new();
        let command = Command::new("SET").arg("k\r\n").arg("").number(120);
        command.write_to(&mut sent);
        let expected = b"*4\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$0\r\n\r\n$3\r\n120\r\n";
        assert_eq!(sent, expected);
        let words: Vec<_> = command.args().collect();
        assert_eq!(words, [&b"SET"[..], b"k\r\n", b"", b"120"]);
        let max = Command::new("x").number(u64::MAX);
        let max: Vec<_> = max.args().collect();
        assert_eq!(max[1], u64::MAX.to_string().as_bytes());
    }

    #[test]
    fn script_converts_to_eval_with_source() {
        let command = Command::script("digest", "return 1").number(0).arg("x");
        let eval = command.with_source().unwrap();
        let words: Vec<_> = eval.args().collect();
        assert_eq!(words, [&b"EVAL"[..], b"return 1", b"0", b"x"]);
        assert!(Command::new("GET").with_source().is_none());
    }
}

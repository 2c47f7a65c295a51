//! Commands, encoded as RESP while they are built.

use std::fmt;

use super::Admitted;

/// Commands that are sent as one pipeline. Replies have the same order.
///
/// All of them share one buffer, which is what is sent.
#[derive(Default)]
pub(crate) struct Batch {
    encoded: Vec<u8>,
    len: usize,
    /// Where the last command begins.
    last: usize,
    /// The number of words of the last command, including the name.
    words: u32,
    /// Whether a quorum waits for every node instead of a majority.
    pub(crate) await_all_nodes: bool,
    /// Ends when the server has replied. A copy has none.
    pub(crate) admitted: Option<Admitted>,
    /// Known commands, in order: each script, and the first command of each
    /// batch that was appended. Most batches have none.
    marks: Vec<Mark>,
}

/// Where a command begins.
#[derive(Clone, Copy, Default)]
struct Mark {
    index: usize,
    offset: usize,
    /// The script behind an `EVALSHA`, sent as `EVAL` if the server does not
    /// know the digest.
    source: Option<&'static str>,
}

impl Mark {
    /// Marks the first command as a script.
    fn script(source: &'static str) -> Self {
        Self {
            source: Some(source),
            ..Self::default()
        }
    }
}

impl Clone for Batch {
    fn clone(&self) -> Self {
        Self {
            encoded: self.encoded.clone(),
            marks: self.marks.clone(),
            admitted: None,
            ..*self
        }
    }
}

impl Batch {
    /// Begins the first command.
    pub(crate) fn new(name: impl AsRef<[u8]>) -> Self {
        let empty = Self {
            encoded: Vec::with_capacity(256),
            ..Self::default()
        };
        empty.then(name)
    }

    /// Builds an `EVALSHA` of `digest`. If the server does not know the digest,
    /// the connection sends `source` instead.
    pub(crate) fn script(digest: &str, source: &'static str) -> Self {
        let mut command = Self::new("EVALSHA").arg(digest);
        command.marks.push(Mark::script(source));
        command
    }

    /// Begins the next command.
    pub(crate) fn then(mut self, name: impl AsRef<[u8]>) -> Self {
        self.len += 1;
        self.last = self.encoded.len();
        self.words = 0;
        self.encoded.extend_from_slice(b"*0\r\n");
        self.arg(name)
    }

    /// Appends a word to the last command.
    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        let arg = arg.as_ref();
        self.count_word();
        write_length(&mut self.encoded, b'$', arg.len() as u64);
        self.encoded.extend_from_slice(arg);
        self.encoded.extend_from_slice(b"\r\n");
        self
    }

    pub(crate) fn number(self, number: u64) -> Self {
        let mut digits = Digits::default();
        self.arg(digits.of(number))
    }

    /// Writes how many words the last command has, with one more.
    fn count_word(&mut self) {
        let count_at = self.last + 1;
        self.words += 1;
        match self.words {
            1..10 => self.encoded[count_at] += 1,
            words => {
                let width = Digits::default().of(u64::from(words - 1)).len();
                let mut digits = Digits::default();
                let digits = digits.of(u64::from(words)).iter().copied();
                self.encoded.splice(count_at..count_at + width, digits);
            }
        }
    }

    /// Appends all commands of `other`.
    pub(crate) fn and(mut self, other: Self) -> Self {
        let first = other.mark(0);
        let rest = other.marks.iter().filter(|mark| mark.index > 0).copied();
        let marks = std::iter::once(first).chain(rest).map(|mark| Mark {
            index: self.len + mark.index,
            offset: self.encoded.len() + mark.offset,
            source: mark.source,
        });
        self.marks.extend(marks);
        self.last = self.encoded.len() + other.last;
        self.words = other.words;
        self.len += other.len;
        self.encoded.extend(other.encoded);
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the words of the command at `index`, starting with the name.
    pub(crate) fn args(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let mark = self.mark(index);
        let mut rest = &self.encoded[mark.offset..];
        for _ in mark.index..index {
            let words = read_length(&mut rest).unwrap_or_default();
            for _ in 0..words {
                read_word(&mut rest);
            }
        }
        let words = read_length(&mut rest).unwrap_or_default();
        (0..words).map_while(move |_| read_word(&mut rest))
    }

    /// Returns the last known command up to `index`.
    fn mark(&self, index: usize) -> Mark {
        let after = self.marks.partition_point(|mark| mark.index <= index);
        let marks = self.marks[..after].last();
        marks.copied().unwrap_or_default()
    }

    /// Appends the commands to `out` as RESP.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.encoded);
    }

    /// Returns whether the command at `index` is a `WAIT`. The reply depends on
    /// earlier writes.
    pub(super) fn is_wait(&self, index: usize) -> bool {
        self.args(index).next() == Some(b"WAIT")
    }

    /// Returns a batch of the commands at `indices`.
    pub(super) fn select(&self, indices: &[usize]) -> Self {
        indices
            .iter()
            .filter_map(|index| self.command(*index))
            .collect()
    }

    pub(super) fn command(&self, index: usize) -> Option<Self> {
        let mut words = self.args(index);
        let mut command = Self::new(words.next()?);
        command.marks.extend(self.source(index).map(Mark::script));
        Some(words.fold(command, Self::arg))
    }

    /// Returns the script at `index` as an `EVAL`, which also loads it into the
    /// server's cache. `None` if it is no script.
    pub(super) fn with_source(&self, index: usize) -> Option<Self> {
        let eval = Self::new("EVAL").arg(self.source(index)?);
        // Skips `EVALSHA` and the digest.
        Some(self.args(index).skip(2).fold(eval, Self::arg))
    }

    /// Returns the script at `index`, if it is one.
    pub(super) fn source(&self, index: usize) -> Option<&'static str> {
        let mark = self.mark(index);
        mark.source.filter(|_| mark.index == index)
    }
}

#[cfg(test)]
impl Batch {
    /// Returns the title in the first line of the script at `index`. A script
    /// with preludes begins with the first one's.
    pub(crate) fn script_name(&self, index: usize) -> Option<&'static str> {
        let source = self.source(index)?;
        source.lines().next()?.strip_prefix("-- ")
    }
}

impl FromIterator<Batch> for Batch {
    fn from_iter<I: IntoIterator<Item = Batch>>(batches: I) -> Self {
        batches.into_iter().reduce(Self::and).unwrap_or_default()
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

/// Appends a RESP type byte and a length.
pub(super) fn write_length(out: &mut Vec<u8>, kind: u8, length: u64) {
    out.push(kind);
    out.extend_from_slice(Digits::default().of(length));
    out.extend_from_slice(b"\r\n");
}

/// Reads what [`write_length`] wrote.
fn read_length(rest: &mut &[u8]) -> Option<usize> {
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let length = std::str::from_utf8(rest.get(1..end)?).ok()?;
    *rest = rest.get(end + 2..)?;
    length.parse().ok()
}

fn read_word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = read_length(rest)?;
    let word = rest.get(..length)?;
    *rest = rest.get(length + 2..)?;
    Some(word)
}

/// A buffer for the decimal digits of a number.
#[derive(Default)]
pub(crate) struct Digits([u8; 20]);

impl Digits {
    pub(crate) fn of(&mut self, mut number: u64) -> &[u8] {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(batch: &Batch, index: usize) -> Vec<&[u8]> {
        batch.args(index).collect()
    }

    #[test]
    fn commands_are_encoded_as_resp() {
        let mut sent = Vec::new();
        let set = Batch::new("SET").arg("k\r\n").arg("").number(120);
        let batch = set.then("GET").arg("*1");
        batch.write_to(&mut sent);
        let expected =
            b"*4\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$0\r\n\r\n$3\r\n120\r\n*2\r\n$3\r\nGET\r\n$2\r\n*1\r\n";
        assert_eq!(sent, expected);
        assert_eq!(batch.len(), 2);
        assert_eq!(words(&batch, 0), [&b"SET"[..], b"k\r\n", b"", b"120"]);
        assert_eq!(words(&batch, 1), [b"GET", &b"*1"[..]]);
        assert!(words(&batch, 2).is_empty());
        let max = Batch::new("x").number(u64::MAX);
        assert_eq!(words(&max, 0)[1], u64::MAX.to_string().as_bytes());
    }

    #[test]
    fn words_of_long_commands_are_counted() {
        for count in [8, 9, 10, 98, 99, 100, 150] {
            let first = Batch::new("GET").arg("a").then("DEL");
            let long = (0..count).fold(first, Batch::number).then("PING");
            let mut sent = Vec::new();
            long.write_to(&mut sent);
            let sent = String::from_utf8(sent).unwrap();
            assert!(sent.contains(&format!("\r\n*{}\r\n$3\r\nDEL\r\n", count + 1)));
            assert_eq!(words(&long, 1).len() as u64, count + 1);
            assert_eq!(words(&long, 2), [b"PING"]);
        }
    }

    #[test]
    fn commands_of_appended_batches_are_found() {
        let pair = |number| Batch::new("GET").number(number).then("DEL").number(number);
        let script = || Batch::script("digest", "return 1").number(1).arg("x");
        let batches = (0..9).map(|number| match number % 3 {
            0 => script(),
            1 => pair(number).and(script()),
            _ => script().and(pair(number)),
        });
        let batches: Vec<_> = batches.collect();
        let whole: Batch = batches.iter().cloned().collect();
        let mut index = 0;
        for batch in &batches {
            for at in 0..batch.len() {
                assert_eq!(words(&whole, index), words(batch, at));
                assert_eq!(whole.source(index), batch.source(at));
                index += 1;
            }
        }
        assert_eq!(whole.len(), index);
        assert!(words(&whole, index).is_empty());
    }

    #[test]
    fn script_converts_to_eval_with_source() {
        let script = Batch::script("digest", "return 1").number(0).arg("x");
        let batch = Batch::new("GET").arg("y").and(script).then("DEL").arg("z");
        let eval = batch.with_source(1).unwrap();
        assert_eq!(words(&eval, 0), [&b"EVAL"[..], b"return 1", b"0", b"x"]);
        assert!(batch.with_source(0).is_none());
        assert!(batch.with_source(2).is_none());
        let selected = batch.select(&[1]);
        let same: Vec<_> = batch.args(1).collect();
        assert_eq!(words(&selected, 0), same);
        assert!(selected.with_source(0).is_some());
    }
}

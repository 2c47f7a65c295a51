//! An incremental RESP3 decoder.
//!
//! # Invariants
//!
//! 1. A push is a separate kind of frame. It is never a reply, nor part of one.
//! 2. Memory is bounded: a frame takes at most [`MAX_FRAME`] bytes, or
//!    [`MAX_HELLO_FRAME`] before the login, and has at most [`MAX_DEPTH`]
//!    levels. A line has at most [`MAX_LINE`] bytes. A length sent by the
//!    server does not reserve memory.
//! 3. Bytes that RESP3 does not allow are [`Malformed`]. Nothing after them is
//!    decoded.

use crate::backend::{Reply, ServerError};

/// The maximum size of a frame. A page of an inspection is smaller.
pub(super) const MAX_FRAME: usize = 64 * 1024 * 1024;

/// The maximum size of a frame before the login. Anyone may have sent it.
pub(super) const MAX_HELLO_FRAME: usize = 1024 * 1024;

/// What an element occupies besides its bytes. Counted because a list of nulls
/// takes ten times as much as on the wire.
const ELEMENT: usize = size_of::<Reply>();

/// The maximum nesting of lists.
const MAX_DEPTH: usize = 16;

/// The maximum length of a line: a status, an error, a number or a length.
const MAX_LINE: usize = 64 * 1024;

/// A complete message of the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    Reply(Reply),
    /// A message, or the confirmation of a subscription change.
    Push(Vec<Reply>),
}

/// Bytes that are not RESP3, or exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(super) struct Malformed(pub(super) &'static str);

const TOO_LARGE: Malformed = Malformed("a frame above the limit of its size");

/// The state of decoding between two reads.
pub(super) struct Decoder {
    /// Incomplete lists, outermost first.
    open: Vec<OpenList>,
    /// What the current frame occupies so far.
    size: usize,
    max_frame: usize,
}

struct OpenList {
    is_push: bool,
    remaining: usize,
    items: Vec<Reply>,
}

/// A line and its body, if it has one.
enum Element {
    Value(Reply),
    List { is_push: bool, length: usize },
}

impl Decoder {
    pub(super) fn new(max_frame: usize) -> Self {
        Self {
            open: Vec::new(),
            size: 0,
            max_frame,
        }
    }

    pub(super) fn set_max_frame(&mut self, max_frame: usize) {
        self.max_frame = max_frame;
    }

    /// Decodes at most one frame from the start of `bytes`, and returns how
    /// many bytes were consumed.
    ///
    /// The next call must start with the bytes that were not consumed.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), Malformed> {
        let mut used = 0;
        loop {
            let left = self.max_frame.saturating_sub(self.size);
            let Some((element, length)) = element(&bytes[used..], left)? else {
                return Ok((used, None));
            };
            used += length;
            // Counts what an element costs in memory, too: many empty ones are
            // small on the wire.
            self.size += length + ELEMENT;
            if self.size > self.max_frame {
                return Err(TOO_LARGE);
            }
            if let Some(frame) = self.add(element)? {
                self.size = 0;
                return Ok((used, Some(frame)));
            }
        }
    }

    /// Adds an element to the innermost list. Returns the frame that it
    /// completes.
    fn add(&mut self, element: Element) -> Result<Option<Frame>, Malformed> {
        let mut value = match element {
            Element::Value(value) => value,
            Element::List { is_push, .. } if is_push && !self.open.is_empty() => {
                return Err(Malformed("a push inside a reply"));
            }
            Element::List { is_push, length } => {
                if self.open.len() == MAX_DEPTH {
                    return Err(Malformed("lists nested deeper than 16 levels"));
                }
                // Grows as items arrive (invariant 2).
                let items = Vec::with_capacity(length.min(16));
                self.open.push(OpenList {
                    is_push,
                    remaining: length,
                    items,
                });
                if length > 0 {
                    return Ok(None);
                }
                match self.close() {
                    ClosedList::Frame(frame) => return Ok(Some(frame)),
                    ClosedList::Inside(list) => list,
                }
            }
        };
        loop {
            let Some(open) = self.open.last_mut() else {
                return Ok(Some(Frame::Reply(value)));
            };
            open.items.push(value);
            open.remaining -= 1;
            if open.remaining > 0 {
                return Ok(None);
            }
            match self.close() {
                ClosedList::Frame(frame) => return Ok(Some(frame)),
                ClosedList::Inside(list) => value = list,
            }
        }
    }

    /// Closes the innermost list.
    fn close(&mut self) -> ClosedList {
        let Some(open) = self.open.pop() else {
            return ClosedList::Inside(Reply::Nil);
        };
        match (open.is_push, self.open.is_empty()) {
            (true, _) => ClosedList::Frame(Frame::Push(open.items)),
            (false, true) => ClosedList::Frame(Frame::Reply(Reply::List(open.items))),
            (false, false) => ClosedList::Inside(Reply::List(open.items)),
        }
    }
}

/// A complete list: a whole frame, or an item of the enclosing list.
enum ClosedList {
    Frame(Frame),
    Inside(Reply),
}

/// Returns the element at the start of `bytes` and its length, or `None` if it
/// is incomplete. A string has at most `max` bytes.
fn element(bytes: &[u8], max: usize) -> Result<Option<(Element, usize)>, Malformed> {
    let Some((line, after)) = line(bytes)? else {
        return Ok(None);
    };
    let (kind, text) = line.split_first().ok_or(Malformed("an empty line"))?;
    let value = match kind {
        b'+' => Reply::Bytes(text.to_vec()),
        b'-' => Reply::Refused(server_error(text)),
        b':' => Reply::Int(int(text)?),
        b'_' if text.is_empty() => Reply::Nil,
        b'#' => match text {
            b"t" => Reply::Int(1),
            b"f" => Reply::Int(0),
            _ => return Err(Malformed("an invalid boolean")),
        },
        // This client does not calculate with doubles or big numbers.
        b',' | b'(' => Reply::Bytes(text.to_vec()),
        b'$' | b'=' | b'!' => return body(*kind, text, bytes, after, max),
        b'*' | b'~' | b'%' | b'>' => return Ok(Some((list(*kind, text)?, after))),
        _ => return Err(Malformed("an unknown frame type")),
    };
    Ok(Some((Element::Value(value), after)))
}

/// Returns the first line without the terminator, and the start of the next.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    // Bounded, or a server that never ends its line would make us search ever
    // more bytes.
    let searched = &bytes[..bytes.len().min(MAX_LINE)];
    match searched.iter().position(|byte| *byte == b'\n') {
        Some(at) => match searched[..at].split_last() {
            Some((b'\r', line)) if !line.contains(&b'\r') => Ok(Some((line, at + 1))),
            _ => Err(Malformed("a line without CRLF")),
        },
        None if bytes.len() >= MAX_LINE => Err(Malformed("a line above 64 KiB")),
        None => Ok(None),
    }
}

/// Parses a string whose length is in the line.
fn body(
    kind: u8,
    text: &[u8],
    bytes: &[u8],
    start: usize,
    max: usize,
) -> Result<Option<(Element, usize)>, Malformed> {
    let length = match int(text)? {
        // The null of RESP2.
        -1 if kind == b'$' => return Ok(Some((Element::Value(Reply::Nil), start))),
        length => checked_length(length, max)?,
    };
    let end = start + length;
    let Some(after) = bytes.get(end..end + 2) else {
        return Ok(None);
    };
    if after != b"\r\n" {
        return Err(Malformed("a string longer than its length"));
    }
    let content = &bytes[start..end];
    let value = match kind {
        b'!' => Reply::Refused(server_error(content)),
        // A verbatim string starts with a three-letter format.
        b'=' if content.get(3) == Some(&b':') => Reply::Bytes(content[4..].to_vec()),
        b'=' => return Err(Malformed("a verbatim string without its format")),
        _ => Reply::Bytes(content.to_vec()),
    };
    Ok(Some((Element::Value(value), end + 2)))
}

fn list(kind: u8, text: &[u8]) -> Result<Element, Malformed> {
    let length = match int(text)? {
        -1 if kind == b'*' => return Ok(Element::Value(Reply::Nil)),
        length => checked_length(length, MAX_FRAME)?,
    };
    Ok(Element::List {
        is_push: kind == b'>',
        // A map is a list of names and values to us.
        length: if kind == b'%' { 2 * length } else { length },
    })
}

fn checked_length(number: i64, max: usize) -> Result<usize, Malformed> {
    let length = usize::try_from(number).map_err(|_| Malformed("a negative length"))?;
    match length <= max {
        true => Ok(length),
        false => Err(TOO_LARGE),
    }
}

fn int(text: &[u8]) -> Result<i64, Malformed> {
    let malformed = Malformed("an invalid number");
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(malformed);
    }
    let mut number = 0i64;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'));
        let digit = digit.ok_or(malformed)?;
        // Negative, because `i64::MIN` has no positive counterpart.
        let next = number
            .checked_mul(10)
            .and_then(|ten| ten.checked_sub(digit));
        number = next.ok_or(malformed)?;
    }
    match is_negative {
        true => Ok(number),
        false => number.checked_neg().ok_or(malformed),
    }
}

fn server_error(text: &[u8]) -> ServerError {
    let text = String::from_utf8_lossy(text);
    let (code, detail) = text.split_once(' ').unwrap_or((&text, ""));
    ServerError::new(code, detail)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use testkit::check_property;

    use super::*;

    /// Decodes `bytes` in chunks of `step`.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Frame>, Malformed> {
        let (mut decoder, mut frames) = (Decoder::new(MAX_FRAME), Vec::new());
        let (mut start, mut end) = (0, 0);
        while end < bytes.len() {
            end = (end + step).min(bytes.len());
            loop {
                let (used, frame) = decoder.decode(&bytes[start..end])?;
                start += used;
                match frame {
                    Some(frame) => frames.push(frame),
                    None => break,
                }
            }
        }
        Ok(frames)
    }

    fn one(bytes: &str) -> Result<Frame, Malformed> {
        let mut frames = decode(bytes.as_bytes(), usize::MAX)?;
        assert_eq!(frames.len(), 1, "{bytes:?}");
        Ok(frames.remove(0))
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn every_resp3_type_is_decoded() {
        for (bytes, reply) in [
            ("+OK\r\n", text("OK")),
            (":-7\r\n", Reply::Int(-7)),
            (":-9223372036854775808\r\n", Reply::Int(i64::MIN)),
            ("_\r\n", Reply::Nil),
            ("$-1\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("#t\r\n", Reply::Int(1)),
            (",1.5\r\n", text("1.5")),
            ("(123456789012345678901\r\n", text("123456789012345678901")),
            ("$4\r\na\r\nb\r\n", text("a\r\nb")),
            ("=5\r\ntxt:x\r\n", text("x")),
            ("*0\r\n", Reply::List(vec![])),
            ("~1\r\n:1\r\n", Reply::List(vec![Reply::Int(1)])),
            (
                "%1\r\n+k\r\n:1\r\n",
                Reply::List(vec![text("k"), Reply::Int(1)]),
            ),
            (
                "*2\r\n*1\r\n:1\r\n*0\r\n",
                Reply::List(vec![Reply::List(vec![Reply::Int(1)]), Reply::List(vec![])]),
            ),
        ] {
            assert_eq!(one(bytes), Ok(Frame::Reply(reply)), "{bytes:?}");
        }
        let refused = Reply::Refused(ServerError::new("ERR", "no"));
        assert_eq!(one("-ERR no\r\n"), Ok(Frame::Reply(refused.clone())));
        assert_eq!(one("!6\r\nERR no\r\n"), Ok(Frame::Reply(refused)));
        let push = Frame::Push(vec![text("message"), text("c"), text("x")]);
        assert_eq!(one(">3\r\n+message\r\n$1\r\nc\r\n$1\r\nx\r\n"), Ok(push));
    }

    #[test]
    fn invalid_resp3_is_malformed() {
        for bytes in [
            "?\r\n",
            "\r\n",
            "+OK\n",
            "+a\rb\r\n",
            ":\r\n",
            ":1x\r\n",
            ":9223372036854775808\r\n",
            "#x\r\n",
            "_x\r\n",
            "$-2\r\n",
            "$?\r\n",
            "$1\r\nxyz\r\n",
            "=1\r\nx\r\n",
            "*-2\r\n",
            "*99999999999\r\n",
            "$99999999999\r\n",
            "*1\r\n>1\r\n:1\r\n",
            "|1\r\n+a\r\n:1\r\n",
        ] {
            assert!(decode(bytes.as_bytes(), usize::MAX).is_err(), "{bytes:?}");
        }
        let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
        assert!(decode(deep.as_bytes(), usize::MAX).is_err());
        let endless = vec![b'+'; MAX_LINE];
        assert!(decode(&endless, 1024).is_err());
    }

    #[test]
    fn frame_above_limit_is_rejected() {
        let mut decoder = Decoder::new(MAX_FRAME);
        let body = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
        assert_eq!(decoder.decode(b"*1000000\r\n").unwrap(), (10, None));
        let refused = (0..65).find(|_| decoder.decode(body.as_bytes()).is_err());
        assert!(refused.is_some(), "the limit is 64 MiB");
    }

    /// A frame below the limit took twenty times as much in memory.
    #[test]
    fn small_elements_count_with_their_memory() {
        let max = MAX_HELLO_FRAME;
        for element in ["_\r\n", "*0\r\n", "+\r\n", "*1\r\n:1\r\n"] {
            let mut decoder = Decoder::new(max);
            assert!(decoder.decode(b"*1000000\r\n").is_ok());
            let added = (0..).find(|_| decoder.decode(element.as_bytes()).is_err());
            assert!(added.unwrap() <= max / ELEMENT, "{element:?} {added:?}");
        }
    }

    #[test]
    fn string_above_limit_is_rejected_by_its_length() {
        let header = format!("${}\r\n", MAX_HELLO_FRAME + 1);
        let mut decoder = Decoder::new(MAX_HELLO_FRAME);
        assert!(decoder.decode(header.as_bytes()).is_err());
        decoder.set_max_frame(MAX_FRAME);
        assert_eq!(decoder.decode(header.as_bytes()), Ok((0, None)));
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            Just(Reply::Nil),
            any::<i64>().prop_map(Reply::Int),
            vec(any::<u8>(), 0..20).prop_map(Reply::Bytes),
            Just(Reply::Refused(ServerError::new("ERR", "no"))),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| vec(inner, 0..6).prop_map(Reply::List))
    }

    fn encode(reply: &Reply, out: &mut Vec<u8>) {
        match reply {
            Reply::Nil => out.extend(b"_\r\n"),
            Reply::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
            Reply::Bytes(bytes) => {
                out.extend(format!("${}\r\n", bytes.len()).bytes());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            Reply::Refused(server_error) => out.extend(format!("-{server_error}\r\n").bytes()),
            Reply::List(items) => {
                out.extend(format!("*{}\r\n", items.len()).bytes());
                items.iter().for_each(|item| encode(item, out));
            }
            Reply::PerNode(_) => unreachable!("not a reply of one server"),
        }
    }

    #[test]
    fn frames_are_decoded_in_any_chunks() {
        let inputs = (vec((any::<bool>(), reply()), 1..6), 1..40usize);
        check_property(2_000, &inputs, |(replies, step)| {
            let (mut bytes, mut sent) = (Vec::new(), Vec::new());
            for (is_push, reply) in replies {
                match is_push {
                    true => {
                        bytes.extend(b">2\r\n+message\r\n");
                        encode(&reply, &mut bytes);
                        sent.push(Frame::Push(vec![text("message"), reply]));
                    }
                    false => {
                        encode(&reply, &mut bytes);
                        sent.push(Frame::Reply(reply));
                    }
                }
            }
            assert_eq!(decode(&bytes, step), Ok(sent));
        });
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let byte = prop_oneof![
            4 => prop::sample::select(b"+-:$*_#,(=!%~>|\r\n0123456789".to_vec()),
            1 => any::<u8>(),
        ];
        check_property(5_000, &(vec(byte, 0..200), 1..20usize), |(bytes, step)| {
            // The result does not depend on the chunks.
            assert_eq!(
                decode(&bytes, step).is_err(),
                decode(&bytes, usize::MAX).is_err()
            );
        });
    }
}

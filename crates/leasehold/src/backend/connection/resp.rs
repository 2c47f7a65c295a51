//! RESP3 as it arrives: bytes become frames, however the network cuts them.
//!
//! # Invariants
//!
//! 1. A push is a frame of its own kind. It is never a reply, and never part of one.
//! 2. Memory is bounded: a frame holds at most [`MAX_FRAME`] bytes and [`MAX_DEPTH`] levels, a line at most
//!    [`MAX_LINE`] bytes. A length that the server announces reserves nothing.
//! 3. A seal is a frame of its own kind. It is never a reply.
//! 4. Bytes that RESP3 does not allow are [`Malformed`]. Nothing after it on the same connection is decoded.

use crate::backend::command::Digits;
use crate::backend::reply::{Reply, ServerError};

/// The largest frame: more than a page of the longest inspection.
pub(super) const MAX_FRAME: usize = 64 * 1024 * 1024;

/// The deepest nesting of lists.
const MAX_DEPTH: usize = 16;

/// How every seal begins, and no reply.
pub(super) const SEAL: &[u8] = b"lh-seal-";

/// The longest line: a status, an error, a number or a length.
const MAX_LINE: usize = 64 * 1024;

/// One whole message of the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    Reply(Reply),
    /// A number that was sent to be echoed.
    Seal(u64),
    /// Sent unasked, or as the confirmation of a subscription change.
    Push(Vec<Reply>),
}

/// Bytes that are not RESP3, or more of them than this client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// The state of decoding between two reads.
#[derive(Default)]
pub(super) struct Decoder {
    /// Lists that are not complete, the outermost first.
    open: Vec<Open>,
    /// Bytes of the current frame that were decoded.
    size: usize,
}

struct Open {
    is_push: bool,
    left: usize,
    items: Vec<Reply>,
}

/// What a line, with its body if it has one, stands for.
enum Token {
    Value(Reply),
    Seal(u64),
    List { is_push: bool, length: usize },
}

impl Decoder {
    /// Decodes at most one frame from the start of `bytes`, and returns how many bytes were used.
    ///
    /// Bytes that were not used must be there again, at the start, in the next call.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), Malformed> {
        let mut used = 0;
        while let Some((token, length)) = token(&bytes[used..])? {
            used += length;
            self.size += length;
            if self.size > MAX_FRAME {
                return Err(Malformed("a frame that is too large"));
            }
            if let Some(frame) = self.add(token)? {
                self.size = 0;
                return Ok((used, Some(frame)));
            }
        }
        Ok((used, None))
    }

    /// Puts a token where it belongs; returns the frame that it completes.
    fn add(&mut self, token: Token) -> Result<Option<Frame>, Malformed> {
        let mut value = match token {
            Token::Value(value) => value,
            Token::Seal(number) if self.open.is_empty() => return Ok(Some(Frame::Seal(number))),
            // Inside a reply it is a value like any other.
            Token::Seal(number) => {
                let mut digits = Digits::default();
                Reply::Bytes([SEAL, digits.of(number)].concat())
            }
            Token::List { is_push, .. } if is_push && !self.open.is_empty() => {
                return Err(Malformed("a push inside a reply"));
            }
            Token::List { is_push, length } => {
                if self.open.len() == MAX_DEPTH {
                    return Err(Malformed("lists that are nested too deeply"));
                }
                // Grows as items arrive (invariant 2).
                let items = Vec::with_capacity(length.min(16));
                self.open.push(Open {
                    is_push,
                    left: length,
                    items,
                });
                if length > 0 {
                    return Ok(None);
                }
                match self.close() {
                    Closed::Frame(frame) => return Ok(Some(frame)),
                    Closed::Inside(list) => list,
                }
            }
        };
        loop {
            let Some(open) = self.open.last_mut() else {
                return Ok(Some(Frame::Reply(value)));
            };
            open.items.push(value);
            open.left -= 1;
            if open.left > 0 {
                return Ok(None);
            }
            match self.close() {
                Closed::Frame(frame) => return Ok(Some(frame)),
                Closed::Inside(list) => value = list,
            }
        }
    }

    /// Ends the innermost list.
    fn close(&mut self) -> Closed {
        let Some(open) = self.open.pop() else {
            return Closed::Inside(Reply::Nil);
        };
        match (open.is_push, self.open.is_empty()) {
            (true, _) => Closed::Frame(Frame::Push(open.items)),
            (false, true) => Closed::Frame(Frame::Reply(Reply::List(open.items))),
            (false, false) => Closed::Inside(Reply::List(open.items)),
        }
    }
}

/// A list that is complete: all of a frame, or an item of the list around it.
enum Closed {
    Frame(Frame),
    Inside(Reply),
}

/// The token at the start of `bytes` and its length, once all of it is there.
fn token(bytes: &[u8]) -> Result<Option<(Token, usize)>, Malformed> {
    let Some((line, after)) = line(bytes)? else {
        return Ok(None);
    };
    let (kind, text) = line.split_first().ok_or(Malformed("an empty line"))?;
    let value = match kind {
        b'+' => Reply::Bytes(text.to_vec()),
        b'-' => Reply::Refused(refusal(text)),
        b':' => Reply::Int(int(text)?),
        b'_' if text.is_empty() => Reply::Nil,
        b'#' => match text {
            b"t" => Reply::Int(1),
            b"f" => Reply::Int(0),
            _ => return Err(Malformed("a truth value that is none")),
        },
        // Numbers that this client never computes with.
        b',' | b'(' => Reply::Bytes(text.to_vec()),
        b'$' | b'=' | b'!' => return body(*kind, text, bytes, after),
        b'*' | b'~' | b'%' | b'>' => return Ok(Some((list(*kind, text)?, after))),
        _ => return Err(Malformed("a frame of an unknown type")),
    };
    Ok(Some((Token::Value(value), after)))
}

/// The first line without its end, and where the next one begins.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    let searched = &bytes[..bytes.len().min(MAX_LINE)];
    match searched.iter().position(|byte| *byte == b'\n') {
        Some(at) => match searched[..at].split_last() {
            Some((b'\r', line)) if !line.contains(&b'\r') => Ok(Some((line, at + 1))),
            _ => Err(Malformed("a line that does not end as one")),
        },
        None if bytes.len() >= MAX_LINE => Err(Malformed("a line that is too long")),
        None => Ok(None),
    }
}

/// A string whose length the line announces.
fn body(
    kind: u8,
    text: &[u8],
    bytes: &[u8],
    start: usize,
) -> Result<Option<(Token, usize)>, Malformed> {
    let length = match int(text)? {
        // How RESP2 says that there is nothing.
        -1 if kind == b'$' => return Ok(Some((Token::Value(Reply::Nil), start))),
        length => length_of(length)?,
    };
    let end = start + length;
    let Some(after) = bytes.get(end..end + 2) else {
        return Ok(None);
    };
    if after != b"\r\n" {
        return Err(Malformed("a string that is longer than announced"));
    }
    let content = &bytes[start..end];
    if let Some(number) = seal(content) {
        return Ok(Some((Token::Seal(number), end + 2)));
    }
    let value = match kind {
        b'!' => Reply::Refused(refusal(content)),
        // Three letters say how it is formatted.
        b'=' if content.get(3) == Some(&b':') => Reply::Bytes(content[4..].to_vec()),
        b'=' => return Err(Malformed("a verbatim string without its format")),
        _ => Reply::Bytes(content.to_vec()),
    };
    Ok(Some((Token::Value(value), end + 2)))
}

/// The number of a seal, where it is written as we write it.
fn seal(content: &[u8]) -> Option<u64> {
    let digits = content.strip_prefix(SEAL)?;
    let number = u64::try_from(int(digits).ok()?).ok()?;
    (Digits::default().of(number) == digits).then_some(number)
}

fn list(kind: u8, text: &[u8]) -> Result<Token, Malformed> {
    let length = match int(text)? {
        -1 if kind == b'*' => return Ok(Token::Value(Reply::Nil)),
        length => length_of(length)?,
    };
    Ok(Token::List {
        is_push: kind == b'>',
        length: if kind == b'%' { 2 * length } else { length },
    })
}

fn length_of(number: i64) -> Result<usize, Malformed> {
    let length = usize::try_from(number).map_err(|_| Malformed("a negative length"))?;
    match length <= MAX_FRAME {
        true => Ok(length),
        false => Err(Malformed("a length that is too large")),
    }
}

fn int(text: &[u8]) -> Result<i64, Malformed> {
    let malformed = Malformed("a number that is none");
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
        // Downwards, since there is one more number below zero than above.
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

fn refusal(text: &[u8]) -> ServerError {
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

    /// All frames of `bytes`, which arrive in pieces of `step`.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Frame>, Malformed> {
        let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
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
    fn every_type_is_decoded() {
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
    fn seal_is_no_reply() {
        assert_eq!(one("$10\r\nlh-seal-12\r\n"), Ok(Frame::Seal(12)));
        let inside = Reply::List(vec![text("lh-seal-1")]);
        assert_eq!(one("*1\r\n$9\r\nlh-seal-1\r\n"), Ok(Frame::Reply(inside)));
        let alike = Frame::Reply(text("lh-seal-01"));
        assert_eq!(one("$10\r\nlh-seal-01\r\n"), Ok(alike));
    }

    #[test]
    fn whatever_resp3_does_not_allow_is_malformed() {
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
    fn an_endless_frame_is_refused_at_its_limit() {
        let mut decoder = Decoder::default();
        let body = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
        assert_eq!(decoder.decode(b"*1000000\r\n").unwrap(), (10, None));
        let refused = (0..65).find(|_| decoder.decode(body.as_bytes()).is_err());
        assert!(refused.is_some(), "64 MiB are the most");
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
            Reply::Refused(refusal) => out.extend(format!("-{refusal}\r\n").bytes()),
            Reply::List(items) => {
                out.extend(format!("*{}\r\n", items.len()).bytes());
                items.iter().for_each(|item| encode(item, out));
            }
            Reply::PerNode(_) => unreachable!("no reply of one server"),
        }
    }

    #[test]
    fn frames_survive_any_cut() {
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
            // The same whether it comes at once or in pieces.
            assert_eq!(
                decode(&bytes, step).is_err(),
                decode(&bytes, usize::MAX).is_err()
            );
        });
    }
}

//! The subset of the wire protocol that tests need: framing for the proxy, and
//! a blocking client.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Null.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple or bulk string, decoded lossily.
    Text(String),
    /// An array.
    List(Vec<Reply>),
    /// An error.
    Error(String),
}

impl Reply {
    /// Returns the reply as text.
    ///
    /// # Panics
    ///
    /// If it is not text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("not text: {other:?}"),
        }
    }

    /// Returns the reply as an integer.
    ///
    /// # Panics
    ///
    /// If it is not an integer.
    #[must_use]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Text(digits) => digits.parse().expect("not a number"),
            other => panic!("not a number: {other:?}"),
        }
    }

    /// Returns the reply as a list.
    ///
    /// # Panics
    ///
    /// If it is not a list.
    #[must_use]
    pub fn list(&self) -> &[Reply] {
        match self {
            Self::List(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }
}

/// A blocking connection for commands of the tests themselves.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to a local port.
    ///
    /// # Errors
    ///
    /// If no process listens on it.
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let buffer = Vec::new();
        Ok(Self { stream, buffer })
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn ask(&mut self, args: &[&str]) -> Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends a command without waiting for its reply.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn send(&mut self, args: &[&str]) -> Result<()> {
        let args: Vec<_> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        self.stream.write_all(&encode(&args))
    }

    /// Waits for a reply.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn receive(&mut self) -> Result<Reply> {
        loop {
            if let Some(length) = frame_length(&self.buffer) {
                let frame: Vec<u8> = self.buffer.drain(..length).collect();
                return Ok(decode(&frame).0);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                // Signals to the test process are irrelevant.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Encodes a command.
#[must_use]
pub fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Returns the length of the first frame in `bytes`, or `None` if it is
/// incomplete.
#[must_use]
pub fn frame_length(bytes: &[u8]) -> Option<usize> {
    let line = line_length(bytes)?;
    let count = || header_number(&bytes[..line]);
    match bytes[0] {
        b'$' | b'=' | b'!' => match count() {
            -1 => Some(line),
            length => {
                Some(line + usize::try_from(length).ok()? + 2).filter(|end| *end <= bytes.len())
            }
        },
        b'*' | b'~' | b'>' => frames_length(bytes, line, count()),
        b'%' | b'|' => frames_length(bytes, line, count() * 2),
        _ => Some(line),
    }
}

/// Decodes the arguments of a request frame.
#[must_use]
pub fn arguments(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut args = Vec::new();
    let mut at = line_length(frame).unwrap_or(frame.len());
    while at < frame.len() {
        let line = line_length(&frame[at..]).expect("a complete frame");
        let length = usize::try_from(header_number(&frame[at..at + line])).unwrap_or(0);
        args.push(frame[at + line..at + line + length].to_vec());
        at += line + length + 2;
    }
    args
}

fn frames_length(bytes: &[u8], line: usize, count: i64) -> Option<usize> {
    let mut end = line;
    for _ in 0..count.max(0) {
        end += frame_length(&bytes[end..])?;
    }
    Some(end)
}

fn line_length(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .map(|at| at + 2)
}

fn header_number(line: &[u8]) -> i64 {
    String::from_utf8_lossy(&line[1..line.len() - 2])
        .parse()
        .unwrap_or(0)
}

/// Decodes the frame at the start of `frame`, and returns its length as well.
fn decode(frame: &[u8]) -> (Reply, usize) {
    let line = line_length(frame).expect("a complete frame");
    let text = String::from_utf8_lossy(&frame[1..line - 2]).into_owned();
    match frame[0] {
        b'+' => (Reply::Text(text), line),
        b'-' => (Reply::Error(text), line),
        b':' => (Reply::Int(text.parse().unwrap_or(0)), line),
        b'$' if text == "-1" => (Reply::Nil, line),
        b'$' => {
            let end = line + text.parse::<usize>().unwrap_or(0);
            let text = String::from_utf8_lossy(&frame[line..end]).into_owned();
            (Reply::Text(text), end + 2)
        }
        b'*' if text == "-1" => (Reply::Nil, line),
        b'*' => {
            let mut end = line;
            let mut items = Vec::new();
            for _ in 0..text.parse::<usize>().unwrap_or(0) {
                let (item, length) = decode(&frame[end..]);
                items.push(item);
                end += length;
            }
            (Reply::List(items), end)
        }
        _ => (Reply::Nil, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_frame_has_no_length() {
        let frame = b">2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n";
        for cut in 0..frame.len() {
            assert_eq!(frame_length(&frame[..cut]), None, "{cut}");
        }
        assert_eq!(frame_length(frame), Some(frame.len()));
    }

    #[test]
    fn encoded_arguments_round_trip() {
        let args = vec![b"SET".to_vec(), b"a\r\nb".to_vec(), Vec::new()];
        assert_eq!(arguments(&encode(&args)), args);
    }
}

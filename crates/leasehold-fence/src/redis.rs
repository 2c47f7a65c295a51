//! Redis or Valkey as the resource: a fenced write in one script.
//!
//! The data can be on any server, not only on that of the locks. A server that
//! loses writes, for example by a failover to a lagging replica, loses the
//! tokens it has seen as well.

use crate::error::{BoxError, FenceError};
use crate::fence::Fence;

/// The script that compares the token, stores it, and runs the commands.
///
/// Its header lists the keys, the arguments and the reply.
pub const FENCED: &str = include_str!("fenced.lua");

/// Commands that run only if the token of a [`Fence`] is not stale.
///
/// It needs no driver: send [`eval`](Self::eval) with any client. The reply is
/// the list of the commands' replies. For a stale token it is an error, which
/// [`error`](Self::error) converts.
///
/// The script checks the token and the size of every command before it writes.
/// A command that fails later ends the script, and Redis does not undo the
/// commands before it. A command has at most 7,000 words.
///
/// # Examples
///
/// ```
/// # fn send(_: Vec<Vec<u8>>) -> std::io::Result<()> { Ok(()) }
/// use leasehold_fence::Fence;
/// use leasehold_fence::redis::FencedWrite;
///
/// let fence = Fence::new("lock:coupon:42", 17);
/// let write = FencedWrite::new(&fence, "fence:{coupon:42}")
///     .command(["SET", "{coupon:42}:owner", "alice"], [1])
///     .command(["INCR", "{coupon:42}:sold"], [1]);
/// send(write.eval()).map_err(|error| write.error(error))?;
/// # Ok::<(), leasehold_fence::FenceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FencedWrite {
    fence: Fence,
    keys: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

impl FencedWrite {
    /// Creates a write without commands, which only stores the token.
    ///
    /// `key` stores the token and must never expire. In a Cluster it needs the
    /// hash tag of the data.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_fence::{Fence, redis::FencedWrite};
    ///
    /// let fence = Fence::new("lock:coupon:42", 33);
    /// let raise = FencedWrite::new(&fence, "fence:{coupon:42}");
    /// assert_eq!(raise.eval()[2..], [&b"1"[..], b"fence:{coupon:42}", b"33"]);
    /// ```
    #[must_use]
    pub fn new(fence: &Fence, key: impl Into<Vec<u8>>) -> Self {
        Self {
            fence: fence.clone(),
            keys: vec![key.into()],
            words: Vec::new(),
        }
    }

    /// Adds a command. `keys` are the positions of its keys among its words,
    /// where the command's name is at 0.
    ///
    /// # Panics
    ///
    /// If the command is empty or a position is beyond its end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use leasehold_fence::{Fence, redis::FencedWrite};
    /// # let fence = Fence::new("lock:coupon:42", 33);
    /// let write = FencedWrite::new(&fence, "fence:{coupon:42}")
    ///     .command(["RENAME", "{coupon:42}:new", "{coupon:42}"], [1, 2]);
    /// # drop(write);
    /// ```
    #[must_use]
    pub fn command<W: Into<Vec<u8>>>(
        mut self,
        words: impl IntoIterator<Item = W>,
        keys: impl IntoIterator<Item = usize>,
    ) -> Self {
        let words: Vec<Vec<u8>> = words.into_iter().map(Into::into).collect();
        assert!(!words.is_empty(), "a command without words");
        for position in keys {
            let key = words.get(position).expect("a position of a word").clone();
            if !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
        self.words.push(words.len().to_string().into_bytes());
        self.words.extend(words);
        self
    }

    /// Returns the words of the `EVAL` command.
    ///
    /// # Examples
    ///
    /// ```
    /// # use leasehold_fence::{Fence, redis::FencedWrite};
    /// # let fence = Fence::new("lock:coupon:42", 33);
    /// let write = FencedWrite::new(&fence, "fence:{coupon:42}");
    /// // With the crate `redis`: `Cmd::new().arg(words)`
    /// let words = write.eval();
    /// assert_eq!(words[0], b"EVAL");
    /// ```
    #[must_use]
    pub fn eval(&self) -> Vec<Vec<u8>> {
        let mut words = vec![b"EVAL".to_vec(), FENCED.as_bytes().to_vec()];
        words.push(self.keys.len().to_string().into_bytes());
        words.extend(self.keys.iter().cloned());
        words.push(self.fence.token().to_string().into_bytes());
        words.extend(self.words.iter().cloned());
        words
    }

    /// Converts the driver's error, or the text of an error reply.
    ///
    /// Returns [`FenceError::Stale`] if the script rejected the token; no
    /// command has run then. Otherwise [`FenceError::Database`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use leasehold_fence::{Fence, redis::FencedWrite};
    /// # let fence = Fence::new("lock:coupon:42", 33);
    /// let write = FencedWrite::new(&fence, "fence:{coupon:42}");
    /// assert!(write.error("STALE 34").is_stale()); // discard the work
    /// assert!(!write.error("LOADING").is_stale()); // try again
    /// ```
    #[must_use]
    pub fn error(&self, error: impl Into<BoxError>) -> FenceError {
        let error = error.into();
        let stale = seen(&error.to_string()).and_then(|seen| self.fence.check(seen).err());
        stale.unwrap_or(FenceError::Database(error))
    }
}

/// Returns the number after the word `STALE`. Drivers put the word in quotes or
/// a sentence of their own before it.
fn seen(error: &str) -> Option<u64> {
    let (_, rest) = error.split_once("STALE")?;
    let rest = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eval_lists_every_key_once() {
        let write = FencedWrite::new(&Fence::new("a", 7), "fence:{a}")
            .command(["SET", "{a}:x", "1"], [1])
            .command(["INCR", "{a}:x"], [1])
            .command(["PING"], []);
        let words = write.eval();
        let words: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word))
            .collect();
        let rest = [
            "2",
            "fence:{a}",
            "{a}:x",
            "7",
            "3",
            "SET",
            "{a}:x",
            "1",
            "2",
            "INCR",
            "{a}:x",
            "1",
            "PING",
        ];
        assert_eq!((&*words[0], &*words[1]), ("EVAL", FENCED));
        assert_eq!(words[2..], rest);
    }

    #[test]
    fn stale_error_reply_is_recognized() {
        let write = FencedWrite::new(&Fence::new("a", 7), "fence:{a}");
        for text in [
            "STALE 8 was used by a later holder",
            "An error was signalled by the server - STALE: 8 was used by a later holder",
            "\"STALE\": 8",
        ] {
            let error = write.error(text);
            assert!(
                matches!(error, FenceError::Stale { seen: 8, .. }),
                "{error:?}"
            );
        }
        for text in ["STALE 7", "STALE", "WRONGTYPE the fence holds no token"] {
            assert!(!write.error(text).is_stale(), "{text}");
        }
    }
}

//! Redis or Valkey as the resource: a fenced write in one script.
//!
//! The data can be on any server, not only on that of the locks. A server that
//! loses writes, for example by a failover to a lagging replica, loses the
//! tokens it has seen as well.

use crate::error::FenceError;
use crate::fence::Fence;

/// The script that compares the token, stores it, and runs the commands.
///
/// Its header lists the keys, the arguments and the reply.
pub const FENCED: &str = include_str!("fenced.lua");

/// Commands that run only if the token of a [`Fence`] is not stale.
///
/// It needs no driver: send [`eval`](Self::eval) with any client, and pass the
/// first element of the reply to [`Fence::check`].
///
/// A command that fails ends the script. Redis does not undo the commands
/// before it.
///
/// # Examples
///
/// ```
/// use leasehold_fence::Fence;
/// use leasehold_fence::redis::FencedWrite;
///
/// let fence = Fence::new("coupon:42", 17);
/// let write = FencedWrite::new(&fence, "fence:{coupon:42}")
///     .command(["SET", "{coupon:42}:owner", "alice"], [1])
///     .command(["INCR", "{coupon:42}:sold"], [1]);
/// let words = write.eval();
/// assert_eq!(words[0], b"EVAL");
/// // Send `words`. The reply is [token, [reply of SET, reply of INCR]].
/// let (seen, _replies) = (17, ["OK", "1"]);
/// fence.check(seen)?;
/// # Ok::<(), leasehold_fence::FenceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FencedWrite {
    token: u64,
    keys: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

impl FencedWrite {
    /// Creates a write without commands, which only stores the token.
    ///
    /// `key` stores the token and must never expire. In a Cluster it needs the
    /// hash tag of the data.
    #[must_use]
    pub fn new(fence: &Fence, key: impl Into<Vec<u8>>) -> Self {
        Self {
            token: fence.token(),
            keys: vec![key.into()],
            words: Vec::new(),
        }
    }

    /// Adds a command. `keys` are the positions of its keys among its words,
    /// where the name of the command is at 0.
    ///
    /// # Panics
    ///
    /// If the command is empty or a position is beyond its end.
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
    #[must_use]
    pub fn eval(&self) -> Vec<Vec<u8>> {
        let mut words = vec![b"EVAL".to_vec(), FENCED.as_bytes().to_vec()];
        words.push(self.keys.len().to_string().into_bytes());
        words.extend(self.keys.iter().cloned());
        words.push(self.token.to_string().into_bytes());
        words.extend(self.words.iter().cloned());
        words
    }

    /// Checks the first element of the reply.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] if it is no token, and [`FenceError::Stale`] if
    /// it is larger than that of `fence`. No command has run then.
    pub fn check(fence: &Fence, seen: &[u8]) -> Result<(), FenceError> {
        let text = String::from_utf8_lossy(seen);
        let seen = text.parse().map_err(|error| {
            FenceError::invalid("reply", format!("`{text}` is no token: {error}"))
        })?;
        fence.check(seen)
    }
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
    fn reply_is_checked() {
        let fence = Fence::new("a", 7);
        FencedWrite::check(&fence, b"7").unwrap();
        assert!(FencedWrite::check(&fence, b"8").unwrap_err().is_stale());
        assert!(!FencedWrite::check(&fence, b"?").unwrap_err().is_stale());
    }
}

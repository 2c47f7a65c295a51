//! Who holds: the owner of one acquisition, and the fencing token of one holding.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng;

/// A random 128-bit id, new for every acquisition: the capability to renew and to release.
///
/// Its second half is this process's: whoever finds it on the server can tell the process something. It is written
/// to the server and compared there. It never appears in `Debug`, logs or errors.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u128);

/// Returns the second half of all owners of this process. A fork draws its own.
///
/// Takes no lock: a fork copies a lock that another thread holds, and the child
/// would wait for it without end.
fn process() -> u64 {
    /// Random, and the same in all forks; 0 until it is drawn.
    static FAMILY: AtomicU64 = AtomicU64::new(0);
    /// The process that has drawn, and what it has drawn: half of the bits each.
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let pid = u64::from(std::process::id());
    let family = keep_or_draw(&FAMILY, |bits| bits != 0, rng::next_u64);
    let is_own = |bits: u64| bits >> 32 == pid;
    let own = keep_or_draw(&DRAWN, is_own, || pid << 32 | rng::next_u64() >> 32);
    family ^ own
}

/// Returns what `cell` has if it is `good`, else what this thread, or another
/// one before it, draws.
fn keep_or_draw(cell: &AtomicU64, good: impl Fn(u64) -> bool, draw: impl Fn() -> u64) -> u64 {
    let mut seen = cell.load(Ordering::Acquire);
    while !good(seen) {
        let drawn = draw();
        match cell.compare_exchange(seen, drawn, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => seen = drawn,
            Err(other) => seen = other,
        }
    }
    seen
}

impl Owner {
    /// A new owner from the system's random source.
    pub(crate) fn random() -> Self {
        Self(u128::from(rng::next_u64()) << 64 | u128::from(process()))
    }

    /// What all owners of this process end with: 16 hex digits.
    pub(crate) fn process() -> String {
        format!("{:016x}", process())
    }

    /// It as a number of 63 bits, for where threads are numbered.
    pub(crate) fn number(&self) -> u64 {
        (self.0 >> 65) as u64
    }

    /// One of several ids that it has, told apart by `number`.
    pub(crate) fn id(&self, number: u128) -> [u8; 16] {
        self.0.wrapping_add(number).to_be_bytes()
    }
}

impl fmt::Display for Owner {
    /// The form in which it is sent: 32 hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for Owner {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

/// A fencing token: strictly larger for every later holder of the same lock.
///
/// Send it along with every write to the protected resource, and let the resource refuse a token
/// smaller than the largest it has seen. Then a holder that was paused, and woke up after its lease
/// had ended, can do no harm. Tokens have gaps. They fit into a signed 64-bit integer and, until the
/// year 2255, into the 53 bits that JavaScript and Lua count exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// The token as a number.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_32_hex_digits_and_differ() {
        let owners: std::collections::HashSet<_> =
            (0..1000).map(|_| Owner::random().to_string()).collect();
        assert_eq!(owners.len(), 1000);
        for owner in owners {
            assert_eq!(owner.len(), 32);
            assert!(owner.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }

    #[test]
    fn owners_of_one_process_end_alike() {
        let draw = || Owner::random().to_string()[16..].to_owned();
        let drawing: Vec<_> = (0..8).map(|_| std::thread::spawn(draw)).collect();
        for drawn in drawing {
            assert_eq!(drawn.join().unwrap(), Owner::process());
        }
    }

    #[test]
    fn cell_of_another_process_is_drawn_anew() {
        let cell = AtomicU64::new(7 << 32 | 1);
        let of = |pid: u64| move |bits: u64| bits >> 32 == pid;
        assert_eq!(keep_or_draw(&cell, of(7), || panic!("drawn")), 7 << 32 | 1);
        assert_eq!(keep_or_draw(&cell, of(8), || 8 << 32 | 2), 8 << 32 | 2);
        assert_eq!(cell.into_inner(), 8 << 32 | 2);
    }

    #[test]
    fn an_owner_does_not_show_itself() {
        let owner = Owner::random();
        assert!(!format!("{owner:?}").contains(&owner.to_string()));
    }
}

//! The owner of an acquisition, and the fencing token of a holder.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process::HomeProcess;
use crate::rng;

/// A random 128-bit id, new for every acquisition: the capability to renew and
/// to release.
///
/// The second half is the same for all owners of one process, so that another
/// client can notify a holder's process. The server stores and compares the id.
/// It never appears in `Debug` output, logs or errors.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u128);

/// Returns the second half of all owners of the current process. A forked child
/// has its own.
///
/// Takes no lock: a fork copies a lock that another thread holds, and the child
/// would wait for it without end.
fn process_half(current: HomeProcess) -> u64 {
    /// Random, and shared with forked children; 0 until it is initialized.
    static FAMILY: AtomicU64 = AtomicU64::new(0);
    /// The process id in the upper half, random bits in the lower half.
    static OWN: AtomicU64 = AtomicU64::new(0);
    let pid = u64::from(current.id());
    let random = || rng::next_u64_in(current);
    let family = load_or_init(&FAMILY, |bits| bits != 0, random);
    let is_own = |bits: u64| bits >> 32 == pid;
    let own = load_or_init(&OWN, is_own, || pid << 32 | random() >> 32);
    family ^ own
}

/// Returns the value of `cell`, which is replaced by `init()` first unless it
/// is valid. All threads return the same value.
fn load_or_init(cell: &AtomicU64, is_valid: impl Fn(u64) -> bool, init: impl Fn() -> u64) -> u64 {
    let mut current = cell.load(Ordering::Acquire);
    while !is_valid(current) {
        let new = init();
        match cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => current = new,
            Err(other) => current = other,
        }
    }
    current
}

impl Owner {
    /// Returns a new owner from the system's random source.
    pub(crate) fn random() -> Self {
        Self::random_in(HomeProcess::current())
    }

    /// Returns a new owner. The caller has just read which process is the
    /// current one.
    pub(crate) fn random_in(current: HomeProcess) -> Self {
        let random = rng::next_u64_in(current);
        Self(u128::from(random) << 64 | u128::from(process_half(current)))
    }

    /// Returns the 16 hex digits that all owners of this process end with.
    pub(crate) fn process() -> String {
        format!("{:016x}", process_half(HomeProcess::current()))
    }

    /// Returns the wire form: 32 hex digits.
    pub(crate) fn digits(&self) -> [u8; 32] {
        let nibble = |at: usize| (self.0 >> (124 - 4 * at)) as usize & 15;
        std::array::from_fn(|at| b"0123456789abcdef"[nibble(at)])
    }

    /// Returns the owner as a number of 63 bits, for protocols that number
    /// threads.
    #[cfg(feature = "redisson")]
    pub(crate) fn number(&self) -> u64 {
        (self.0 >> 65) as u64
    }

    /// Returns the id with this number among those derived from the owner.
    #[cfg(feature = "redisson")]
    pub(crate) fn id(&self, number: u128) -> [u8; 16] {
        self.0.wrapping_add(number).to_be_bytes()
    }
}

impl fmt::Display for Owner {
    /// Writes the wire form: 32 hex digits.
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

/// A fencing token: larger for every later holder of the same lock.
///
/// Send it with every write to the protected resource, and let the resource
/// reject a token that is smaller than the largest it has seen. A holder that
/// was paused beyond the lease can then no longer overwrite later data.
///
/// Tokens have gaps. They fit into a signed 64-bit integer and, until the year
/// 2255, into the 53 bits that JavaScript and Lua represent exactly.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let guard = client.mutex("coupon:42").lock().await?;
/// // The condition makes the database reject a stale holder.
/// let sql = "UPDATE coupon SET owner = $1, token = $2
///            WHERE id = 42 AND token <= $2";
/// let token = i64::try_from(guard.token().as_u64()).expect("fits");
/// # drop((sql, token)); Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token as a number.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("coupon:42").lock().await?;
    /// // For a column of the type BIGINT.
    /// let token = i64::try_from(guard.token().as_u64()).expect("fits");
    /// # Ok(()) }
    /// ```
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
    fn owners_of_one_process_share_their_end() {
        let draw = || Owner::random().to_string()[16..].to_owned();
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(draw)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Owner::process());
        }
    }

    #[test]
    fn forked_process_gets_its_own_id() {
        let cell = AtomicU64::new(7 << 32 | 1);
        let of = |pid: u64| move |bits: u64| bits >> 32 == pid;
        assert_eq!(
            load_or_init(&cell, of(7), || panic!("initialized again")),
            7 << 32 | 1
        );
        assert_eq!(load_or_init(&cell, of(8), || 8 << 32 | 2), 8 << 32 | 2);
        assert_eq!(cell.into_inner(), 8 << 32 | 2);
    }

    #[test]
    fn debug_hides_the_owner() {
        let owner = Owner::random();
        assert!(!format!("{owner:?}").contains(&owner.to_string()));
    }
}

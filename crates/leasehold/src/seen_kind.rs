//! What kind of lock stands under a name, as anybody sees it.

use std::fmt;

/// What was found under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeenKind {
    /// A [`Mutex`](crate::Mutex), of one server or of this node of a [`Quorum`](crate::Quorum).
    Mutex,
    /// A [`FairMutex`](crate::FairMutex).
    FairMutex,
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore {
        /// How many permits are taken.
        used: u64,
        /// How many there are.
        permits: u64,
    },
    /// An [`RwLock`](crate::RwLock).
    RwLock,
    /// A [`Latch`](crate::Latch), which nobody holds.
    Latch {
        /// How many count-downs are still to come.
        left: u64,
    },
    /// A lock of Redisson's, plain or fenced; or a fair one for which nobody waits.
    RedissonLock,
    /// A fair lock of Redisson's.
    RedissonFairLock,
    /// A read-write lock of Redisson's.
    RedissonReadWriteLock,
    /// A string that is not of this library: the lock of another one, or no lock at all.
    Foreign,
}

impl fmt::Display for SeenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair",
            Self::Semaphore { used, permits } => return write!(f, "semaphore {used}/{permits}"),
            Self::RwLock => "rw",
            Self::Latch { left } => return write!(f, "latch {left} left"),
            Self::RedissonLock => "redisson",
            Self::RedissonFairLock => "redisson fair",
            Self::RedissonReadWriteLock => "redisson rw",
            Self::Foreign => "foreign",
        })
    }
}

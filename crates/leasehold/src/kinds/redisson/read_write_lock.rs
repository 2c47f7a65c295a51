//! Redisson's `RReadWriteLock`: many readers or one writer.

use std::ops::Deref;

use super::super::lock::Handed;
use super::{Lock, Redisson};
use crate::error::Error;
use crate::lease::{Guard, Lease, Release, Unfenced};
use crate::protocol::redisson::{Mode, ReadWrite};

/// Redisson's read-write lock by its name. Not fair: as long as readers come, a writer waits.
///
/// A reader cannot become a writer. A writer becomes a reader by [`WriteGuard::downgrade`], which also wakes the
/// readers that wait; with Redisson's own way, taking the read lock as well and giving the write lock back, those
/// are woken by nobody.
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    read: Lock,
    write: Lock<WriteGuard>,
}

/// Redisson's read-write lock that is held for writing; a [`Guard`] that can be turned into a reader's.
#[derive(Debug)]
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct WriteGuard {
    guard: Guard<Unfenced>,
}

impl ReadWriteLock {
    pub(super) fn new(redisson: &Redisson, name: &str) -> Self {
        let of = |mode| move |object, _: &_| ReadWrite::new(object, mode);
        let write = |guard: Guard| WriteGuard {
            guard: guard.unfenced(),
        };
        let (read_mode, write_mode) = (of(Mode::Read), of(Mode::Write));
        Self {
            read: Lock::new(redisson, name, read_mode, ReadWrite::force, Guard::unfenced),
            write: Lock::new(redisson, name, write_mode, ReadWrite::force, write),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Redisson's `readLock()`: held by many at a time.
    #[must_use]
    pub fn read_lock(&self) -> &Lock {
        &self.read
    }

    /// Redisson's `writeLock()`: held by one alone.
    #[must_use]
    pub fn write_lock(&self) -> &Lock<WriteGuard> {
        &self.write
    }
}

impl WriteGuard {
    /// Goes on as a reader, without anybody writing in between, and wakes readers that wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the lock back in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock is not ours any more. After any other error it is given back in the
    /// background.
    pub async fn downgrade(self) -> Result<Guard<Unfenced>, Error> {
        self.guard.share().await?;
        Ok(self.guard)
    }

    /// Gives the lock back and says what became of it; see [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future hands the release to the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked. The background goes on trying.
    pub async fn release(self) -> Result<Release, Error> {
        self.guard.release().await
    }
}

impl Handed for WriteGuard {
    type Lease = Lease<Unfenced>;

    fn view(lease: Lease) -> Lease<Unfenced> {
        lease.unfenced()
    }
}

impl Deref for WriteGuard {
    type Target = Guard<Unfenced>;

    fn deref(&self) -> &Guard<Unfenced> {
        &self.guard
    }
}

impl From<WriteGuard> for Guard<Unfenced> {
    fn from(writing: WriteGuard) -> Self {
        writing.guard
    }
}

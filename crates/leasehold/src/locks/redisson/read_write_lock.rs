//! Redisson's `RReadWriteLock`: many readers or one writer.

use super::super::WriteGuard;
use super::{RLock, Redisson};
use crate::lease::{Guard, Unfenced};
use crate::protocol::redisson::{Mode, ReadWriteCalls};

/// Redisson's read-write lock by its name. Not fair: as long as readers come, a writer waits.
///
/// A reader cannot become a writer. A writer becomes a reader by [`WriteGuard::downgrade`], which also wakes the
/// readers that wait; with Redisson's own way, taking the read lock as well and giving the write lock back, those
/// are woken by nobody.
#[derive(Clone, Debug)]
pub struct RReadWriteLock {
    read: RLock,
    write: RLock<WriteGuard<Unfenced>>,
}

impl RReadWriteLock {
    pub(super) fn new(redisson: &Redisson, name: &str) -> Self {
        let of = |mode| move |object, _: &_| ReadWriteCalls::new(object, mode);
        let write = |guard: Guard| WriteGuard::new(guard.unfenced());
        let (read_mode, write_mode) = (of(Mode::Read), of(Mode::Write));
        Self {
            read: RLock::new(
                redisson,
                name,
                read_mode,
                ReadWriteCalls::force_unlock,
                Guard::unfenced,
            ),
            write: RLock::new(
                redisson,
                name,
                write_mode,
                ReadWriteCalls::force_unlock,
                write,
            ),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Redisson's `readLock()`: held by many at a time.
    #[must_use]
    pub fn read_lock(&self) -> &RLock {
        &self.read
    }

    /// Redisson's `writeLock()`: held by one alone.
    #[must_use]
    pub fn write_lock(&self) -> &RLock<WriteGuard<Unfenced>> {
        &self.write
    }
}

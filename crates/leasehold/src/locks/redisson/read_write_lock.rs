//! Redisson's `RReadWriteLock`: many readers or one writer.

use super::super::rw_lock::WriteGuard;
use super::context::RedissonContext;
use super::lock::RLock;
use crate::lease::{Guard, Unfenced};
use crate::protocol::redisson::{LockCalls, Mode};

/// A read-write lock of Redisson.
///
/// It is unfair: while readers arrive, a writer can starve.
///
/// A reader cannot become a writer. A writer becomes a reader with
/// [`WriteGuard::downgrade`], which also wakes waiting readers. Redisson's own
/// way, to acquire the read lock and release the write lock, does not wake
/// them.
#[derive(Clone, Debug)]
pub struct RReadWriteLock {
    read: RLock,
    write: RLock<WriteGuard<Unfenced>>,
}

impl RReadWriteLock {
    pub(super) fn new(context: &RedissonContext, name: &str) -> Self {
        let calls = |mode| move |object, _: &_| LockCalls::read_write(object, mode);
        let write = |guard: Guard| WriteGuard::new(guard.unfenced());
        let (read_mode, write_mode) = (calls(Mode::Read), calls(Mode::Write));
        Self {
            read: RLock::new(
                context,
                name,
                read_mode,
                LockCalls::force_unlock,
                Guard::unfenced,
            ),
            write: RLock::new(context, name, write_mode, LockCalls::force_unlock, write),
        }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Returns the lock of readers: Redisson's `readLock()`.
    #[must_use]
    pub fn read_lock(&self) -> &RLock {
        &self.read
    }

    /// Returns the lock of the writer: Redisson's `writeLock()`.
    #[must_use]
    pub fn write_lock(&self) -> &RLock<WriteGuard<Unfenced>> {
        &self.write
    }
}

//! Redisson's `RReadWriteLock`: many readers or one writer.

use super::Unfenced;
use super::calls::LockCalls;
use super::context::RedissonContext;
use super::lock::RLock;
use crate::lease::{Guard, Pending};
use crate::protocol::Mode;

/// A read-write lock of Redisson.
///
/// It is unfair: while readers arrive, a writer can starve.
///
/// A reader cannot become a writer. A writer becomes a reader with
/// [`Guard::downgrade`], which also wakes waiting readers. Redisson's own way,
/// to acquire the read lock and release the write lock, does not wake them.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let catalogue = client.redisson().read_write_lock("catalogue");
/// let reader = catalogue.read_lock().lock().await?;
/// reader.release().await?;
/// let writer = catalogue.write_lock().lock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RReadWriteLock {
    read: RLock,
    write: RLock,
}

impl RReadWriteLock {
    pub(super) fn new(context: &RedissonContext, name: &str) -> Self {
        let calls = |mode| move |object, _: &_| LockCalls::read_write(object, mode);
        let (read_mode, write_mode) = (calls(Mode::Read), calls(Mode::Write));
        Self {
            read: RLock::new(context, name, read_mode, LockCalls::force_unlock),
            write: RLock::new(context, name, write_mode, LockCalls::force_unlock),
        }
    }

    /// Returns the lock of readers: Redisson's `readLock()`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let catalogue = client.redisson().read_write_lock("catalogue");
    /// let reader = catalogue.read_lock().lock().wait()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn read_lock(&self) -> &RLock {
        &self.read
    }

    /// Returns the lock of the writer: Redisson's `writeLock()`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let catalogue = client.redisson().read_write_lock("catalogue");
    /// let writer = catalogue.write_lock().lock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn write_lock(&self) -> &RLock {
        &self.write
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}

impl Guard<Unfenced> {
    /// Converts a writer's guard into a reader's, without letting another
    /// writer in. Waiting readers wake up, those of Java included. A guard of a
    /// [reentrant](super::RLock::reentrant) handle must be the only one; the
    /// handle then no longer holds the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if this is not a guard from
    /// [`write_lock`](RReadWriteLock::write_lock), or not the only one of a
    /// reentrant handle. [`Error::Lost`](crate::Error::Lost) if the lease was
    /// lost. After any error, the lock is released in the background, unless
    /// other guards of the handle hold it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let catalogue = client.redisson().read_write_lock("catalogue");
    /// let writer = catalogue.write_lock().lock().await?;
    /// // … change the catalogue, then let Java's readers in.
    /// let reader = writer.downgrade().await?;
    /// # Ok(()) }
    /// ```
    pub fn downgrade(self) -> Pending<'static, Self> {
        let runtime = self.runtime().clone();
        Pending::new(&runtime, self.downgrade_as())
    }
}

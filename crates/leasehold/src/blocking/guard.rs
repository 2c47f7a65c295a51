//! The guards of held locks.

use std::ops::Deref;
use std::time::Duration;

use super::lost_signal::LostSignal;
use crate::error::{Error, Loss};
use crate::lease::{Fenced, KeeperRuntime, Lease, ReleaseOutcome, Shared, Unfenced};
use crate::locks::{GuardType, sealed};

/// A held lock. Dropping it releases the lock in the background.
///
/// The guarantees are those of the async [`Guard`](crate::Guard). A guard is
/// `Send`, borrows nothing, and dereferences to its [`Lease`]: call
/// [`check`](Lease::check) before every effect.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<F = Fenced> {
    guard: crate::Guard<F>,
}

/// The guard of a writer, which can be [downgraded](Self::downgrade).
///
/// It dereferences to its [`Lease`]. Dropping it releases the lock in the
/// background.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct WriteGuard<F = Fenced> {
    guard: Guard<F>,
}

impl<F> Guard<F> {
    pub(super) fn marked(guard: crate::Guard) -> Self {
        let guard = guard.marked();
        Self { guard }
    }

    /// Returns the lease, which can be cloned and passed to other threads.
    #[must_use]
    pub fn lease(&self) -> &Lease<F> {
        self.guard.lease()
    }

    /// Returns a signal that reports the loss of this lease, and that other
    /// threads can poll or wait for.
    #[must_use]
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new([self.lease().unfenced()])
    }

    /// Calls `callback` once if this lease is lost, immediately if it is lost
    /// already.
    ///
    /// The callback is not called if the lock is released before, or if the
    /// last handle of the client is dropped. It runs on a thread of its own, so
    /// that it can block, and can call every method of this module. A panic in
    /// it has no other effect. Up to 64 callbacks of a client run at the same
    /// time; others wait.
    ///
    /// A callback that is not called is dropped on the client's own thread. The
    /// destructors of its captured values must not block.
    ///
    /// A callback can be late: only [`check`](Lease::check) reports a loss
    /// without delay.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Error, blocking::Client};
    /// # use std::process::Child;
    /// # fn example(client: Client, mut child: Child) -> Result<(), Error> {
    /// let guard = client.mutex("import").lock().acquire()?;
    /// guard.on_lost(move |loss| {
    ///     eprintln!("stopping the import: {loss}");
    ///     let _ = child.kill();
    /// });
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn on_lost(&self, callback: impl FnOnce(Loss) + Send + 'static) {
        let lease = self.lease().unfenced();
        self.runtime().call_back(async move {
            let loss = lease.lost().await?;
            Some(move || callback(loss))
        });
    }

    pub(super) fn runtime(&self) -> &KeeperRuntime {
        self.guard.runtime()
    }

    /// Extends the lease to at least `lease` from now, whether it is renewed
    /// or fixed, but never beyond [`at_most`](super::Acquire::at_most).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if this owner no longer holds the lock. After any other
    /// error the lease is unchanged, and the call can be repeated.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.runtime().wait(self.guard.extend(lease))
    }

    /// Releases the lock and returns the outcome.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached. The client retries in the
    /// background; the lock is free at the latest when its lease expires.
    pub fn release(self) -> Result<ReleaseOutcome, Error> {
        let runtime = self.runtime().clone();
        runtime.wait(self.guard.release())
    }
}

impl<F> WriteGuard<F> {
    pub(super) fn marked(guard: crate::Guard) -> Self {
        let guard = Guard::marked(guard);
        Self { guard }
    }

    /// Returns the lease, which can be cloned and passed to other threads.
    #[must_use]
    pub fn lease(&self) -> &Lease<F> {
        self.guard.lease()
    }

    /// Returns a signal that reports the loss of this lease; see
    /// [`Guard::lost_signal`].
    #[must_use]
    pub fn lost_signal(&self) -> LostSignal {
        self.guard.lost_signal()
    }

    /// Calls `callback` once if this lease is lost; see [`Guard::on_lost`].
    pub fn on_lost(&self, callback: impl FnOnce(Loss) + Send + 'static) {
        self.guard.on_lost(callback);
    }

    /// Extends the lease to at least `lease` from now; see [`Guard::extend`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::extend`].
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.guard.extend(lease)
    }

    /// Releases the lock; see [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`].
    pub fn release(self) -> Result<ReleaseOutcome, Error> {
        self.guard.release()
    }
}

impl WriteGuard {
    /// Converts this guard into that of a reader, without a writer in between;
    /// see the async [`downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost. After any other error, the lock
    /// is released in the background.
    pub fn downgrade(self) -> Result<Guard<Shared>, Error> {
        let runtime = self.guard.runtime().clone();
        let writer = crate::WriteGuard::new(self.guard.guard);
        let guard = runtime.wait(writer.downgrade())?;
        Ok(Guard { guard })
    }
}

impl WriteGuard<Unfenced> {
    /// Converts this guard into that of a reader, without a writer in between.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost. After any other error, the lock
    /// is released in the background.
    pub fn downgrade(self) -> Result<Guard<Unfenced>, Error> {
        let runtime = self.guard.runtime().clone();
        let writer = crate::WriteGuard::new(self.guard.guard);
        let guard = runtime.wait(writer.downgrade())?;
        Ok(Guard { guard })
    }
}

impl<F> Deref for Guard<F> {
    type Target = Lease<F>;

    fn deref(&self) -> &Lease<F> {
        self.lease()
    }
}

impl<F> Deref for WriteGuard<F> {
    type Target = Lease<F>;

    fn deref(&self) -> &Lease<F> {
        self.lease()
    }
}

impl From<Guard> for Guard<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(guard: Guard) -> Self {
        Self::marked(guard.guard)
    }
}

impl From<WriteGuard> for Guard<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(writer: WriteGuard) -> Self {
        writer.guard.into()
    }
}

impl<F> From<WriteGuard<F>> for Guard<F> {
    /// Converts into a guard that cannot be downgraded.
    fn from(writer: WriteGuard<F>) -> Self {
        writer.guard
    }
}

impl<F> sealed::Sealed for Guard<F> {}
impl<F> sealed::Sealed for WriteGuard<F> {}

impl<F> GuardType for Guard<F> {
    type Fencing = F;
}

impl<F> GuardType for WriteGuard<F> {
    type Fencing = F;
}

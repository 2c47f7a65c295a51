//! The signal by which threads learn of a lost lease.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use crate::lease::{KeeperRuntime, Lease, Unfenced};
use crate::park::Parker;

/// A signal that the lease of a guard was lost or released.
///
/// A signal is cheap to clone and to poll, and holds neither the lock nor the
/// client. Pass it to the threads that work under the lock.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Error, blocking::Client};
/// # fn example(client: Client) -> Result<(), Error> {
/// let guard = client.mutex("import").lock().acquire()?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         let lost = guard.lost_signal();
///         scope.spawn(move || {
///             while !lost.is_lost() {
///                 // one step of the work
///             }
///         });
///     }
/// });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LostSignal {
    leases: Arc<[Lease<Unfenced>]>,
}

impl LostSignal {
    /// Creates the signal of several leases. It reports the lease that ends
    /// first.
    pub(super) fn new(leases: impl IntoIterator<Item = Lease<Unfenced>>) -> Self {
        Self {
            leases: leases.into_iter().collect(),
        }
    }

    /// Returns whether the lease was lost or released, by the clock alone. Once
    /// true, it stays true.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.leases.iter().any(|lease| lease.check().is_err())
    }

    /// Blocks until the lease is lost or released, for at most `limit`. Returns
    /// [`is_lost`](Self::is_lost).
    ///
    /// On the thread of a client, which must not block, it returns immediately.
    pub fn wait_timeout(&self, limit: Duration) -> bool {
        if KeeperRuntime::is_current_thread() {
            return self.is_lost();
        }
        let end = Instant::now().checked_add(limit);
        let (parker, waker) = Parker::current();
        let mut context = Context::from_waker(&waker);
        let lost = self.leases.iter().map(|lease| Box::pin(lease.lost()));
        let mut lost: Vec<_> = lost.map(tokio::task::unconstrained).collect();
        loop {
            for lost in &mut lost {
                // Only registers the waker; the check below decides.
                let _ = Pin::new(lost).poll(&mut context);
            }
            if self.is_lost() {
                return true;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            // Also without a notification, a lease ends at its deadline.
            let remaining = self.leases.iter().map(Lease::remaining);
            let limit = remaining.chain(left).min().unwrap_or(Duration::MAX);
            parker.park(Duration::ZERO, limit);
        }
    }
}

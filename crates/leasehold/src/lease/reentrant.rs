//! One acquisition shared by all guards of a reentrant handle.
//!
//! The number of guards is known only here, as a reference count. It never
//! reaches the server, so no request can count twice.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use super::owned::OwnedLease;
use super::wait::Acquirer;
use crate::error::Error;
use crate::options::AcquireOptions;
use crate::protocol::Kind;
use crate::time::BootInstant;

/// The acquisition that the guards of one handle share.
#[derive(Default)]
pub(crate) struct Reentry {
    /// Locked while one task of the handle acquires; the others wait for its
    /// outcome.
    current: Mutex<Weak<OwnedLease>>,
}

impl Reentry {
    /// Enters the current acquisition, or acquires the lock.
    pub(super) async fn enter(
        &self,
        acquirer: &Acquirer,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Arc<OwnedLease>, Error> {
        options.validate()?;
        acquirer.check_process()?;
        let start = BootInstant::now();
        let Some(mut current) = self.lock(options.timeout).await else {
            let observed = acquirer.last_observed(&**kind);
            return Err(Error::Timeout {
                name: kind.name().to_owned(),
                waited: BootInstant::now().since(start),
                holder: observed.map(|observed| Box::new(observed.holder)),
                position: None,
            });
        };
        if let Some(lease) = valid(&current) {
            return Ok(lease);
        }
        let mut options = options.clone();
        options.timeout = options
            .timeout
            .map(|timeout| timeout.saturating_sub(BootInstant::now().since(start)));
        let lease = Arc::new(acquirer.acquire(kind, &options).await?);
        *current = Arc::downgrade(&lease);
        Ok(lease)
    }

    /// Enters the current acquisition, or acquires the lock without waiting.
    pub(super) async fn try_enter(
        &self,
        acquirer: &Acquirer,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Option<Arc<OwnedLease>>, Error> {
        acquirer.check_process()?;
        let Ok(mut current) = self.current.try_lock() else {
            return Ok(None);
        };
        if let Some(lease) = valid(&current) {
            return Ok(Some(lease));
        }
        let lease = acquirer.try_acquire(kind, options).await?.map(Arc::new);
        if let Some(lease) = &lease {
            *current = Arc::downgrade(lease);
        }
        Ok(lease)
    }

    /// Waits until no other task of this handle acquires; `None` when `timeout`
    /// elapses.
    async fn lock(&self, timeout: Option<Duration>) -> Option<MutexGuard<'_, Weak<OwnedLease>>> {
        match timeout {
            Some(limit) => tokio::time::timeout(limit, self.current.lock()).await.ok(),
            None => Some(self.current.lock().await),
        }
    }
}

/// Returns the current acquisition, unless it is lost.
fn valid(current: &Weak<OwnedLease>) -> Option<Arc<OwnedLease>> {
    current.upgrade().filter(|lease| lease.is_valid())
}

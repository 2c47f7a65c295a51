//! One acquisition shared by all guards of a reentrant handle.
//!
//! How many guards there are is known only here, by counting references; it never reaches the server, so no
//! request can count twice.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use super::Engine;
use super::hold::Hold;
use crate::error::Error;
use crate::options::AcquireOptions;
use crate::protocol::Kind;
use crate::time::BootInstant;

/// The acquisition that the guards of one handle share, while there are any.
#[derive(Default)]
pub(crate) struct Reentry {
    /// Locked while one of the handle's tasks acquires; the others wait for its outcome.
    current: Mutex<Weak<Hold>>,
}

impl Engine {
    /// Enters the current acquisition of `reentry`, or else makes one.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        reentry: &Reentry,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Arc<Hold>, Error> {
        options.validate()?;
        let start = BootInstant::now();
        let Some(mut current) = reentry.turn(options.timeout).await else {
            let gate = kind.wait_strategy().local_queue_key();
            let seen = gate.and_then(|gate| self.room.last_seen(gate));
            return Err(Error::Timeout {
                name: kind.name().to_owned(),
                waited: BootInstant::now().since(start),
                holder: seen.map(|seen| Box::new(seen.holder)),
                position: None,
            });
        };
        if let Some(hold) = valid(&current) {
            return Ok(hold);
        }
        let mut rest = options.clone();
        rest.timeout = options
            .timeout
            .map(|wait| wait.saturating_sub(BootInstant::now().since(start)));
        let hold = Arc::new(self.take(kind, &rest).await?);
        *current = Arc::downgrade(&hold);
        Ok(hold)
    }

    /// As [`enter`](Self::enter), without waiting for anybody.
    pub(crate) async fn try_enter(
        self: &Arc<Self>,
        reentry: &Reentry,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Option<Arc<Hold>>, Error> {
        let Ok(mut current) = reentry.current.try_lock() else {
            return Ok(None);
        };
        if let Some(hold) = valid(&current) {
            return Ok(Some(hold));
        }
        let hold = self.try_take(kind, options).await?.map(Arc::new);
        if let Some(hold) = &hold {
            *current = Arc::downgrade(hold);
        }
        Ok(hold)
    }
}

impl Reentry {
    /// Waits until no other task of this handle acquires; `None` when that takes too long.
    async fn turn(&self, limit: Option<Duration>) -> Option<MutexGuard<'_, Weak<Hold>>> {
        match limit {
            Some(limit) => tokio::time::timeout(limit, self.current.lock()).await.ok(),
            None => Some(self.current.lock().await),
        }
    }
}

/// What was lost is not entered again.
fn valid(current: &Weak<Hold>) -> Option<Arc<Hold>> {
    current.upgrade().filter(|hold| hold.is_valid())
}

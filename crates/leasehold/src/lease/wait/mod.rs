//! Waiting for a lock.
//!
//! Callers of one client that want the same lock stand in a local FIFO of
//! [`slots`]. One [waiting task](task) on the keeper's runtime talks to the
//! server for all of them, as a single waiter. A caller polls a slot only, so a
//! caller that is not polled does not block the others.
//!
//! Readers of a read-write lock have no local queue, because several of one
//! process hold it together: each reader has an entry in the server's queue,
//! and waits by itself.

mod deliver;
mod free;
mod grants;
mod handoff;
mod notified;
mod progress;
pub(super) mod queued;
mod registry;
mod slot;
pub(super) mod slots;
mod task;
mod terms;
mod wakeup;

use std::sync::Arc;

use tracing::Span;

pub(super) use self::deliver::deliver;
use self::free::FreeRegistry;
use self::grants::GrantRouter;
pub(super) use self::progress::{Progress, Wait};
pub(super) use self::registry::LockEntry;
use self::registry::{InLine, WaitRegistry};
use self::task::WaitingTask;
pub(super) use self::terms::Position;
use self::terms::Terms;
pub(super) use self::wakeup::Wakeups;
use super::attempt::PATIENCE;
use super::owned::OwnedLease;
use crate::backend::RequestError;
use crate::protocol::{Kind, WaitStrategy};

/// All waits of one client.
#[derive(Default)]
pub(super) struct Waits {
    registry: Arc<WaitRegistry>,
    grants: Arc<GrantRouter>,
    pub(super) free: Arc<FreeRegistry>,
}

impl Waits {
    /// Returns the lock if other callers of this client already wait for it.
    pub(super) fn contended(&self, kind: &dyn Kind) -> Option<Arc<LockEntry>> {
        self.registry.get(kind.wait_strategy().local_queue_key()?)
    }

    /// Waits for the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. A lock that was granted goes to
    /// the next caller, or is released.
    pub(super) async fn acquire(
        &self,
        wait: &Wait<'_>,
        span: &Span,
        joined: Option<Arc<LockEntry>>,
        slots: &mut Option<Arc<LockEntry>>,
    ) -> Result<OwnedLease, RequestError> {
        let strategy = wait.kind.wait_strategy();
        if let Some(key) = strategy.local_queue_key() {
            let mut joined = joined;
            loop {
                let in_line = self.line_up(wait, span, key, joined.take());
                *slots = Some(in_line.entry.clone());
                if let Some(lease) = in_line.claimed().await? {
                    return Ok(lease);
                }
            }
        }
        let WaitStrategy::Queued(queue) = strategy else {
            unreachable!("BUG: a notified kind has a local queue");
        };
        let mut ticket = None;
        tokio::select! {
            biased;
            () = wait.context.closed() => Err(RequestError::ShutDown),
            acquired = queued::acquire(wait, &self.grants, queue, &mut ticket, Some(PATIENCE)) => {
                acquired
            }
        }
    }

    /// Adds a slot at `key`, and starts the waiting task with the first one.
    fn line_up(
        &self,
        wait: &Wait<'_>,
        span: &Span,
        key: &[u8],
        joined: Option<Arc<LockEntry>>,
    ) -> InLine {
        let mut terms = Terms {
            kind: wait.kind.clone(),
            options: wait.options.clone(),
            position: Position::default(),
        };
        if let Some(entry) = joined {
            match entry.line_up(terms, span) {
                Ok(waiter) => return waiter,
                Err(returned) => terms = returned,
            }
        }
        let max_outage = wait.context.limits.outage;
        let (waiter, new) = self.registry.line_up(key, terms, span, max_outage);
        if let Some(entry) = new {
            let task = WaitingTask {
                context: wait.context.clone(),
                registry: self.registry.clone(),
                grants: self.grants.clone(),
                entry,
            };
            task.spawn();
        }
        waiter
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.registry.is_empty()
    }
}

//! Waiting until a lock is free, or a latch is open, without acquiring it.
//!
//! All callers of this client that wait for the same lock follow one task on
//! the keeper's runtime, which asks the server for all of them. Nothing is at
//! stake if one of them is not polled.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::notified::{Polls, poll};
use super::progress::Progress;
use super::wakeup::Wakeups;
use crate::backend::{RequestError, Slot};
use crate::error::Error;
use crate::lease::context::{Context, error_of};
use crate::protocol::{LockStatus, Notified};
use crate::sync::Mutex;
use crate::time::BootInstant;

/// The locks whose release callers wait for.
#[derive(Default)]
pub(crate) struct FreeRegistry {
    locks: Mutex<HashMap<Arc<[u8]>, Followed>>,
}

/// A lock that callers follow.
struct Followed {
    /// The status, which the task owns.
    status: Weak<watch::Sender<FreeStatus>>,
    /// When the last caller began to follow.
    newest: BootInstant,
}

/// What the task last learned.
#[derive(Clone)]
enum FreeStatus {
    Held,
    /// The server does not reply.
    Failing {
        since: BootInstant,
        error: Arc<RequestError>,
    },
    /// The lock was free after this instant.
    Free {
        asked: BootInstant,
    },
    Failed(Arc<RequestError>),
}

/// A caller that waits until a lock is free.
pub(crate) struct FreeWaiter {
    status: watch::Receiver<FreeStatus>,
    start: BootInstant,
    max_outage: Duration,
}

impl FreeWaiter {
    /// Waits until the lock is free.
    pub(crate) async fn wait(&mut self) -> Result<(), RequestError> {
        loop {
            let give_up = match &*self.status.borrow_and_update() {
                FreeStatus::Free { asked } if *asked >= self.start => return Ok(()),
                // The caller began to wait after the lock was free.
                FreeStatus::Held | FreeStatus::Free { .. } => BootInstant::NEVER,
                FreeStatus::Failed(error) => return Err(error.duplicate()),
                // The budget counts from the caller's own start.
                FreeStatus::Failing { since, .. } => self.start.max(*since) + self.max_outage,
            };
            tokio::select! {
                biased;
                changed = self.status.changed() => if changed.is_err() {
                    // The task has ended with the client.
                    return Err(RequestError::ShutDown);
                },
                () = tokio::time::sleep_until(give_up.as_timer()) => {
                    if let Some(error) = self.outage() {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Returns the error of a wait that timed out: the last failed request if
    /// the outage continues, else [`Error::Timeout`].
    pub(crate) fn timed_out(&self, name: &str, waited: Duration) -> Error {
        match self.outage() {
            Some(error) => error_of(error, name),
            None => Error::Timeout {
                name: name.to_owned(),
                waited,
                holder: None,
                position: None,
            },
        }
    }

    /// Returns the last failed request, while an outage lasts.
    fn outage(&self) -> Option<RequestError> {
        match &*self.status.borrow() {
            FreeStatus::Failing { error, .. } => Some(error.duplicate()),
            _ => None,
        }
    }
}

impl FreeRegistry {
    /// Follows the task for `lock`, or starts one.
    pub(crate) fn follow(
        self: &Arc<Self>,
        context: &Arc<Context>,
        lock: &Arc<dyn Notified>,
        slot: Slot,
    ) -> FreeWaiter {
        let key = lock.local_queue_key();
        let mut locks = self.locks.lock();
        // Followed under the mutex, or the task could end in between.
        let start = BootInstant::now();
        let current = locks.get_mut(key).and_then(|followed| {
            followed.newest = start;
            followed.status.upgrade()
        });
        let status = current.map_or_else(
            || {
                let sender = Arc::new(watch::Sender::new(FreeStatus::Held));
                let status = sender.subscribe();
                let key: Arc<[u8]> = key.into();
                let followed = Followed {
                    status: Arc::downgrade(&sender),
                    newest: start,
                };
                locks.insert(key.clone(), followed);
                let task = FreeTask {
                    registry: self.clone(),
                    context: context.clone(),
                    lock: lock.clone(),
                    slot,
                    key,
                    status: sender,
                };
                context.keeper.runtime.spawn(task.run());
                status
            },
            |sender| sender.subscribe(),
        );
        FreeWaiter {
            status,
            start,
            max_outage: context.limits.outage,
        }
    }
}

/// The task that asks the server for all callers.
struct FreeTask {
    registry: Arc<FreeRegistry>,
    context: Arc<Context>,
    lock: Arc<dyn Notified>,
    slot: Slot,
    key: Arc<[u8]>,
    status: Arc<watch::Sender<FreeStatus>>,
}

impl FreeTask {
    async fn run(self) {
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.context.closed() => FreeStatus::Failed(Arc::new(RequestError::ShutDown)),
                () = self.abandoned() => return,
                outcome = self.ask() => outcome,
            };
            // Forgotten first: a caller that follows now asks the server again.
            let is_last = self.forget(&outcome);
            self.status.send_replace(outcome);
            if is_last {
                return;
            }
        }
    }

    /// Forgets the lock, unless a caller began to wait after it was free.
    /// Returns whether it did.
    fn forget(&self, outcome: &FreeStatus) -> bool {
        let mut locks = self.registry.locks.lock();
        if let FreeStatus::Free { asked } = outcome
            && let Some(followed) = locks.get(&self.key)
            && followed.newest > *asked
        {
            return false;
        }
        locks.remove(&self.key);
        true
    }

    /// Waits until no caller follows, and none can any more.
    async fn abandoned(&self) {
        loop {
            self.status.closed().await;
            // Checked again under the mutex: a caller may have followed since.
            let mut locks = self.registry.locks.lock();
            if self.status.receiver_count() == 0 {
                locks.remove(&self.key);
                return;
            }
        }
    }

    /// Asks until the lock is free, or a request fails for good.
    async fn ask(&self) -> FreeStatus {
        let mut wakeups = Wakeups::default();
        let mut polls = Polls::default();
        // Each caller ends its own wait when an outage takes too long.
        let progress = Progress::new(Duration::MAX);
        loop {
            // Subscribed before the poll, so that no release is missed.
            let channel = || self.lock.channel_name().channel();
            let listening = wakeups.listen(&self.context, channel, self.slot).await;
            let asked = BootInstant::now();
            let status = match listening {
                Ok(()) => poll(&self.context, &*self.lock, self.slot).await,
                Err(error) => Err(error),
            };
            match status {
                Ok(LockStatus::Free) => return FreeStatus::Free { asked },
                Ok(LockStatus::Held { remaining }) => {
                    progress.on_reply();
                    self.status.send_replace(FreeStatus::Held);
                    polls
                        .wait_for_wakeup(&self.context, &*self.lock, self.slot, &wakeups, remaining)
                        .await;
                }
                Err(error) => match progress.on_error(error) {
                    Ok(pause) => {
                        if let Some((since, error)) = progress.outage() {
                            let error = Arc::new(error);
                            self.status
                                .send_replace(FreeStatus::Failing { since, error });
                        }
                        tokio::time::sleep(pause).await;
                    }
                    Err(error) => return FreeStatus::Failed(Arc::new(error)),
                },
            }
        }
    }
}

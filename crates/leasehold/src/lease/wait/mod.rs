//! Acquiring a lock with a timeout: attempts, and waits between them.
//!
//! Tasks of one client that want the same lock share one waiter on the server:
//! one task leads, the others wait in the [`local_queue`].

mod grants;
mod handoff;
mod leader;
pub(super) mod local_queue;
mod notified;
pub(super) mod queued;
mod registry;
mod report;

use std::sync::Arc;
use std::time::Duration;

use self::grants::GrantRouter;
use self::leader::{LeaderTurn, Turn, drive, turn};
pub(super) use self::registry::Wakeup;
use self::registry::{Observed, Registration, WaiterRegistry};
use self::report::AcquireReport;
use super::attempt::{Attempt, attempt, attempt_through_splits};
use super::context::{Context, error_of};
use super::hand_over::{Adoption, adopt};
use super::owned::OwnedLease;
use super::retry::RetryState;
use tracing::Instrument;

use crate::backend::{RequestError, Slot};
use crate::error::Error;
use crate::observe::Refusal;
use crate::options::AcquireOptions;
use crate::owner::Owner;
use crate::protocol::{Kind, Notified, WaitStrategy};
use crate::time::BootInstant;

/// Acquires locks for one client.
pub(super) struct Acquirer {
    context: Arc<Context>,
    pub(super) registry: Arc<WaiterRegistry>,
    grants: GrantRouter,
}

impl Acquirer {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            registry: Arc::default(),
            grants: GrantRouter::default(),
        }
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.context.check_process()
    }

    /// Attempts without waiting; `None` if another owner holds the lock.
    pub(super) async fn try_acquire(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Option<OwnedLease>, Error> {
        options.validate()?;
        self.context.check_process()?;
        let report = AcquireReport::new(&self.context.observers, &**kind);
        match attempt_through_splits(&self.context, kind, options, false).await {
            Ok(Attempt::Acquired(lease)) => {
                report.acquired(&lease);
                lease.begin_hold(options.caller);
                Ok(Some(lease))
            }
            Ok(Attempt::Busy(_) | Attempt::Split) => {
                report.refused(Refusal::Busy);
                Ok(None)
            }
            Err(error) => {
                let error = error_of(error, kind.name());
                report.refused(Refusal::Failed(&error));
                Err(error)
            }
        }
    }

    /// Adopts a lock that was handed over to the owner `pending`.
    pub(super) async fn adopt(
        &self,
        kind: &Arc<dyn Kind>,
        pending: &Owner,
        options: &AcquireOptions,
    ) -> Result<OwnedLease, Error> {
        options.validate()?;
        self.context.check_process()?;
        let report = AcquireReport::new(&self.context.observers, &**kind);
        let name = kind.name();
        let outcome = match adopt(&self.context, kind, pending, options).await {
            Ok(Adoption::Adopted(lease)) => Ok(lease),
            Ok(Adoption::Spent) => Err(Error::TicketSpent {
                name: name.to_owned(),
            }),
            Err(error) => Err(error_of(error, name)),
        };
        report.finish(&outcome);
        if let Ok(lease) = &outcome {
            lease.begin_hold(options.caller);
        }
        outcome
    }

    /// Acquires the lock, or fails when the timeout of `options` elapses.
    pub(super) async fn acquire(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<OwnedLease, Error> {
        options.validate()?;
        self.context.check_process()?;
        let start = BootInstant::now();
        let mut retry = RetryState::new(self.context.limits.outage);
        let mut report = AcquireReport::new(&self.context.observers, &**kind);
        // `None` when the timeout has elapsed.
        let outcome = match options.timeout {
            Some(Duration::ZERO) => Box::pin(self.acquire_at_once(kind, options, &mut retry))
                .await
                .transpose(),
            Some(limit) => {
                let acquiring =
                    self.acquire_without_timeout(kind, options, &mut retry, &mut report);
                Box::pin(tokio::time::timeout(limit, acquiring)).await.ok()
            }
            None => Some(
                self.acquire_without_timeout(kind, options, &mut retry, &mut report)
                    .await,
            ),
        };
        let outcome = match outcome {
            Some(outcome) => outcome.map_err(|error| error_of(error, kind.name())),
            None => {
                // A task that never led has observed no holder; the leader has.
                if let Some(observed) = self.last_observed(&**kind) {
                    retry.fill_from(observed.holder, observed.ahead);
                }
                Err(retry.into_error(kind.name(), BootInstant::now().since(start)))
            }
        };
        report.finish(&outcome);
        if let Ok(lease) = &outcome {
            lease.begin_hold(options.caller);
        }
        outcome
    }

    /// Attempts with a timeout of zero; `None` if the lock is busy.
    async fn acquire_at_once(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        retry: &mut RetryState,
    ) -> Result<Option<OwnedLease>, RequestError> {
        match attempt_through_splits(&self.context, kind, options, true).await? {
            Attempt::Acquired(lease) => Ok(Some(lease)),
            Attempt::Busy(holder) => {
                retry.on_busy(holder);
                Ok(None)
            }
            Attempt::Split => Ok(None),
        }
    }

    async fn acquire_without_timeout(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        retry: &mut RetryState,
        report: &mut AcquireReport<'_>,
    ) -> Result<OwnedLease, RequestError> {
        // If other tasks of this client already wait, an attempt would only
        // cost the server.
        let key = kind.wait_strategy().local_queue_key();
        let mut registration = key.and_then(|key| self.registry.join(key));
        if registration.is_none() {
            match attempt(&self.context, kind, options, false).await {
                Ok(Attempt::Acquired(lease)) => return Ok(lease),
                Ok(Attempt::Busy(holder)) => retry.on_busy(holder),
                Ok(Attempt::Split) => retry.on_reply(),
                Err(error) => retry.on_error(error)?,
            }
            registration = key.map(|key| self.registry.register(key));
        }
        let span = match retry.holder() {
            Some(holder) => report.wait_started(Some(holder)),
            // This task joined others; their leader has observed the holder.
            None => {
                let observed = self.last_observed(&**kind);
                report.wait_started(observed.as_ref().map(|observed| &observed.holder))
            }
        };
        // Boxed, since its state is large and most acquires end before.
        Box::pin(
            self.wait(kind, options, registration, retry)
                .instrument(span),
        )
        .await
    }

    /// Waits in the local queue, if the kind has one, and then for the server.
    async fn wait(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        registration: Option<Registration>,
        retry: &mut RetryState,
    ) -> Result<OwnedLease, RequestError> {
        let context = &self.context;
        let turn = match &registration {
            Some(registration) => match turn(registration, options, &context.keeper).await {
                Turn::Lead(turn) => Some(turn),
                Turn::Hold(lease) => return Ok(lease),
            },
            None => None,
        };
        let pulse = turn.as_ref().map(LeaderTurn::pulse);
        let waiting = async {
            match (kind.wait_strategy(), turn) {
                (WaitStrategy::Notified(lock), Some(turn)) => {
                    notified::acquire(context, kind, lock, options, turn, retry).await
                }
                (WaitStrategy::Queued(queue), turn) => {
                    queued::acquire(context, &self.grants, kind, queue, options, turn, retry).await
                }
                (WaitStrategy::Notified(_), None) => {
                    unreachable!("BUG: a notified kind has a local queue")
                }
            }
        };
        tokio::select! {
            biased;
            () = context.closed() => Err(RequestError::ShutDown),
            acquired = drive(pulse, waiting) => acquired,
        }
    }

    /// Waits until a poll finds `lock` free, without acquiring it.
    pub(super) async fn wait_until_free(
        &self,
        lock: &dyn Notified,
        slot: Slot,
        name: &str,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.context.check_process()?;
        let (context, start) = (&self.context, BootInstant::now());
        let mut retry = RetryState::new(context.limits.outage);
        let waiting = async {
            tokio::select! {
                biased;
                () = context.closed() => Err(RequestError::ShutDown),
                free = notified::wait_until_free(context, &self.registry, lock, slot, &mut retry) => free,
            }
        };
        let outcome = match timeout {
            Some(limit) => tokio::time::timeout(limit, waiting).await.ok(),
            None => Some(waiting.await),
        };
        match outcome {
            Some(outcome) => outcome.map_err(|error| error_of(error, name)),
            None => Err(retry.into_error(name, BootInstant::now().since(start))),
        }
    }

    /// Returns what the task of this client that leads the waiters for a lock
    /// last observed.
    pub(super) fn last_observed(&self, kind: &dyn Kind) -> Option<Observed> {
        let key = kind.wait_strategy().local_queue_key()?;
        self.registry.last_observed(key)
    }
}

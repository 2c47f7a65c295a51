//! Acquiring a lock: the first attempt on the caller's task, and the wait after
//! it.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::acquire_report::AcquireReport;
use super::attempt::{Attempt, attempt, attempt_through_splits};
use super::context::error_of;
use super::engine::Engine;
use super::hand_over::{Adoption, adopt};
use super::owned::OwnedLease;
use super::wait::{LockEntry, Position, Progress, Wait};
use crate::backend::{RequestError, Slot};
use crate::error::Error;
use crate::observe::Refusal;
use crate::options::AcquireOptions;
use crate::owner::Owner;
use crate::protocol::{Kind, Notified};
use crate::time::BootInstant;

/// What a caller has seen of its wait, also after a timeout.
struct Waited {
    /// The caller's own progress.
    own: Progress,
    /// The lock at which the caller had a slot.
    slots: Option<Arc<LockEntry>>,
}

impl Waited {
    fn progress(&self) -> &Progress {
        let slots = self.slots.as_ref();
        slots.map_or(&self.own, |entry| &entry.progress)
    }
}

impl Engine {
    /// Attempts without waiting; `None` if another owner holds the lock.
    pub(crate) async fn try_acquire(
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
    pub(crate) async fn adopt(
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
    pub(crate) async fn acquire(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<OwnedLease, Error> {
        options.validate()?;
        self.context.check_process()?;
        let start = BootInstant::now();
        let mut report = AcquireReport::new(&self.context.observers, &**kind);
        let mut waited = Waited {
            own: Progress::new(self.context.limits.outage),
            slots: None,
        };
        // `None` when the timeout has elapsed.
        let outcome = match options.timeout {
            Some(Duration::ZERO) => Box::pin(self.acquire_at_once(kind, options, &waited.own))
                .await
                .transpose(),
            Some(limit) => {
                let acquiring =
                    self.acquire_without_timeout(kind, options, &mut waited, &mut report);
                Box::pin(tokio::time::timeout(limit, acquiring)).await.ok()
            }
            None => Some(
                self.acquire_without_timeout(kind, options, &mut waited, &mut report)
                    .await,
            ),
        };
        let outcome = match outcome {
            Some(outcome) => outcome.map_err(|error| error_of(error, kind.name())),
            None => {
                let elapsed = BootInstant::now().since(start);
                Err(waited.progress().timed_out(kind.name(), elapsed))
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
        progress: &Progress,
    ) -> Result<Option<OwnedLease>, RequestError> {
        match attempt_through_splits(&self.context, kind, options, true).await? {
            Attempt::Acquired(lease) => Ok(Some(lease)),
            Attempt::Busy(holder) => {
                progress.on_busy(holder, None);
                Ok(None)
            }
            Attempt::Split => Ok(None),
        }
    }

    async fn acquire_without_timeout(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        waited: &mut Waited,
        report: &mut AcquireReport<'_>,
    ) -> Result<OwnedLease, RequestError> {
        // If other callers of this client already wait, an attempt would only
        // cost the server, and overtake them.
        let contended = self.waits.contended(&**kind);
        let holder = match &contended {
            Some(entry) => entry.progress.holder(),
            None => {
                match attempt(&self.context, kind, options, false).await {
                    Ok(Attempt::Acquired(lease)) => return Ok(lease),
                    Ok(Attempt::Busy(holder)) => waited.own.on_busy(holder, None),
                    Ok(Attempt::Split) => {}
                    Err(error) => drop(waited.own.on_error(error)?),
                }
                waited.own.holder()
            }
        };
        let span = report.wait_started(holder.as_ref());
        let position = Position::in_span(&span);
        let wait = Wait {
            context: &self.context,
            kind,
            options,
            progress: &waited.own,
            position: &position,
        };
        // Boxed, since its state is large and most acquires end before.
        let waiting = self
            .waits
            .acquire(&wait, &span, contended, &mut waited.slots);
        Box::pin(waiting).instrument(span.clone()).await
    }

    /// Waits until a poll finds `lock` free, without acquiring it.
    pub(crate) async fn wait_until_free(
        &self,
        lock: &Arc<dyn Notified>,
        slot: Slot,
        name: &str,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.context.check_process()?;
        let start = BootInstant::now();
        self.context
            .check_open()
            .map_err(|error| error_of(error, name))?;
        let mut waiter = self.waits.free.follow(&self.context, lock, slot);
        let outcome = match timeout {
            Some(limit) => tokio::time::timeout(limit, waiter.wait()).await.ok(),
            None => Some(waiter.wait().await),
        };
        match outcome {
            Some(outcome) => outcome.map_err(|error| error_of(error, name)),
            None => Err(waiter.timed_out(name, BootInstant::now().since(start))),
        }
    }
}

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
use crate::options::AcquireOptions;
use crate::owner::Owner;
use crate::protocol::{Kind, Notified};
use crate::time::BootInstant;

/// What a caller has seen while it waited, also after a timeout.
struct Waited {
    max_outage: Duration,
    /// The caller's own progress, once there is any. Boxed, since it is large
    /// and most acquires end before.
    own: Option<Box<Progress>>,
    /// The lock at which the caller had a slot.
    slots: Option<Arc<LockEntry>>,
}

/// How an acquire ended, unless a request failed.
enum Outcome {
    Acquired(OwnedLease),
    Busy,
    TimedOut,
}

impl Waited {
    /// Returns the waiting task's progress, or the caller's own as long as that
    /// task has no reply and no error.
    fn progress(&mut self) -> &Progress {
        let slots = self.slots.as_ref().map(|entry| &entry.progress);
        match slots.filter(|progress| progress.has_seen()) {
            Some(slots) => slots,
            None => own(&mut self.own, self.max_outage),
        }
    }

    fn own(&mut self) -> &Progress {
        own(&mut self.own, self.max_outage)
    }
}

fn own(progress: &mut Option<Box<Progress>>, max_outage: Duration) -> &Progress {
    progress.get_or_insert_with(|| Box::new(Progress::new(max_outage)))
}

impl Engine {
    /// Adopts a lock that was handed over to the owner `pending`.
    pub(crate) async fn adopt(
        &self,
        kind: &Arc<dyn Kind>,
        pending: &Owner,
        options: &AcquireOptions,
    ) -> Result<OwnedLease, Error> {
        options.validate()?;
        self.context.check_process()?;
        let report = AcquireReport::new(&self.context.observers, &**kind, &|| false);
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
            lease.begin_hold(options);
        }
        outcome
    }

    /// Acquires the lock, or fails when the timeout of `options` elapses. Fails
    /// with [`Error::Busy`] if they forbid to wait.
    pub(crate) fn acquire(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> impl Future<Output = Result<OwnedLease, Error>> + Send {
        self.acquire_unless(kind, options, &|| false)
    }

    /// Acquires the lock for a caller that may enter another task's acquisition
    /// meanwhile. While `is_entered` returns `true`, no refusal is reported.
    pub(super) async fn acquire_unless(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        is_entered: &(dyn Fn() -> bool + Sync),
    ) -> Result<OwnedLease, Error> {
        options.validate()?;
        // Before anything else: it fails in a forked child.
        let owner = self.context.new_owner()?;
        let start = BootInstant::now();
        let mut report = AcquireReport::new(&self.context.observers, &**kind, is_entered);
        let mut waited = Waited {
            max_outage: self.context.limits.outage,
            own: None,
            slots: None,
        };
        let outcome = match options.timeout {
            None if options.waits => self
                .acquire_without_timeout(kind, options, owner, &mut waited, &mut report)
                .await
                .map(Outcome::Acquired),
            Some(limit) if options.waits && !limit.is_zero() => {
                let acquiring =
                    self.acquire_without_timeout(kind, options, owner, &mut waited, &mut report);
                // Boxed, or an acquire without a timeout would also have room
                // for a timer.
                match Box::pin(tokio::time::timeout(limit, acquiring)).await {
                    Ok(acquired) => acquired.map(Outcome::Acquired),
                    Err(_) => Ok(Outcome::TimedOut),
                }
            }
            limit => Box::pin(self.acquire_at_once(kind, options, owner, limit, &mut waited)).await,
        };
        let name = kind.name();
        let mut outcome = match outcome {
            Ok(Outcome::Acquired(lease)) => Ok(lease),
            Ok(Outcome::Busy) => Err(Error::Busy {
                name: name.to_owned(),
                holder: waited.own().holder().map(Box::new),
            }),
            Ok(Outcome::TimedOut) => {
                let elapsed = BootInstant::now().since(start);
                Err(waited.progress().timed_out(name, elapsed))
            }
            Err(error) => Err(error_of(error, name)),
        };
        let has_waited = report.has_waited();
        // Reported before the hold begins: an observer must not see a loss
        // before the acquisition.
        report.finish(&outcome);
        if let Ok(lease) = &mut outcome {
            lease.begin_hold(options);
            if has_waited {
                lease.set_waited(BootInstant::now().since(start));
            }
        }
        outcome
    }

    /// Attempts without waiting for the lock. `limit` applies to the request,
    /// unless it is zero.
    async fn acquire_at_once(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        owner: Owner,
        limit: Option<Duration>,
        waited: &mut Waited,
    ) -> Result<Outcome, RequestError> {
        // A timeout reports the holder's remaining lease.
        let attempting = attempt_through_splits(&self.context, kind, options, owner, options.waits);
        let attempt = match limit.filter(|limit| !limit.is_zero()) {
            Some(limit) => match tokio::time::timeout(limit, attempting).await {
                Ok(attempt) => attempt?,
                Err(_) => return Ok(Outcome::TimedOut),
            },
            None => attempting.await?,
        };
        match attempt {
            Attempt::Acquired(lease) => return Ok(Outcome::Acquired(lease)),
            Attempt::Busy(holder) => waited.own().on_busy(holder, None),
            Attempt::Split => {}
        }
        Ok(match options.waits {
            true => Outcome::TimedOut,
            false => Outcome::Busy,
        })
    }

    async fn acquire_without_timeout(
        &self,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        owner: Owner,
        waited: &mut Waited,
        report: &mut AcquireReport<'_>,
    ) -> Result<OwnedLease, RequestError> {
        // If other callers of this client already wait, an attempt would only
        // cost the server, and overtake them.
        let contended = self.waits.contended(&**kind);
        let holder = match &contended {
            Some(entry) => entry.progress.holder(),
            None => {
                // Without the remaining lease, which costs a command: only the
                // waiting task needs it.
                match attempt(&self.context, kind, options, owner, false).await {
                    Ok(Attempt::Acquired(lease)) => return Ok(lease),
                    Ok(Attempt::Busy(holder)) => waited.own().on_busy(holder, None),
                    Ok(Attempt::Split) => {}
                    // No pause: the waiting task has a backoff of its own.
                    Err(error) => drop(waited.own().on_error(error)?),
                }
                waited.own().holder()
            }
        };
        let span = report.wait_started(holder.as_ref());
        let position = Position::in_span(&span);
        let wait = Wait {
            context: &self.context,
            kind,
            options,
            progress: own(&mut waited.own, waited.max_outage),
            position: &position,
        };
        // Boxed, since its state is large and most acquires end before.
        let waiting = self
            .waits
            .acquire(&wait, &span, contended, &mut waited.slots);
        Box::pin(waiting).instrument(span.clone()).await
    }

    /// Returns for how long a waiter retries through an outage.
    pub(crate) fn max_outage(&self) -> Duration {
        self.context.limits.outage
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

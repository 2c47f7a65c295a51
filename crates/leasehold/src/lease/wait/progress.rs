//! What a wait is for, and what it has seen: the last holder, and the outage so
//! far.

use std::sync::Arc;
use std::time::Duration;

use super::terms::{LeaseQueue, Position};
use crate::backend::{Backoff, RequestError};
use crate::error::Error;
use crate::info::Holder;
use crate::lease::context::{Context, error_of};
use crate::options::AcquireOptions;
use crate::protocol::Kind;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// One wait, as it looks from the task that talks to the server.
pub(crate) struct Wait<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) kind: &'a Arc<dyn Kind>,
    pub(crate) options: &'a AcquireOptions,
    pub(crate) progress: &'a Progress,
    pub(crate) position: &'a Position,
}

/// The progress of one caller's wait, or of all slots of a lock.
pub(crate) struct Progress {
    /// How long each caller retries through an outage.
    max_outage: Duration,
    /// The slots that follow this progress, if it is not a single caller's.
    slots: Option<Arc<LeaseQueue>>,
    seen: Mutex<Seen>,
}

struct Seen {
    holder: Option<Holder>,
    /// When the holder was seen.
    at: BootInstant,
    /// How many waiters are served first, for kinds with a queue.
    ahead: Option<u64>,
    /// The last failed request, while an outage lasts.
    error: Option<RequestError>,
    failing_since: Option<BootInstant>,
    backoff: Backoff,
}

impl Progress {
    /// Creates the progress of a single caller.
    pub(crate) fn new(max_outage: Duration) -> Self {
        Self {
            max_outage,
            slots: None,
            seen: Mutex::new(Seen {
                holder: None,
                at: BootInstant::NEVER,
                ahead: None,
                error: None,
                failing_since: None,
                backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(500)),
            }),
        }
    }

    /// Creates the progress that all `slots` follow.
    pub(super) fn of_slots(max_outage: Duration, slots: Arc<LeaseQueue>) -> Self {
        Self {
            slots: Some(slots),
            ..Self::new(max_outage)
        }
    }

    /// Records that the server replied, which ends an outage.
    pub(crate) fn on_reply(&self) {
        self.seen.lock().end_outage();
    }

    /// Records that the server replied with the current holder, and the
    /// waiter's position for a kind with a queue.
    pub(crate) fn on_busy(&self, holder: Holder, ahead: Option<u64>) {
        let mut seen = self.seen.lock();
        seen.holder = Some(holder);
        seen.at = BootInstant::now();
        seen.ahead = ahead;
        seen.end_outage();
    }

    /// Records a failed request. Returns how long to back off.
    ///
    /// # Errors
    ///
    /// Returns `error` if it is permanent, or if the outage takes longer than
    /// the caller's budget. Each slot's budget counts from when it began to
    /// wait, so slots fail by themselves.
    pub(crate) fn on_error(&self, error: RequestError) -> Result<Duration, RequestError> {
        let mut seen = self.seen.lock();
        let now = BootInstant::now();
        let since = *seen.failing_since.get_or_insert(now);
        let is_over = self.slots.is_none() && now.since(since) > self.max_outage;
        if is_over || !error.is_transient() {
            return Err(error);
        }
        seen.error = Some(error.duplicate());
        let pause = seen.backoff.pause();
        drop(seen);
        if let Some(slots) = &self.slots {
            slots.fail_overdue(since, self.max_outage, &error);
        }
        Ok(pause)
    }

    /// Returns the last holder that was seen, with what is left of the lease.
    pub(crate) fn holder(&self) -> Option<Holder> {
        self.seen.lock().holder()
    }

    /// Returns when the outage began, and the last failed request, while it
    /// lasts.
    pub(super) fn outage(&self) -> Option<(BootInstant, RequestError)> {
        let seen = self.seen.lock();
        Some((seen.failing_since?, seen.error.as_ref()?.duplicate()))
    }

    /// Returns whether a request was answered with a holder, or failed.
    pub(crate) fn has_seen(&self) -> bool {
        let seen = self.seen.lock();
        seen.holder.is_some() || seen.error.is_some()
    }

    /// Returns how many waiters are served first.
    pub(crate) fn ahead(&self) -> Option<u64> {
        self.seen.lock().ahead
    }

    /// Returns the error of a wait that timed out: the last failed request if
    /// the outage continues, else [`Error::Timeout`] with the last holder.
    pub(crate) fn timed_out(&self, name: &str, waited: Duration) -> Error {
        let seen = self.seen.lock();
        match &seen.error {
            Some(error) => error_of(error.duplicate(), name),
            None => Error::Timeout {
                name: name.to_owned(),
                waited,
                holder: seen.holder().map(Box::new),
                position: seen.ahead.map(|ahead| ahead + 1),
            },
        }
    }
}

impl Seen {
    fn end_outage(&mut self) {
        self.error = None;
        self.failing_since = None;
        self.backoff.reset();
    }

    fn holder(&self) -> Option<Holder> {
        let mut holder = self.holder.clone()?;
        let passed = BootInstant::now().since(self.at);
        holder.lease_remaining = holder
            .lease_remaining
            .map(|remaining| remaining.saturating_sub(passed));
        Some(holder)
    }
}

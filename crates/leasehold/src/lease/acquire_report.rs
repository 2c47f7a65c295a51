//! Reports how an acquire proceeds: to observers, and as the span
//! `leasehold.wait`.
//!
//! The span exists only while the caller waits, because a span for each
//! uncontended acquire would hide the waits.

use tracing::field::{Empty, display};
use tracing::{Span, debug_span};

use super::owned::OwnedLease;
use crate::error::Error;
use crate::info::Holder;
use crate::observe::{Event, Observers, Refusal};
use crate::owner::Token;
use crate::protocol::Kind;
use crate::time::BootInstant;
use crate::trace_parent::trace_id;

/// The report of one acquire. Dropping it reports that the caller cancelled.
pub(super) struct AcquireReport<'a> {
    observers: &'a Observers,
    kind: &'a dyn Kind,
    /// Whether the caller has the lock of another acquire.
    is_entered: &'a (dyn Fn() -> bool + Sync),
    /// When the acquire started; `None` without observers.
    start: Option<BootInstant>,
    /// The wait's span, from its start on.
    wait: Option<Span>,
    is_complete: bool,
}

impl<'a> AcquireReport<'a> {
    pub(super) fn new(
        observers: &'a Observers,
        kind: &'a dyn Kind,
        is_entered: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        Self {
            observers,
            kind,
            is_entered,
            start: (!observers.is_empty()).then(BootInstant::now),
            wait: None,
            is_complete: false,
        }
    }

    /// Reports that the caller waits for `holder`. Returns the wait's span.
    pub(super) fn wait_started(&mut self, holder: Option<&Holder>) -> Span {
        let trace = holder.and_then(|holder| holder.trace_parent.as_deref());
        let span = debug_span!(
            target: "leasehold",
            "leasehold.wait",
            lock.name = self.kind.name(),
            lock.kind = self.kind.label(),
            lock.position = Empty,
            lock.holder.host = holder.and_then(|holder| holder.process.host.as_deref()),
            lock.holder.pid = holder.and_then(|holder| holder.process.pid),
            lock.holder.trace_id = trace.map(trace_id),
            lock.outcome = Empty,
            lock.token = Empty,
            otel.status_code = Empty,
        );
        let event = Event::WaitStarted {
            name: self.kind.name(),
            kind: self.kind.label(),
            holder,
        };
        // Inside the span, so that an observer can link it.
        span.in_scope(|| {
            self.observers.notify(&event);
        });
        self.wait = Some(span.clone());
        span
    }

    pub(super) fn has_waited(&self) -> bool {
        self.wait.is_some()
    }

    /// Reports the outcome.
    pub(super) fn finish(self, outcome: &Result<OwnedLease, Error>) {
        match outcome {
            Ok(lease) => self.acquired(lease),
            Err(Error::Busy { .. }) => self.refused(Refusal::Busy),
            Err(Error::Timeout { .. }) => self.refused(Refusal::TimedOut),
            Err(error) => self.refused(Refusal::Failed(error)),
        }
    }

    fn acquired(mut self, lease: &OwnedLease) {
        let token = lease.token();
        self.end_wait("acquired", token);
        if let Some(start) = self.start {
            let event = Event::Acquired {
                name: self.kind.name(),
                kind: self.kind.label(),
                elapsed: BootInstant::now().since(start),
                contended: self.wait.is_some(),
                token,
            };
            self.observers.notify(&event);
        }
        self.is_complete = true;
    }

    fn refused(mut self, reason: Refusal<'_>) {
        self.report_refusal(reason);
        self.is_complete = true;
    }

    fn report_refusal(&self, reason: Refusal<'_>) {
        if (self.is_entered)() {
            return self.end_wait("entered", None);
        }
        self.end_wait(word(reason), None);
        if let Some(span) = &self.wait {
            span.record("otel.status_code", "ERROR");
        }
        if let Some(start) = self.start {
            let event = Event::Refused {
                name: self.kind.name(),
                kind: self.kind.label(),
                elapsed: BootInstant::now().since(start),
                contended: self.wait.is_some(),
                reason,
            };
            self.observers.notify(&event);
        }
    }

    fn end_wait(&self, outcome: &'static str, token: Option<Token>) {
        let Some(span) = &self.wait else {
            return;
        };
        span.record("lock.outcome", outcome);
        if let Some(token) = token {
            span.record("lock.token", display(token));
        }
        let event = Event::WaitEnded {
            name: self.kind.name(),
            kind: self.kind.label(),
        };
        self.observers.notify(&event);
    }
}

impl Drop for AcquireReport<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.report_refusal(Refusal::Cancelled);
        }
    }
}

/// Returns the outcome in one word, for the span.
fn word(reason: Refusal<'_>) -> &'static str {
    match reason {
        Refusal::Busy => "busy",
        Refusal::TimedOut => "timeout",
        Refusal::Cancelled => "cancelled",
        Refusal::Failed(_) => "error",
    }
}

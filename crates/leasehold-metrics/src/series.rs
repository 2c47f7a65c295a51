//! The handles of one lock label and kind.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::Loss;
use leasehold::observe::Refusal;
use metrics::{Counter, Gauge, Histogram, Label, SharedString};

use crate::names::{ACQUIRE_DURATION, HANDED_OFF, HELD, HOLD_DURATION, LOST, WAITING};
use crate::recorder::{Registrar, label};

/// How an acquire ended: the label `outcome`.
#[derive(Clone, Copy)]
pub(crate) enum AcquireOutcome {
    Acquired,
    Busy,
    Timeout,
    Cancelled,
    Error,
}

/// How a hold ended: the label `end`.
#[derive(Clone, Copy)]
pub(crate) enum HoldEnd {
    Released,
    HandedOff,
    Lost,
}

/// Why a lock was lost: the label `cause`.
#[derive(Clone, Copy)]
enum Cause {
    Expired,
    Revoked,
    AtMost,
    ShutDown,
    Stuck,
    Other,
}

/// The handles of one lock label and kind.
///
/// A recorder exports a histogram from its registration on, so histograms are
/// registered by their first value. Counters and gauges are registered at once:
/// an increase from an absent counter is invisible to `increase` of PromQL.
pub(crate) struct Series {
    lock: Arc<str>,
    kind: &'static str,
    /// By [`AcquireOutcome`], and whether the caller waited.
    acquire: [[OnceLock<Histogram>; 2]; 5],
    /// By [`HoldEnd`].
    hold: [OnceLock<Histogram>; 3],
    /// By [`Cause`].
    lost: [OnceLock<Counter>; 6],
    pub(crate) held: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) handed_off: Counter,
}

impl Series {
    pub(crate) fn register(registrar: &Registrar, lock: Arc<str>, kind: &'static str) -> Self {
        let labels = || labels_of(&lock, kind, []);
        let series = Self {
            acquire: Default::default(),
            hold: Default::default(),
            lost: Default::default(),
            held: registrar.gauge(HELD, labels()),
            waiting: registrar.gauge(WAITING, labels()),
            handed_off: registrar.counter(HANDED_OFF, labels()),
            lock,
            kind,
        };
        for cause in [
            Cause::Expired,
            Cause::Revoked,
            Cause::AtMost,
            Cause::ShutDown,
            Cause::Stuck,
        ] {
            series.count_lost(registrar, cause, 0);
        }
        series
    }

    /// Returns the label `lock`.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(crate) fn record_acquire(
        &self,
        registrar: &Registrar,
        outcome: AcquireOutcome,
        contended: bool,
        elapsed: Duration,
    ) {
        let handle = &self.acquire[outcome as usize][usize::from(contended)];
        let register = || {
            let contended = if contended { "true" } else { "false" };
            let more = [("outcome", outcome.label()), ("contended", contended)];
            registrar.histogram(ACQUIRE_DURATION, labels_of(&self.lock, self.kind, more))
        };
        handle.get_or_init(register).record(elapsed);
    }

    pub(crate) fn record_hold(&self, registrar: &Registrar, end: HoldEnd, held: Duration) {
        let register = || {
            let labels = labels_of(&self.lock, self.kind, [("end", end.label())]);
            registrar.histogram(HOLD_DURATION, labels)
        };
        let handle = self.hold[end as usize].get_or_init(register);
        handle.record(held);
        self.held.decrement(1);
    }

    pub(crate) fn record_loss(&self, registrar: &Registrar, loss: Loss) {
        self.count_lost(registrar, Cause::of(loss), 1);
    }

    fn count_lost(&self, registrar: &Registrar, cause: Cause, count: u64) {
        let register = || {
            let labels = labels_of(&self.lock, self.kind, [("cause", cause.label())]);
            registrar.counter(LOST, labels)
        };
        let handle = self.lost[cause as usize].get_or_init(register);
        handle.increment(count);
    }
}

fn labels_of<const N: usize>(
    lock: &Arc<str>,
    kind: &'static str,
    more: [(&'static str, &'static str); N],
) -> Vec<Label> {
    let first = [
        label("lock", SharedString::from_shared(lock.clone())),
        label("kind", kind),
    ];
    let more = more.map(|(key, value)| label(key, value));
    first.into_iter().chain(more).collect()
}

impl AcquireOutcome {
    pub(crate) fn of(reason: Refusal<'_>) -> Self {
        match reason {
            Refusal::Busy => Self::Busy,
            Refusal::TimedOut => Self::Timeout,
            Refusal::Cancelled => Self::Cancelled,
            _ => Self::Error,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

impl HoldEnd {
    fn label(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::HandedOff => "handed_off",
            Self::Lost => "lost",
        }
    }
}

impl Cause {
    fn of(loss: Loss) -> Self {
        match loss {
            Loss::Expired => Self::Expired,
            Loss::Revoked => Self::Revoked,
            Loss::AtMost => Self::AtMost,
            Loss::ShutDown => Self::ShutDown,
            Loss::Stuck => Self::Stuck,
            // A variant that this version does not know.
            _ => Self::Other,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::AtMost => "at_most",
            Self::ShutDown => "shut_down",
            Self::Stuck => "stuck",
            Self::Other => "other",
        }
    }
}

//! The observer that records the metrics.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::observe::{
    Acquired, CancelPending, ConnectionDown, ConnectionUp, HandedOff, Lost, Observer, Refused,
    Released, RenewalFailed, Renewed, RequestDone, RequestOutcome, WaitEnded, WaitStarted,
};
use metrics::{Counter, Gauge, Histogram, Recorder};

use crate::locks::{LabelFn, Locks};
use crate::names::{
    LEASE_MARGIN, LEASE_MARGIN_RATIO, RELEASES_PENDING, RENEWALS, REQUEST_DURATION, describe_to,
};
use crate::recorder::{Registrar, label};
use crate::series::{AcquireOutcome, HoldEnd, Series};
use crate::servers::{Server, Servers};

const MAX_LABELS: usize = 100;

/// An [`Observer`] that records the metrics of a client.
///
/// # Limitations
///
/// The handles of the metrics belong to the recorder that is installed when
/// they are registered: some by [`new`](Self::new), the others by the first
/// event of a lock. Install the recorder first.
///
/// Events come from several threads, among them the client's keeper. A recorder
/// of one thread, as `metrics::with_local_recorder` sets it, misses them. Tests
/// can use [`MetricsBuilder::recorder`].
///
/// # Several clients
///
/// A clone records into the same series and shares the limit of labels. Give
/// each client of a process a clone of its own.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::builder("redis://127.0.0.1/")
///     .observe(leasehold_metrics::Metrics::new())
///     .connect()
///     .await?;
/// # drop(client); Ok(()) }
/// ```
pub struct Metrics {
    shared: Arc<Shared>,
    /// The pending releases of this client, as last reported.
    pending: AtomicUsize,
    /// The connections of this client that were closed and not replaced.
    closed: AtomicUsize,
}

/// What the clones for several clients share.
struct Shared {
    registrar: Registrar,
    locks: Locks,
    servers: Servers,
    renewals_confirmed: Counter,
    renewals_failed: Counter,
    margin: Histogram,
    margin_ratio: Histogram,
    pending: Gauge,
    requests_replied: Histogram,
    requests_unknown: Histogram,
}

impl Metrics {
    /// Returns an observer that records to the global recorder, with the
    /// default labels.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder, to change the labels or the recorder.
    pub fn builder() -> MetricsBuilder {
        MetricsBuilder {
            label: None,
            max_labels: MAX_LABELS,
            recorder: None,
        }
    }
}

impl Metrics {
    fn with(&self, name: &str, kind: &'static str, record: impl FnOnce(&Series, &Registrar)) {
        let Shared {
            locks, registrar, ..
        } = &*self.shared;
        locks.with(registrar, name, kind, |series| record(series, registrar));
    }

    fn server(&self, address: &str) -> Server {
        self.shared.servers.get(&self.shared.registrar, address)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Metrics {
    /// Returns an observer for another client.
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            pending: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A builder of [`Metrics`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct MetricsBuilder {
    label: Option<Box<LabelFn>>,
    max_labels: usize,
    recorder: Option<Box<dyn Recorder + Send + Sync>>,
}

impl MetricsBuilder {
    /// Sets the function from the name of a lock to the label `lock`.
    ///
    /// By default, `*` replaces each UUID, each run of eight or more
    /// hexadecimal digits, and each other run of decimal digits: `order:42`
    /// becomes `order:*`.
    ///
    /// The function must return the same label for the same name at all times,
    /// or the gauges drift. It is called for every event of a lock, so it must
    /// be fast. Labels that borrow from the name cost no allocation.
    ///
    /// # Examples
    ///
    /// ```
    /// // `tenant-a/report` becomes `report`.
    /// let metrics = leasehold_metrics::Metrics::builder()
    ///     .label(|name| name.rsplit('/').next().unwrap_or(name).into())
    ///     .build();
    /// # drop(metrics);
    /// ```
    pub fn label(
        mut self,
        label: impl for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync + 'static,
    ) -> Self {
        self.label = Some(Box::new(label));
        self
    }

    /// Limits the distinct values of the label `lock`; 100 by default. All
    /// further locks have the label `_other`.
    pub fn max_labels(mut self, max: usize) -> Self {
        self.max_labels = max;
        self
    }

    /// Records to `recorder` instead of the global recorder.
    pub fn recorder(mut self, recorder: impl Recorder + Send + Sync + 'static) -> Self {
        self.recorder = Some(Box::new(recorder));
        self
    }

    /// Describes the metrics to the recorder, and returns the observer.
    #[must_use]
    pub fn build(self) -> Metrics {
        let registrar = Registrar(self.recorder);
        registrar.with(describe_to);
        let renewals =
            |outcome: &'static str| registrar.counter(RENEWALS, vec![label("outcome", outcome)]);
        let requests = |outcome: &'static str| {
            registrar.histogram(REQUEST_DURATION, vec![label("outcome", outcome)])
        };
        let shared = Shared {
            locks: Locks::new(self.label, self.max_labels),
            servers: Servers::default(),
            renewals_confirmed: renewals("confirmed"),
            renewals_failed: renewals("failed"),
            margin: registrar.histogram(LEASE_MARGIN, Vec::new()),
            margin_ratio: registrar.histogram(LEASE_MARGIN_RATIO, Vec::new()),
            pending: registrar.gauge(RELEASES_PENDING, Vec::new()),
            requests_replied: requests("replied"),
            requests_unknown: requests("unknown"),
            registrar,
        };
        Metrics {
            shared: Arc::new(shared),
            pending: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        }
    }
}

impl fmt::Debug for MetricsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsBuilder")
            .field("max_labels", &self.max_labels)
            .finish_non_exhaustive()
    }
}

impl Observer for Metrics {
    fn acquired(&self, event: &Acquired<'_>) {
        self.with(event.name, event.kind, |series, registrar| {
            series.held.increment(1);
            let outcome = AcquireOutcome::Acquired;
            series.record_acquire(registrar, outcome, event.contended, event.elapsed);
        });
    }

    fn refused(&self, event: &Refused<'_>) {
        self.with(event.name, event.kind, |series, registrar| {
            let outcome = AcquireOutcome::of(event.reason);
            series.record_acquire(registrar, outcome, event.contended, event.elapsed);
        });
    }

    fn wait_started(&self, event: &WaitStarted<'_>) {
        self.with(event.name, event.kind, |series, _| {
            series.waiting.increment(1);
        });
    }

    fn wait_ended(&self, event: &WaitEnded<'_>) {
        self.with(event.name, event.kind, |series, _| {
            series.waiting.decrement(1);
        });
    }

    fn renewed(&self, event: &Renewed<'_>) {
        self.shared.renewals_confirmed.increment(1);
        self.shared.margin.record(event.margin);
        if !event.lease.is_zero() {
            let ratio = event.margin.as_secs_f64() / event.lease.as_secs_f64();
            // An extended lease can have more left than its length.
            self.shared.margin_ratio.record(ratio.min(1.0));
        }
    }

    fn renewal_failed(&self, _: &RenewalFailed<'_>) {
        self.shared.renewals_failed.increment(1);
    }

    fn released(&self, event: &Released<'_>) {
        self.with(event.name, event.kind, |series, registrar| {
            series.record_hold(registrar, HoldEnd::Released, event.held);
        });
    }

    fn handed_off(&self, event: &HandedOff<'_>) {
        self.with(event.name, event.kind, |series, registrar| {
            series.record_hold(registrar, HoldEnd::HandedOff, event.held);
            series.handed_off.increment(1);
        });
    }

    fn lost(&self, event: &Lost<'_>) {
        self.with(event.name, event.kind, |series, registrar| {
            series.record_hold(registrar, HoldEnd::Lost, event.held);
            series.record_loss(registrar, event.loss);
        });
    }

    fn cancel_pending(&self, event: &CancelPending) {
        // The gauge is the sum over the clients of the process.
        let before = self.pending.swap(event.pending, Ordering::Relaxed);
        let gauge = &self.shared.pending;
        gauge.increment(event.pending as f64 - before as f64);
    }

    fn request_done(&self, event: &RequestDone<'_>) {
        let requests = match event.outcome {
            RequestOutcome::Replied => &self.shared.requests_replied,
            _ => &self.shared.requests_unknown,
        };
        requests.record(event.elapsed);
    }

    fn connection_up(&self, event: &ConnectionUp<'_>) {
        let server = self.server(event.server);
        server.connections.increment(1);
        let replace = |closed: usize| closed.checked_sub(1);
        let replaced = self
            .closed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace);
        if replaced.is_ok() {
            server.reconnects.increment(1);
        }
    }

    fn connection_down(&self, event: &ConnectionDown<'_>) {
        self.server(event.server).connections.decrement(1);
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

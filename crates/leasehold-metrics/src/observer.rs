//! The observer that records the metrics.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::observe::Event;
use metrics::{Counter, Gauge, Histogram, Recorder};

use crate::locks::{LabelFn, Locks};
use crate::names::{
    LEASE_MARGIN, LEASE_MARGIN_RATIO, RELEASES_PENDING, RENEWALS, REQUEST_DURATION, describe_to,
};
use crate::recorder::{Registrar, label};
use crate::series::{AcquireOutcome, HoldEnd, Series};
use crate::servers::{Server, Servers};

const MAX_LABELS: usize = 100;

/// A process's metrics. Each client gets an [`observer`](Self::observer).
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
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold_metrics::Metrics;
///
/// let client = leasehold::Client::connect("redis://127.0.0.1/")
///     .observe(Metrics::new().observer())
///     .await?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

/// What the observers of several clients share.
struct Shared {
    registrar: Registrar,
    locks: Locks,
    servers: Servers,
    renewals_confirmed: Counter,
    renewals_failed: Counter,
    renewals_withheld: Counter,
    margin: Histogram,
    margin_ratio: Histogram,
    pending: Gauge,
    requests_replied: Histogram,
    requests_unknown: Histogram,
}

impl Metrics {
    /// Returns metrics that are recorded by the global recorder, with the
    /// default labels.
    ///
    /// # Examples
    ///
    /// ```
    /// // Install the recorder first.
    /// let observer = leasehold_metrics::Metrics::new().observer();
    /// # drop(observer);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder, to change the labels or the recorder.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_metrics::Metrics;
    ///
    /// let metrics = Metrics::builder().max_labels(100).build();
    /// # drop(metrics);
    /// ```
    pub fn builder() -> MetricsBuilder {
        MetricsBuilder {
            label: None,
            max_labels: MAX_LABELS,
            recorder: None,
        }
    }

    /// Returns an observer for one client, to be passed to
    /// [`Connect::observe`](leasehold::Connect::observe).
    ///
    /// It remembers the pending releases and closed connections of that client,
    /// so each client needs an observer of its own. Observers of the same
    /// metrics record into the same series and share the limit of labels.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Client;
    /// use leasehold_metrics::Metrics;
    ///
    /// let metrics = Metrics::new();
    /// let orders = Client::connect("redis://orders/").observe(metrics.observer());
    /// let stock = Client::connect("redis://stock/").observe(metrics.observer());
    /// # drop((orders.await?, stock.await?)); Ok(()) }
    /// ```
    pub fn observer(&self) -> impl Fn(&Event<'_>) + Send + Sync + use<> {
        let client = ClientMetrics {
            shared: self.0.clone(),
            pending: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        };
        move |event: &Event<'_>| client.record(event)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
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
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_metrics::Metrics;
    ///
    /// let metrics = Metrics::builder().max_labels(20).build();
    /// # drop(metrics);
    /// ```
    pub fn max_labels(mut self, max: usize) -> Self {
        self.max_labels = max;
        self
    }

    /// Records to `recorder` instead of the global recorder.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_metrics::Metrics;
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().build_recorder();
    /// let handle = recorder.handle();
    /// let metrics = Metrics::builder().recorder(recorder).build();
    /// assert!(handle.render().contains(leasehold_metrics::RELEASES_PENDING));
    /// # drop(metrics);
    /// ```
    pub fn recorder(mut self, recorder: impl Recorder + Send + Sync + 'static) -> Self {
        self.recorder = Some(Box::new(recorder));
        self
    }

    /// Describes the metrics to the recorder, and returns them.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_metrics::Metrics;
    ///
    /// // One for the process, and an observer for each client.
    /// let metrics = Metrics::builder().build();
    /// let observers = [metrics.observer(), metrics.observer()];
    /// # drop(observers.map(|observer| drop(observer)));
    /// ```
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
            renewals_withheld: renewals("withheld"),
            margin: registrar.histogram(LEASE_MARGIN, Vec::new()),
            margin_ratio: registrar.histogram(LEASE_MARGIN_RATIO, Vec::new()),
            pending: registrar.gauge(RELEASES_PENDING, Vec::new()),
            requests_replied: requests("replied"),
            requests_unknown: requests("unknown"),
            registrar,
        };
        Metrics(Arc::new(shared))
    }
}

impl fmt::Debug for MetricsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsBuilder")
            .field("max_labels", &self.max_labels)
            .finish_non_exhaustive()
    }
}

/// The metrics of one client.
struct ClientMetrics {
    shared: Arc<Shared>,
    /// The pending releases, as last reported.
    pending: AtomicUsize,
    /// The connections that were closed and not replaced.
    closed: AtomicUsize,
}

impl ClientMetrics {
    fn record(&self, event: &Event<'_>) {
        let shared = &*self.shared;
        match *event {
            Event::Acquired { name, kind, .. }
            | Event::Refused { name, kind, .. }
            | Event::WaitStarted { name, kind, .. }
            | Event::WaitEnded { name, kind, .. }
            | Event::Released { name, kind, .. }
            | Event::HandedOff { name, kind, .. }
            | Event::Lost { name, kind, .. } => {
                let series = shared.locks.get(&shared.registrar, name, kind);
                record_lock(series, &shared.registrar, event);
            }
            Event::Renewed { margin, lease, .. } => shared.record_renewal(margin, lease),
            Event::RenewalFailed { .. } => shared.renewals_failed.increment(1),
            Event::Stuck { .. } => shared.renewals_withheld.increment(1),
            Event::CancelPending { pending, .. } => {
                // The gauge is the sum over the clients of the process.
                let before = self.pending.swap(pending, Ordering::Relaxed);
                shared.pending.increment(pending as f64 - before as f64);
            }
            Event::RequestDone {
                elapsed, replied, ..
            } => match replied {
                true => shared.requests_replied.record(elapsed),
                false => shared.requests_unknown.record(elapsed),
            },
            Event::ConnectionUp { server, .. } => self.connected(&shared.server(server)),
            Event::ConnectionDown { server, .. } => {
                shared.server(server).connections.decrement(1);
                self.closed.fetch_add(1, Ordering::Relaxed);
            }
            // An event that this version does not know.
            _ => {}
        }
    }

    /// Counts a connection, and whether it replaces a closed one.
    fn connected(&self, server: &Server) {
        server.connections.increment(1);
        let replace = |closed: usize| closed.checked_sub(1);
        let replaced = self
            .closed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace);
        if replaced.is_ok() {
            server.reconnects.increment(1);
        }
    }
}

impl Shared {
    fn server(&self, address: &str) -> Server {
        self.servers.get(&self.registrar, address)
    }

    fn record_renewal(&self, margin: Duration, lease: Duration) {
        self.renewals_confirmed.increment(1);
        self.margin.record(margin);
        if !lease.is_zero() {
            let ratio = margin.as_secs_f64() / lease.as_secs_f64();
            // An extended lease can have more left than its length.
            self.margin_ratio.record(ratio.min(1.0));
        }
    }
}

/// Records an event of the lock that `series` belongs to.
fn record_lock(series: &Series, registrar: &Registrar, event: &Event<'_>) {
    match *event {
        Event::Acquired {
            elapsed, contended, ..
        } => {
            series.held.increment(1);
            let outcome = AcquireOutcome::Acquired;
            series.record_acquire(registrar, outcome, contended, elapsed);
        }
        Event::Refused {
            elapsed,
            contended,
            reason,
            ..
        } => {
            let outcome = AcquireOutcome::of(reason);
            series.record_acquire(registrar, outcome, contended, elapsed);
        }
        Event::WaitStarted { .. } => series.waiting.increment(1),
        Event::WaitEnded { .. } => series.waiting.decrement(1),
        Event::Released { held, .. } => series.record_hold(registrar, HoldEnd::Released, held),
        Event::HandedOff { held, .. } => {
            series.record_hold(registrar, HoldEnd::HandedOff, held);
            series.handed_off.increment(1);
        }
        Event::Lost { held, loss, .. } => {
            series.record_hold(registrar, HoldEnd::Lost, held);
            series.record_loss(registrar, loss);
        }
        _ => {}
    }
}

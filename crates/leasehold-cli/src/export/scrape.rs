//! Inspections for scrapes, with a bounded load on the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Client;
use tokio::sync::Mutex;

use super::inspection::{Inspection, Selection};
use super::{failed_lock, text};
use crate::exit;
use crate::output::{CliError, message};
use crate::settings::Settings;

/// The shortest time for which metrics are reused.
const MIN_REUSE: Duration = Duration::from_secs(1);

/// Inspects the locks for scrapes.
///
/// At most one inspection runs at a time. Its metrics are reused for at least
/// as long as it took, so that scrapes occupy the server at most half the time.
pub(super) struct Scraper {
    settings: Settings,
    selection: Selection,
    state: Mutex<ScrapeState>,
}

struct ScrapeState {
    /// `None` until the first connection.
    client: Option<Client>,
    /// The latest metrics, and when to replace them.
    latest: Option<(Arc<str>, Instant)>,
    /// Whether the latest inspection failed.
    failing: bool,
    /// The locks that the latest inspection could not inspect.
    failed_locks: BTreeSet<String>,
}

impl Scraper {
    /// Connects to the server. An unreachable server may become reachable
    /// later; every other error is final.
    pub(super) async fn new(settings: Settings, selection: Selection) -> Result<Self, CliError> {
        let client = match settings.connect(None).await {
            Err(error) if error.code == exit::UNREACHABLE => None,
            outcome => Some(outcome?),
        };
        let state = ScrapeState {
            client,
            latest: None,
            failing: false,
            failed_locks: BTreeSet::new(),
        };
        Ok(Self {
            settings,
            selection,
            state: Mutex::new(state),
        })
    }

    /// Returns the metrics, which report a failed inspection too.
    pub(super) async fn metrics(&self) -> Arc<str> {
        let mut state = self.state.lock().await;
        if let Some((metrics, end)) = &state.latest
            && Instant::now() < *end
        {
            return metrics.clone();
        }
        let start = Instant::now();
        let outcome = self.inspect(&mut state.client).await;
        let took = start.elapsed();
        state.report_change(outcome.as_ref().err());
        let metrics: Arc<str> = match outcome {
            Ok(inspection) => {
                state.report_locks(&inspection);
                text::metrics(&inspection, took).into()
            }
            Err(_) => text::failure(took).into(),
        };
        let end = Instant::now() + took.max(MIN_REUSE);
        state.latest = Some((metrics.clone(), end));
        metrics
    }

    async fn inspect(&self, client: &mut Option<Client>) -> Result<Inspection, CliError> {
        let client = match client {
            Some(client) => client,
            none => none.insert(self.settings.connect(None).await?),
        };
        Ok(Inspection::take(client, &self.selection).await?)
    }
}

impl ScrapeState {
    /// Writes a message when inspections start to fail, and when they recover.
    fn report_change(&mut self, error: Option<&CliError>) {
        match (self.failing, error) {
            (false, Some(error)) => message(format!("cannot inspect locks: {error}")),
            (true, None) => message("locks can be inspected again"),
            _ => {}
        }
        self.failing = error.is_some();
    }

    /// Writes a message for each lock that cannot be inspected any more.
    fn report_locks(&mut self, inspection: &Inspection) {
        for (name, error) in &inspection.failed {
            if !self.failed_locks.contains(name) {
                message(failed_lock(name, error));
            }
        }
        self.failed_locks = inspection.failed.keys().cloned().collect();
    }
}

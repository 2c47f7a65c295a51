//! The multi-lock: several locks of any kind as one guard.

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::acquire::Acquire;
use crate::error::{Error, Loss};
use crate::lease::{Guard, Lease, ReleaseOutcome, until_lost};
use crate::owner::Token;

/// Several acquisitions as one: all or none, and lost when one is lost. Started by `.await`.
///
/// The locks are taken one after another in the order of their keys, whatever order they are given in, so two
/// that want the same locks cannot wait for each other. While one is waited for, those before it are held
/// and renewed; a fixed lease that is too short for that fails the whole. All must be of one client, and no
/// lock may be named twice.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// use leasehold::MultiLock;
///
/// let (from, to) = (client.mutex("account:1"), client.fair_mutex("account:2"));
/// let both = MultiLock::new([from.lock(), to.lock()]).timeout(Duration::from_secs(5)).await?;
/// for (name, token) in both.tokens() {
///     println!("{name} with token {token}");
/// }
/// let _ = both.release().await?;
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// As for [`Acquire`]: whatever was won is given back.
///
/// # Errors
///
/// Those of the acquisitions; what was held by then is given back. [`Error::Invalid`] when the locks are of
/// different clients, or one is named twice.
#[derive(Debug)]
#[must_use = "nothing is acquired until it is awaited"]
pub struct MultiLock {
    parts: Vec<Acquire>,
    wait: Option<Duration>,
}

/// Several locks that are held as one. Dropping it gives all of them back in the background.
#[derive(Debug)]
#[must_use = "the locks are given back as soon as the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiLock {
    /// These acquisitions, each with its own options; a writer's is made one of them by `.into()`.
    pub fn new(parts: impl IntoIterator<Item = Acquire>) -> Self {
        Self {
            parts: parts.into_iter().collect(),
            wait: None,
        }
    }

    /// Waits at most this long for all of them together; a part's own limit counts beside it.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Acquires all, does `work`, and gives all back on every way out, as
    /// [`Mutex::run`](crate::Mutex::run) does. The work is dropped when any of them is lost.
    ///
    /// # Errors
    ///
    /// Those of acquiring, and [`Error::Lost`] when one was lost before the work was done.
    pub async fn run<F, W>(self, work: F) -> Result<W::Output, Error>
    where
        F: FnOnce(Vec<Lease>) -> W,
        W: Future,
    {
        let held = self.await?;
        let work = work(held.leases().cloned().collect());
        let outcome = until_lost(work, held.ended()).await;
        let in_time = held.check();
        if let Err(error) = held.release().await {
            tracing::warn!(%error, "release goes on in the background");
        }
        match outcome {
            Some(outcome) => {
                let value = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                in_time.map(|()| value)
            }
            None => in_time.and(Err(Error::ShutDown)),
        }
    }

    /// The parts in the order in which they are taken.
    fn in_order(self) -> Result<Vec<Acquire>, Error> {
        let mut keyed = Vec::with_capacity(self.parts.len());
        for mut part in self.parts {
            let kind = part.request.kind?;
            let key = kind.key().to_vec();
            part.request.kind = Ok(kind);
            keyed.push((key, part));
        }
        keyed.sort_by(|one, other| one.0.cmp(&other.0));
        for pair in keyed.windows(2) {
            if !Arc::ptr_eq(&pair[0].1.request.engine, &pair[1].1.request.engine) {
                return Err(Error::invalid("locks", "they are of different clients"));
            }
            if pair[0].0 == pair[1].0 {
                return Err(Error::invalid("locks", "one of them is named twice"));
            }
        }
        Ok(keyed.into_iter().map(|(_, part)| part).collect())
    }

    async fn take(self) -> Result<MultiGuard, Error> {
        let (limit, start) = (self.wait, Instant::now());
        let parts = self.in_order()?;
        let mut held = MultiGuard {
            guards: Vec::with_capacity(parts.len()),
        };
        for mut part in parts {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let own = part.request.options.timeout;
            part.request.options.timeout = left.into_iter().chain(own).min();
            match part.request.acquire().await {
                Ok(guard) => held.guards.push(guard),
                Err(error) => return held.fail(error).await,
            }
        }
        match held.check() {
            Ok(()) => Ok(held),
            Err(error) => held.fail(error).await,
        }
    }
}

impl IntoFuture for MultiLock {
    type Output = Result<MultiGuard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.take())
    }
}

impl MultiGuard {
    /// The lease of each, in the order in which they were taken.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.guards.iter().map(Guard::lease)
    }

    /// The name and fencing token of each, in the order in which they were taken.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, Token)> {
        self.leases().map(|lease| (lease.name(), lease.token()))
    }

    /// How long all are certainly held still; zero when one has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let left = self.leases().map(Lease::remaining);
        left.min().unwrap_or(Duration::MAX)
    }

    /// Checks, by the clock alone, that all leases are still valid.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], of the first that is lost.
    pub fn check(&self) -> Result<(), Error> {
        self.leases().try_for_each(Lease::check)
    }

    /// Waits until one of them is lost, and says which and how.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> (&str, Option<Loss>) {
        let mut each: Vec<_> = self
            .leases()
            .map(|lease| Box::pin(async { (lease.name(), lease.lost().await) }))
            .collect();
        poll_fn(|context| {
            let polls = each.iter_mut().map(|lost| lost.as_mut().poll(context));
            polls
                .into_iter()
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Makes every lease last at least `lease` from now; see [`Guard::extend`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves each lease as it was or extended.
    ///
    /// # Errors
    ///
    /// The first there is; some may have been extended by then.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extended = all(self.guards.iter().map(|guard| guard.extend(lease))).await;
        extended.into_iter().collect()
    }

    /// Gives all of them back, at the same time, and says what became of them: [`ReleaseOutcome::Released`] only if
    /// all were held to the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future hands the release to the background.
    ///
    /// # Errors
    ///
    /// The first there is; all were tried, and the background goes on trying.
    pub async fn release(self) -> Result<ReleaseOutcome, Error> {
        let mut worst = ReleaseOutcome::Released;
        for release in all(self.guards.into_iter().map(Guard::release)).await {
            match release? {
                ReleaseOutcome::Released => {}
                less => worst = less,
            }
        }
        Ok(worst)
    }

    /// Gives back what there is before it says why there is no more: who tries again finds it free.
    async fn fail(self, error: Error) -> Result<Self, Error> {
        if let Err(error) = self.release().await {
            tracing::warn!(%error, "release goes on in the background");
        }
        Err(error)
    }

    async fn ended(&self) {
        self.lost().await;
    }
}

/// Runs futures at the same time in one task, until all are done.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut done = true;
        for (future, output) in &mut running {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => done = false,
                }
            }
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}

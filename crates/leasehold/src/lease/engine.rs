//! One client's lease layer: what every operation on a lock shares.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::context::{Context, Limits, error_of, send_twice};
use super::keeper::{Keeper, KeeperRuntime};
use super::pending::Pending;
use super::quarantine::Readmission;
use super::revoke::revoke;
use super::wait::{Waits, deliver};
use super::watch::Watch;
use crate::backend::{Backend, Channel, RequestError, ServerFacts, Slot};
use crate::error::Error;
use crate::observe::Observers;
use crate::protocol::{Call, Kind, Participant};
use crate::time::BootInstant;

/// The lease layer of one client.
pub(crate) struct Engine {
    pub(super) context: Arc<Context>,
    pub(super) waits: Waits,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        keeper: Keeper,
        limits: Limits,
        observers: Observers,
    ) -> Self {
        Self {
            context: Arc::new(Context::new(backend, keeper, limits, observers)),
            waits: Waits::default(),
        }
    }

    /// Returns the runtime for the requests of blocking callers.
    pub(crate) fn runtime(&self) -> &KeeperRuntime {
        &self.context.keeper.runtime
    }

    /// Returns a request of this client, for a task or a thread.
    pub(crate) fn pending<'a, T>(
        &self,
        request: impl Future<Output = Result<T, Error>> + Send + 'a,
    ) -> Pending<'a, T> {
        Pending::new(self.runtime(), request)
    }

    /// Runs `work` on the keeper's runtime, which polls it even if the caller
    /// is not polled; see [`deliver`].
    pub(crate) async fn deliver<T, W>(
        &self,
        work: impl Fn() -> W + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.context.check_process()?;
        deliver(self.runtime(), work).await
    }

    /// Returns a watcher for the messages of `channel`.
    pub(crate) fn watch(&self, channel: Channel, slot: Slot) -> Watch {
        Watch::new(self.context.clone(), channel, slot)
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.context.check_process()
    }

    /// Revokes a lock from the holder. Returns `false` if it no longer held the
    /// lock.
    pub(crate) async fn revoke(&self, kind: &dyn Kind, from: &Participant) -> Result<bool, Error> {
        self.context.check_process()?;
        let revoked = revoke(&self.context, kind, from).await;
        revoked.map_err(|error| error_of(error, kind.name()))
    }

    /// Returns how many waiters are ahead of us in the server's queue, as of
    /// our last heartbeat.
    pub(crate) fn ahead(&self, kind: &dyn Kind) -> Option<u64> {
        self.context.check_process().ok()?;
        self.waits.contended(kind)?.ahead()
    }

    /// Sends one call that concerns the lock `name` from the caller's task.
    pub(crate) async fn send<R>(&self, slot: Slot, name: &str, call: Call<R>) -> Result<R, Error> {
        self.context.check_process()?;
        let sending = async {
            self.context.check_open()?;
            self.context.send(slot, call).await
        };
        sending.await.map_err(|error| error_of(error, name))
    }

    /// Sends one call, and once more if its reply is lost. The server knows for
    /// `within` that it is the same.
    #[cfg_attr(not(feature = "redisson"), expect(dead_code))]
    pub(crate) async fn send_twice<R>(
        &self,
        slot: Slot,
        name: &str,
        within: Duration,
        call: impl Fn() -> Call<R>,
    ) -> Result<R, Error> {
        self.context.check_process()?;
        let first_sent = OnceLock::new();
        let send = async || {
            self.context.check_open()?;
            let connection = self.context.connection(slot).await?;
            let now = BootInstant::now();
            // Checked once connected, which may have taken long.
            if now.since(*first_sent.get_or_init(|| now)) >= within {
                return Err(RequestError::Unknown("it is too late to repeat it".into()));
            }
            call().send(&*connection, self.context.limits.request).await
        };
        let (reply, _) = send_twice(send).await;
        reply.map_err(|error| error_of(error, name))
    }

    /// Sends the last requests of an acquire that began at `start`. It times
    /// out after `limit`.
    pub(crate) async fn finish_within<T>(
        &self,
        limit: Option<Duration>,
        start: Instant,
        name: &str,
        requests: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(limit) = limit else {
            return requests.await;
        };
        let finished = tokio::time::timeout(limit, requests).await;
        finished.unwrap_or_else(|_| {
            Err(Error::Timeout {
                name: name.to_owned(),
                waited: start.elapsed(),
                holder: None,
                position: None,
            })
        })
    }

    /// Sends many calls, those to one node as one pipeline. Each call has an
    /// outcome.
    pub(crate) async fn send_all<R>(
        &self,
        calls: Vec<(Slot, Call<R>)>,
    ) -> Result<Vec<Result<R, Error>>, Error> {
        self.context.check_process()?;
        let mut nodes: BTreeMap<usize, (Slot, Vec<_>)> = BTreeMap::new();
        let count = calls.len();
        for (at, (slot, call)) in calls.into_iter().enumerate() {
            let node = nodes.entry(self.context.backend.node(slot));
            let (_, batch) = node.or_insert_with(|| (slot, Vec::new()));
            batch.push((at, call));
        }
        let mut outcomes: Vec<_> = std::iter::repeat_with(|| None).take(count).collect();
        for (slot, batch) in nodes.into_values() {
            let (positions, calls): (Vec<_>, _) = batch.into_iter().unzip();
            let sending = async {
                let connection = self.context.connection(slot).await?;
                Call::send_all(calls, &*connection, self.context.limits.request).await
            };
            let replies = sending.await.map_err(|error| error_of(error, ""))?;
            for (at, reply) in positions.into_iter().zip(replies) {
                outcomes[at] = Some(reply.map_err(|error| error_of(error, "")));
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// Returns a slot of each node that has any.
    pub(crate) async fn shards(&self) -> Result<Vec<Slot>, Error> {
        self.context.check_process()?;
        let shards = self.context.backend.shards().await;
        shards.map_err(|error| error_of(error, ""))
    }

    /// Returns what the server of `slot` reported when the client connected.
    pub(crate) async fn facts(&self, slot: Slot) -> Result<Arc<ServerFacts>, Error> {
        self.context.check_process()?;
        let connection = self.context.connection(slot).await;
        connection
            .map(|connection| connection.facts())
            .map_err(|error| error_of(error, ""))
    }

    /// Returns what the replicas reported when we connected to them just now.
    pub(crate) async fn replicas(&self) -> Result<Vec<Arc<ServerFacts>>, Error> {
        self.context.check_process()?;
        let replicas = self.context.backend.replicas().await;
        replicas.map_err(|error| error_of(error, ""))
    }

    /// Checks that a server replies.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        let connection = self.context.connection(0).await;
        connection.map(drop).map_err(|error| error_of(error, ""))
    }

    /// Checks that a majority of the quorum's nodes votes; nodes have `timeout`
    /// to be connected to.
    pub(crate) async fn check_votes(
        &self,
        readmission: &Readmission,
        timeout: Duration,
    ) -> Result<(), Error> {
        readmission.check(&self.context, timeout).await
    }

    /// Makes every node of the quorum vote; nodes have `timeout` to be
    /// connected to.
    pub(crate) async fn bootstrap(
        &self,
        readmission: &Readmission,
        timeout: Duration,
    ) -> Result<(), Error> {
        readmission.bootstrap(&self.context, timeout).await
    }

    /// Readmits quarantined nodes until the client is dropped.
    pub(crate) fn readmit(
        &self,
        readmission: Readmission,
    ) -> impl Future<Output = ()> + Send + 'static {
        readmission.run(Arc::downgrade(&self.context))
    }

    /// Refuses new work, releases every lock, and waits at most `timeout`.
    pub(crate) async fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        self.context.check_process()?;
        // First, so that no acquire starts that the keeper does not wait for.
        self.context.shut_down();
        let released = tokio::time::timeout(timeout, self.context.keeper.shut_down()).await;
        released.map_err(|_| Error::Unreleased)
    }
}

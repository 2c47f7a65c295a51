//! The server that accepts writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::sentinel::Sentinels;
use crate::backend::connection::{ConnectOptions, Endpoint, PushEvent, RedisConnection, Role};
use crate::backend::{Connection as _, Reply, RequestError, ServerFacts};
use crate::error::BoxError;

/// A server at a fixed address, or the current master according to sentinels.
#[derive(Clone)]
pub(crate) enum Master {
    Fixed(Arc<Endpoint>, Role),
    Sentinel(Arc<Sentinels>, Role),
}

impl Master {
    /// Parses `url`.
    pub(crate) fn new(url: &str, options: &ConnectOptions) -> Result<Self, BoxError> {
        match Sentinels::new(url, options) {
            Some(sentinels) => sentinels.map(|sentinels| Self::Sentinel(sentinels, Role::Master)),
            None => {
                let endpoint = Endpoint::new(url, options)?;
                Ok(Self::Fixed(Arc::new(endpoint), Role::Master))
            }
        }
    }

    /// Returns the same server as a node of a quorum.
    pub(crate) fn into_quorum_node(self) -> Self {
        match self {
            Self::Fixed(endpoint, _) => Self::Fixed(endpoint, Role::QuorumNode),
            Self::Sentinel(sentinels, _) => Self::Sentinel(sentinels, Role::QuorumNode),
        }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        match self {
            Self::Fixed(endpoint, _) => endpoint.connect_timeout(),
            // Includes the query to the sentinels.
            Self::Sentinel(sentinels, _) => sentinels.connect_timeout() * 2,
        }
    }

    /// Returns what the replicas in `role`, a reply to `ROLE`, report.
    pub(crate) async fn replicas(
        &self,
        keeper: &Handle,
        role: &Reply,
    ) -> Result<Vec<Arc<ServerFacts>>, RequestError> {
        let master = match self {
            Self::Fixed(endpoint, _) => (**endpoint).clone(),
            Self::Sentinel(sentinels, _) => {
                let sentinels = sentinels.clone();
                run_on(keeper, async move { sentinels.master().await }).await?
            }
        };
        let malformed = || RequestError::malformed("ROLE", std::slice::from_ref(role));
        let address = |replica: &Reply| match replica.list()? {
            [host, port, ..] => Some(master.at(host.text()?, port.text()?.parse().ok()?)),
            _ => None,
        };
        let mut replicas = Vec::new();
        for replica in role.replicas()? {
            let endpoint = address(replica).ok_or_else(malformed)?;
            let name = "leasehold-clock";
            let connection =
                RedisConnection::connect(&endpoint, name, Role::Replica, keeper, |_, _| ());
            replicas.push(connection.await?.facts());
        }
        Ok(replicas)
    }

    /// Connects to the current master. `keeper` queries the sentinels.
    pub(crate) async fn connect(
        &self,
        keeper: &Handle,
        name: &'static str,
        on_event: impl Fn(PushEvent, u64) + Send + Sync + 'static,
    ) -> Result<Arc<RedisConnection>, RequestError> {
        match self {
            Self::Fixed(endpoint, role) => {
                RedisConnection::connect(endpoint, name, *role, keeper, on_event).await
            }
            Self::Sentinel(sentinels, role) => {
                connect_to_master(sentinels, *role, keeper, name, on_event).await
            }
        }
    }
}

/// Connects to the server that one sentinel names. If it does not accept, tries
/// the servers that other sentinels name, because the first may be outdated.
///
/// The sentinels are queried on the keeper's runtime. All runtimes share the
/// connections to them, and no other runtime is sure to be driven.
async fn connect_to_master(
    sentinels: &Arc<Sentinels>,
    role: Role,
    keeper: &Handle,
    name: &'static str,
    on_event: impl Fn(PushEvent, u64) + Send + Sync + 'static,
) -> Result<Arc<RedisConnection>, RequestError> {
    // Shared, because several servers may be tried.
    let on_event = Arc::new(on_event);
    let connect = async |server: &Endpoint| {
        let on_event = on_event.clone();
        let on_event = move |event, connection| on_event(event, connection);
        RedisConnection::connect(server, name, role, keeper, on_event).await
    };
    let shared = sentinels.clone();
    let first = run_on(keeper, async move { shared.master().await }).await?;
    let error = match connect(&first).await {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    let shared = sentinels.clone();
    let candidates = run_on(keeper, async move { Ok(shared.poll_all().await) }).await?;
    for server in candidates.alternatives_to(&format!("{first:?}")) {
        tracing::info!(?first, %error, ?server, "trying another server that sentinels name");
        if let Ok(connection) = connect(server).await {
            return Ok(connection);
        }
    }
    Err(error)
}

/// Runs `work` on `runtime`, and stops it if the caller gives up.
pub(crate) async fn run_on<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = Result<T, RequestError>> + Send + 'static,
) -> Result<T, RequestError> {
    // Dropping the set aborts the task.
    let mut task = JoinSet::new();
    task.spawn_on(work, runtime);
    match task.join_next().await {
        Some(Ok(outcome)) => outcome,
        Some(Err(_)) | None => Err(RequestError::ShutDown),
    }
}

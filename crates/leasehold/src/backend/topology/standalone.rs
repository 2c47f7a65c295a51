//! A single server, or the master of a group with sentinels. It serves all
//! slots.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::master::Master;
use super::sentinel::Sentinels;
use crate::backend::connection::{NodeConnections, RedisConnection};
use crate::backend::{
    Backend, BoxFuture, Channel, Connection, Listener, Purpose, RequestError, ServerFacts, Slot,
    Subscription,
};
use crate::options::ReplicaAck;
use crate::rng;

/// How often a sentinel is queried for the current master.
const SENTINEL_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(crate) struct Standalone {
    master: Master,
    keeper: Handle,
    connections: Arc<NodeConnections>,
}

impl Standalone {
    pub(crate) fn new(master: Master, keeper: &Handle) -> Self {
        let connections = Arc::new(NodeConnections::start(
            master.clone(),
            keeper,
            Arc::new(|_| ()),
        ));
        if let Master::Sentinel(sentinels, _) = &master {
            let watching = watch_sentinels(sentinels.clone(), Arc::downgrade(&connections));
            keeper.spawn(watching);
        }
        Self {
            master,
            keeper: keeper.clone(),
            connections,
        }
    }
}

/// Closes connections to a server that is no longer the master, until the
/// backend is dropped.
async fn watch_sentinels(sentinels: Arc<Sentinels>, connections: Weak<NodeConnections>) {
    loop {
        // Jitter, so that clients started together do not query together.
        tokio::time::sleep(SENTINEL_POLL_INTERVAL.mul_f64(0.75 + 0.5 * rng::jitter())).await;
        // Checked before the query: a client that was dropped must not keep
        // asking.
        if connections.strong_count() == 0 {
            return;
        }
        // Without a reply the current connections are kept.
        let Ok(master) = sentinels.master().await else {
            continue;
        };
        let Some(connections) = connections.upgrade() else {
            return;
        };
        let master = format!("{master:?}");
        if connections
            .open_connections()
            .iter()
            .all(|connection| connection.server() == master)
        {
            continue;
        }
        // A single sentinel may be outdated.
        let candidates = sentinels.poll_all().await;
        let former =
            |connection: &Arc<RedisConnection>| candidates.is_superseded(connection.server());
        for connection in connections.open_connections().into_iter().filter(former) {
            tracing::info!(
                from = connection.server(),
                "the master changed, leaving the former one"
            );
            connection.close();
        }
    }
}

impl Backend for Standalone {
    fn open_connection(&self, purpose: Purpose, _slot: Slot) -> Option<Arc<dyn Connection>> {
        Some(self.connections.open_connection(purpose)?)
    }

    fn connection(
        &self,
        purpose: Purpose,
        _slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(
            async move { Ok(self.connections.connection(purpose).await? as Arc<dyn Connection>) },
        )
    }

    fn acknowledged(
        &self,
        purpose: Purpose,
        _slot: Slot,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(self.connections.acknowledged(purpose, wanted, timeout))
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn replicas(&self) -> BoxFuture<'_, Result<Vec<Arc<ServerFacts>>, RequestError>> {
        Box::pin(async {
            let connection = self.connections.connection(Purpose::Requests).await?;
            let timeout = self.master.connect_timeout();
            let role = connection.query(&["ROLE"], timeout).await?;
            self.master.replicas(&self.keeper, &role).await
        })
    }

    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        Box::pin(self.connections.subscribe(channel, listener))
    }
}

//! All connections of a client to one node.

use std::sync::Arc;
use std::time::Duration;

use super::RedisConnection;
use super::pubsub::{OnStateChange, SupervisedConnection};
use super::replicated::ReplicatedPool;
use super::shared::SharedConnection;
use crate::backend::topology::Master;
use crate::backend::{Channel, Connection, Listener, Purpose, RequestError, Subscription};
use crate::options::ReplicaAck;

/// The connection for callers, the connection of the keeper, and the
/// connections that wait for replicas.
pub(crate) struct NodeConnections {
    requests: SharedConnection,
    keeper: SupervisedConnection,
    /// One pool per purpose, because a connection belongs to the runtime that
    /// made it.
    replicated: [Arc<ReplicatedPool>; 2],
}

impl NodeConnections {
    /// Connects for the keeper in the background, on `keeper`. The callers'
    /// connection is made on demand.
    pub(crate) fn start(
        master: Master,
        keeper: &tokio::runtime::Handle,
        on_state_change: OnStateChange,
    ) -> Self {
        Self {
            keeper: SupervisedConnection::start(master.clone(), keeper, on_state_change),
            requests: SharedConnection::new(master.clone()),
            replicated: [
                ReplicatedPool::new(master.clone()),
                ReplicatedPool::new(master),
            ],
        }
    }

    pub(crate) fn open_connection(&self, purpose: Purpose) -> Option<Arc<RedisConnection>> {
        match purpose {
            Purpose::Requests => self.requests.open_connection(),
            Purpose::Keeper => self.keeper.open_connection(),
        }
    }

    pub(crate) async fn connection(
        &self,
        purpose: Purpose,
    ) -> Result<Arc<RedisConnection>, RequestError> {
        match purpose {
            Purpose::Requests => self.requests.connection().await,
            Purpose::Keeper => self.keeper.connection().await,
        }
    }

    /// Returns an exclusive connection that waits for replica acknowledgements.
    pub(crate) async fn acknowledged(
        &self,
        purpose: Purpose,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> Result<Arc<dyn Connection>, RequestError> {
        let [requests, keeper] = &self.replicated;
        match purpose {
            Purpose::Requests => requests.connection(wanted, timeout).await,
            Purpose::Keeper => keeper.connection(wanted, timeout).await,
        }
    }

    pub(crate) async fn subscribe(
        &self,
        channel: Channel,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, RequestError> {
        self.keeper.subscribe(channel, listener).await
    }

    /// Returns all open connections. The callers' connection is last, so that a
    /// caller whose connection to a former master is closed finds no other
    /// connection to it.
    pub(crate) fn open_connections(&self) -> impl Iterator<Item = Arc<RedisConnection>> {
        let pools = self.replicated.iter().flat_map(|pool| pool.connections());
        let purposes = [Purpose::Keeper, Purpose::Requests];
        pools.chain(
            purposes
                .into_iter()
                .filter_map(|purpose| self.open_connection(purpose)),
        )
    }
}

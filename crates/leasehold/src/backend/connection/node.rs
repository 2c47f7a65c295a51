//! The connections to one node: one for callers, one for the keeper, and those that wait for replicas.

use std::sync::Arc;
use std::time::Duration;

use super::RedisConnection;
use super::pubsub::{OnStateChange, SupervisedConnection};
use super::replicated::ReplicatedPool;
use super::shared::SharedConnection;
use crate::backend::topology::Master;
use crate::backend::{Channel, Connection, Listener, Purpose, RequestError, Subscription};
use crate::options::ReplicaAck;

/// See the module's documentation.
pub(crate) struct NodeConnections {
    requests: SharedConnection,
    keeper: SupervisedConnection,
    /// One per purpose: a connection lives on the runtime that made it.
    acknowledged: [Arc<ReplicatedPool>; 2],
}

impl NodeConnections {
    /// Connects the keeper's purpose in the background, on `keeper`, and says by `on_state_change` how it is; callers connect when
    /// they ask.
    pub(crate) fn start(
        master: Master,
        keeper: &tokio::runtime::Handle,
        on_state_change: OnStateChange,
    ) -> Self {
        Self {
            keeper: SupervisedConnection::start(master.clone(), keeper, on_state_change),
            requests: SharedConnection::new(master.clone()),
            acknowledged: [
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

    /// A connection of its own, whose answers count when replicas have acknowledged.
    pub(crate) async fn acknowledged(
        &self,
        purpose: Purpose,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> Result<Arc<dyn Connection>, RequestError> {
        let [requests, keeper] = &self.acknowledged;
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

    /// Returns the connections that are there now. Those of callers come last: a caller whose connection to a former master
    /// was closed finds no other to it.
    pub(crate) fn open_connections(&self) -> impl Iterator<Item = Arc<RedisConnection>> {
        let pools = self.acknowledged.iter().flat_map(|pool| pool.connections());
        let purposes = [Purpose::Keeper, Purpose::Requests];
        pools.chain(
            purposes
                .into_iter()
                .filter_map(|purpose| self.open_connection(purpose)),
        )
    }
}

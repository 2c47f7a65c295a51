//! All connections of a client to one node.

use std::sync::Arc;
use std::time::Duration;

use super::RedisConnection;
use super::callers::CallerConnections;
use super::pubsub::{OnStateChange, SupervisedConnection};
use super::replicated::{ReplicaCount, ReplicatedPool};
use crate::backend::topology::Master;
use crate::backend::{Channel, Connection, Listener, Purpose, RequestError, Subscription};
use crate::options::ReplicaAck;

/// The connections for callers, the keeper's connection, and the connections
/// that wait for replicas.
pub(crate) struct NodeConnections {
    callers: CallerConnections,
    keeper: SupervisedConnection,
    /// Apart from the callers' pools, so that renewals do not wait for them.
    keeper_replicated: Arc<ReplicatedPool>,
}

impl NodeConnections {
    /// Connects for the keeper in the background, on `keeper`. The callers'
    /// connections are made on demand.
    pub(crate) fn start(
        master: Master,
        keeper: &tokio::runtime::Handle,
        on_state_change: OnStateChange,
    ) -> Self {
        let handle = keeper.clone();
        // Shared by all pools: a replica that one of them has seen exists.
        let count = ReplicaCount::default();
        Self {
            keeper: SupervisedConnection::start(master.clone(), keeper, on_state_change),
            keeper_replicated: ReplicatedPool::new(master.clone(), handle.clone(), count.clone()),
            callers: CallerConnections::new(master, handle, count),
        }
    }

    pub(crate) fn open_connection(&self, purpose: Purpose) -> Option<Arc<RedisConnection>> {
        match purpose {
            Purpose::Requests => self.callers.open_connection(),
            Purpose::Keeper => self.keeper.open_connection(),
        }
    }

    pub(crate) async fn connection(
        &self,
        purpose: Purpose,
    ) -> Result<Arc<RedisConnection>, RequestError> {
        match purpose {
            Purpose::Requests => {
                self.callers
                    .of_current_runtime()
                    .requests
                    .connection()
                    .await
            }
            Purpose::Keeper => self.keeper.connection().await,
        }
    }

    /// Connects in the background for callers on this runtime.
    pub(crate) fn connect_in_background(&self) {
        self.callers.of_current_runtime().requests.open_or_connect();
    }

    /// Returns whether a connection for callers on this runtime is being made.
    pub(crate) fn is_connecting(&self) -> bool {
        self.callers.of_current_runtime().requests.is_connecting()
    }

    /// Returns why the last attempt to connect for callers on this runtime
    /// failed.
    pub(crate) fn last_error(&self) -> Option<Arc<RequestError>> {
        self.callers.of_current_runtime().requests.last_error()
    }

    /// Returns an exclusive connection that waits for replica acknowledgements.
    pub(crate) async fn acknowledged(
        &self,
        purpose: Purpose,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> Result<Arc<dyn Connection>, RequestError> {
        match purpose {
            Purpose::Requests => {
                let own = self.callers.of_current_runtime();
                own.replicated.connection(wanted, timeout).await
            }
            Purpose::Keeper => self.keeper_replicated.connection(wanted, timeout).await,
        }
    }

    pub(crate) async fn subscribe(
        &self,
        channel: Channel,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, RequestError> {
        self.keeper.subscribe(channel, listener).await
    }

    /// Returns all open connections, also retired ones. The callers'
    /// connections for requests are last, so a caller whose connection to a
    /// former master is closed finds no other connection to it.
    pub(crate) fn open_connections(&self) -> Vec<Arc<RedisConnection>> {
        let callers = self.callers.all();
        let mut open = self.keeper_replicated.connections();
        open.extend(callers.iter().flat_map(|own| own.replicated.connections()));
        open.extend(self.keeper.connections());
        open.extend(callers.iter().flat_map(|own| own.requests.connections()));
        open
    }
}

//! The connections to one node: one for callers, one for the keeper, and those that wait for replicas.

use std::sync::Arc;
use std::time::Duration;

use super::RedisConnection;
use super::pubsub::{OnLine, Supervised};
use super::replicated::Pool;
use super::shared::Requests;
use crate::backend::topology::Origin;
use crate::backend::{Channel, Connection, Listener, Purpose, RequestError, Subscription};
use crate::options::ReplicaAck;

/// See the module's documentation.
pub(crate) struct NodeConnections {
    requests: Requests,
    keeper: Supervised,
    /// One per purpose: a connection lives on the runtime that made it.
    acknowledged: [Arc<Pool>; 2],
}

impl NodeConnections {
    /// Connects the keeper's purpose in the background, on `keeper`, and says by `on_line` how it is; callers connect when
    /// they ask.
    pub(crate) fn start(origin: Origin, keeper: &tokio::runtime::Handle, on_line: OnLine) -> Self {
        Self {
            keeper: Supervised::start(origin.clone(), keeper, on_line),
            requests: Requests::new(origin.clone()),
            acknowledged: [Pool::new(origin.clone()), Pool::new(origin)],
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
    pub(crate) fn connections(&self) -> impl Iterator<Item = Arc<RedisConnection>> {
        let pools = self.acknowledged.iter().flat_map(|pool| pool.connections());
        let lanes = [Purpose::Keeper, Purpose::Requests];
        pools.chain(
            lanes
                .into_iter()
                .filter_map(|purpose| self.open_connection(purpose)),
        )
    }
}

//! The connections to one node: one for callers, one for the keeper, and those that wait for replicas.

use std::sync::Arc;
use std::time::Duration;

use super::acknowledged::Pool;
use super::connection::Connection;
use super::origin::Origin;
use super::reply::Failure;
use super::requests::Requests;
use super::subscriptions::{OnLine, Supervised};
use super::{Channel, Lane, Link, Listener, Subscription};
use crate::options::Acknowledgement;

/// See the module's documentation.
pub(super) struct Lanes {
    requests: Requests,
    keeper: Supervised,
    /// One per lane: a connection lives on the runtime that made it.
    acknowledged: [Arc<Pool>; 2],
}

impl Lanes {
    /// Connects the keeper's lane in the background, on `keeper`, and says by `on_line` how it is; callers connect when
    /// they ask.
    pub(super) fn start(origin: Origin, keeper: &tokio::runtime::Handle, on_line: OnLine) -> Self {
        Self {
            keeper: Supervised::start(origin.clone(), keeper, on_line),
            requests: Requests::new(origin.clone()),
            acknowledged: [Pool::new(origin.clone()), Pool::new(origin)],
        }
    }

    pub(super) fn open_link(&self, lane: Lane) -> Option<Arc<Connection>> {
        match lane {
            Lane::Requests => self.requests.open_link(),
            Lane::Keeper => self.keeper.open_link(),
        }
    }

    pub(super) async fn link(&self, lane: Lane) -> Result<Arc<Connection>, Failure> {
        match lane {
            Lane::Requests => self.requests.link().await,
            Lane::Keeper => self.keeper.link().await,
        }
    }

    /// A connection of its own, whose answers count when replicas have acknowledged.
    pub(super) async fn acknowledged(
        &self,
        lane: Lane,
        wanted: Acknowledgement,
        patience: Duration,
    ) -> Result<Arc<dyn Link>, Failure> {
        let [requests, keeper] = &self.acknowledged;
        match lane {
            Lane::Requests => requests.link(wanted, patience).await,
            Lane::Keeper => keeper.link(wanted, patience).await,
        }
    }

    pub(super) async fn subscribe(
        &self,
        channel: Channel,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscription, Failure> {
        self.keeper.subscribe(channel, listener).await
    }

    /// Returns the connections that are there now. Those of callers come last: a caller whose connection to a former master
    /// was closed finds no other to it.
    pub(super) fn links(&self) -> impl Iterator<Item = Arc<Connection>> {
        let pools = self.acknowledged.iter().flat_map(|pool| pool.links());
        let lanes = [Lane::Keeper, Lane::Requests];
        pools.chain(lanes.into_iter().filter_map(|lane| self.open_link(lane)))
    }
}

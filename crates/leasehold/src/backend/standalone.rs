//! One server: every slot is its own.

use std::sync::Arc;

use super::dial::Endpoint;
use super::reply::Failure;
use super::requests::Requests;
use super::subscriptions::Supervised;
use super::{Backend, BoxFuture, Lane, Link, Listener, Slot, Subscription};

/// A server on its own, with one connection per lane.
pub(crate) struct Standalone {
    requests: Requests,
    keeper: Supervised,
}

impl Standalone {
    /// Connects the keeper's lane in the background, on `keeper`; callers connect when they ask.
    pub(crate) fn new(endpoint: Endpoint, keeper: &tokio::runtime::Handle) -> Self {
        Self {
            keeper: Supervised::start(endpoint.clone(), keeper),
            requests: Requests::new(endpoint),
        }
    }
}

impl Backend for Standalone {
    fn open_link(&self, lane: Lane, _slot: Slot) -> Option<Arc<dyn Link>> {
        let link = match lane {
            Lane::Requests => self.requests.open_link()?,
            Lane::Keeper => self.keeper.open_link()?,
        };
        Some(link)
    }

    fn link(&self, lane: Lane, _slot: Slot) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        Box::pin(async move {
            Ok(match lane {
                Lane::Requests => self.requests.link().await? as Arc<dyn Link>,
                Lane::Keeper => self.keeper.link().await?,
            })
        })
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn subscribe(
        &self,
        channel: Vec<u8>,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, Failure>> {
        Box::pin(self.keeper.subscribe(channel, listener))
    }
}

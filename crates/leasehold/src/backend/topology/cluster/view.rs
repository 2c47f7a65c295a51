//! What one node reports about its cluster, and whether we believe it.
//!
//! A node that lost contact with most others keeps the slot map that it had,
//! and still answers. It knows that its cluster is down, though, and it has
//! missed the epochs of later failovers.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::slot_map::{self, SlotMap};
use crate::backend::connection::RedisConnection;
use crate::backend::{Batch, Reply, RequestError};

/// What a node reports about its cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClusterView {
    pub(super) slot_map: SlotMap,
    /// Whether the node is in contact with most masters, and serves requests.
    pub(super) is_up: bool,
    /// The highest epoch that the node knows. Every failover increments it.
    /// `None` if an ACL hides it.
    pub(super) epoch: Option<u64>,
}

/// Why a node's view is not used at once.
#[derive(Debug)]
pub(super) enum NoCurrentView {
    /// The node is cut off, or knows less than another node did.
    Stale(ClusterView),
    Failed(RequestError),
}

impl ClusterView {
    /// Reads a node's view, on `keeper`. Fails if it is not current: the node
    /// must be up, and know the epoch `known`.
    pub(super) async fn read(
        keeper: &Handle,
        connection: Arc<RedisConnection>,
        known: u64,
        timeout: Duration,
    ) -> Result<Self, NoCurrentView> {
        // In a task of its own: if another node is faster, the request still
        // runs to its end, which closes a connection on which nothing arrives.
        let reading = keeper.spawn(async move {
            // The state first, so that the map is at least as new.
            let commands = ["INFO", "SLOTS"].map(|word| Batch::new("CLUSTER").arg(word));
            let replies = connection.exchange(commands.into_iter().collect(), timeout);
            Self::parse(&replies.await?, connection.host())
        });
        let view = reading.await.unwrap_or(Err(RequestError::ShutDown));
        match view.map_err(NoCurrentView::Failed)? {
            view if view.is_current(known) => Ok(view),
            view => Err(NoCurrentView::Stale(view)),
        }
    }

    /// Parses the replies to `CLUSTER INFO` and `CLUSTER SLOTS`.
    fn parse(replies: &[Reply], sender: &str) -> Result<Self, RequestError> {
        let [info, slots] = replies else {
            return Err(RequestError::malformed("CLUSTER", replies));
        };
        if let Reply::Refused(error) = slots {
            return Err(RequestError::Refused(error.clone()));
        }
        let slot_map = slot_map::parse(slots, sender)?;
        if slot_map.is_empty() {
            return Err(RequestError::Unreachable("no node owns any slot".into()));
        }
        // Without the permission for `CLUSTER INFO`, we believe every node.
        let lines = info.text().unwrap_or_default().lines();
        let field = |name: &str| {
            let mut values = lines.clone().filter_map(|line| line.strip_prefix(name));
            values.find_map(|value| value.strip_prefix(':'))
        };
        Ok(Self {
            slot_map,
            is_up: field("cluster_state").is_none_or(|state| state == "ok"),
            epoch: field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()),
        })
    }

    fn is_current(&self, known: u64) -> bool {
        self.is_up && self.epoch.is_none_or(|epoch| epoch >= known)
    }

    /// Returns the best of the stale views, or the last error if there is none.
    pub(super) fn best_of(views: Vec<NoCurrentView>) -> Result<Self, RequestError> {
        let mut best: Option<Self> = None;
        let mut last_error = RequestError::Unreachable("the URL names no node".into());
        let rank = |view: &Self| (view.is_up, view.epoch);
        for view in views {
            match view {
                NoCurrentView::Failed(error) => last_error = error,
                NoCurrentView::Stale(view) => {
                    if best.as_ref().is_none_or(|best| rank(&view) > rank(best)) {
                        best = Some(view);
                    }
                }
            }
        }
        best.ok_or(last_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ServerError;

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    /// Returns the view of a node that reports `info`, and one range of slots.
    fn view(info: Reply) -> ClusterView {
        let node = Reply::List(vec![bytes("10.0.0.1"), Reply::Int(1), bytes("id")]);
        let range = Reply::List(vec![Reply::Int(0), Reply::Int(16_383), node]);
        let slots = Reply::List(vec![range]);
        ClusterView::parse(&[info, slots], "10.0.0.9").unwrap()
    }

    fn info(state: &str, epoch: u64) -> ClusterView {
        let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\nx:1\r\n");
        view(bytes(&info))
    }

    #[test]
    fn node_that_is_cut_off_is_not_current() {
        assert!(info("ok", 7).is_current(7));
        assert!(info("ok", 8).is_current(7));
        assert!(!info("ok", 6).is_current(7));
        assert!(!info("fail", 9).is_current(7));
    }

    #[test]
    fn node_that_hides_its_state_is_believed() {
        let denied = Reply::Refused(ServerError::new("NOPERM", "no permissions"));
        let view = view(denied);
        assert_eq!(view.epoch, None);
        assert!(view.is_current(7));
    }

    #[test]
    fn node_without_a_map_is_an_error() {
        let parse = |replies: &[Reply]| ClusterView::parse(replies, "h");
        let ok = || bytes("cluster_state:ok");
        assert!(parse(&[ok(), Reply::List(Vec::new())]).is_err());
        assert!(parse(&[ok()]).is_err());
        let denied = Reply::Refused(ServerError::new("NOPERM", "no permissions"));
        assert!(matches!(
            parse(&[ok(), denied]),
            Err(RequestError::Refused(_))
        ));
    }

    #[test]
    fn best_stale_view_is_up_and_has_the_last_epoch() {
        let stale = |views: Vec<ClusterView>| {
            let views = views.into_iter().map(NoCurrentView::Stale);
            let failed = NoCurrentView::Failed(RequestError::ShutDown);
            ClusterView::best_of(views.chain([failed]).collect())
        };
        let best = stale(vec![info("fail", 9), info("ok", 5), info("ok", 6)]);
        assert_eq!(best.unwrap(), info("ok", 6));
        let best = stale(vec![info("fail", 9), info("fail", 8)]);
        assert_eq!(best.unwrap(), info("fail", 9));
        assert!(matches!(stale(Vec::new()), Err(RequestError::ShutDown)));
    }
}

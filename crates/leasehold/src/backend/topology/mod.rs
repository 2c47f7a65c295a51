//! Topologies: a single server, a group with sentinels, a quorum of independent
//! servers, or a cluster.

mod cluster;
mod fan_out;
mod master;
mod quorum;
mod sentinel;
mod standalone;
mod url;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use fan_out::majority;
pub(crate) use master::{Master, run_on};
pub(crate) use url::{ServerAddress, ServerUrl};

use super::Backend;
use super::connection::ConnectOptions;
use crate::error::BoxError;
use cluster::{Cluster, Seeds};
use quorum::QuorumBackend;
use standalone::Standalone;

/// The topology that a URL names, before connecting.
pub(crate) enum Target {
    Server(Master),
    Cluster(Seeds),
}

impl Target {
    /// Parses `url`.
    pub(crate) fn new(url: &str, options: &ConnectOptions) -> Result<Self, BoxError> {
        match Seeds::new(url, options) {
            Some(seeds) => seeds.map(Self::Cluster),
            None => Master::new(url, options).map(Self::Server),
        }
    }

    /// Returns whether slots belong to different nodes, so that keys used
    /// together must share a slot.
    pub(crate) fn divides_slots(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Starts connecting to several servers as a quorum. Ignores clusters,
    /// whose nodes are not independent.
    pub(crate) fn open_all(
        targets: Vec<Self>,
        first_timeout: Duration,
        timeout: Duration,
        keeper: &tokio::runtime::Handle,
    ) -> Arc<dyn Backend> {
        let master = |target| match target {
            Self::Server(master) => Some(master.into_quorum_node()),
            Self::Cluster(_) => None,
        };
        let masters = targets.into_iter().filter_map(master).collect();
        Arc::new(QuorumBackend::new(masters, first_timeout, timeout, keeper))
    }

    /// Starts connecting. The keeper's connections live on `keeper`.
    pub(crate) fn open(self, keeper: &tokio::runtime::Handle) -> Arc<dyn Backend> {
        match self {
            Self::Server(master) => Arc::new(Standalone::new(master, keeper)),
            Self::Cluster(seeds) => Arc::new(Cluster::new(seeds, keeper)),
        }
    }
}

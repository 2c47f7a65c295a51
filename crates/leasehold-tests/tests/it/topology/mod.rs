//! Deployments: standalone servers, Sentinel, Cluster and quorums.

mod cluster;
mod conformance;
mod connections;
mod failover;
mod fleet;
mod quorum;
mod sentinel;
mod slot_migration;

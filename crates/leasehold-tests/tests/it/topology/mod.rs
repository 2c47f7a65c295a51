//! Deployments: standalone servers, Sentinel, Cluster and quorums.

mod cluster;
mod conformance;
mod connections;
mod credentials;
mod failover;
mod fleet;
mod profiles;
mod quorum;
mod rotation;
mod sentinel;
mod slot_migration;

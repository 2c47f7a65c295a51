//! Metrics of a process's locks.
#![doc = include_str!("../README.md")]

mod fold;
mod locks;
mod names;
mod observer;
mod recorder;
mod series;
mod servers;
mod table;

pub use names::{
    ACQUIRE_BUCKETS, ACQUIRE_DURATION, BUCKETS, CONNECTIONS, HANDED_OFF, HELD, HOLD_BUCKETS,
    HOLD_DURATION, LEASE_MARGIN, LEASE_MARGIN_BUCKETS, LEASE_MARGIN_RATIO,
    LEASE_MARGIN_RATIO_BUCKETS, LOST, RECONNECTS, RELEASES_PENDING, RENEWALS, REQUEST_BUCKETS,
    REQUEST_DURATION, WAITING, describe,
};
pub use observer::{Metrics, MetricsBuilder};

//! The parts that all Redisson objects of one client share.

use std::sync::Arc;

use crate::lease::Engine;
use crate::options::AcquireOptions;
use crate::protocol::redisson::Naming;

/// The connection, keys and options of Redisson objects.
#[derive(Clone)]
pub(super) struct RedissonContext {
    pub(super) engine: Arc<Engine>,
    pub(super) naming: Naming,
    pub(super) options: AcquireOptions,
}

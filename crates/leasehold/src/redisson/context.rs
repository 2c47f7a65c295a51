//! The parts that all Redisson objects of one client share.

use std::sync::Arc;

use super::calls::Naming;
use crate::lease::Engine;
use crate::options::AcquireOptions;

/// The connection, keys and options of Redisson objects.
#[derive(Clone)]
pub(super) struct RedissonContext {
    pub(super) engine: Arc<Engine>,
    pub(super) naming: Naming,
    pub(super) options: AcquireOptions,
}

//! The connections that one owner has made and that are still open.
//!
//! A retired connection is in use until its requests have ended, although its
//! owner has another one. When a server stops being the master, we close all
//! connections to it.

use std::sync::{Arc, Weak};

use super::RedisConnection;
use crate::sync::Mutex;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct OpenedConnections(Mutex<Vec<Weak<RedisConnection>>>);

impl OpenedConnections {
    pub(super) fn add(&self, connection: &Arc<RedisConnection>) {
        let mut opened = self.0.lock();
        opened.retain(|connection| connection.strong_count() > 0);
        opened.push(Arc::downgrade(connection));
    }

    /// Returns the connections that are not closed.
    pub(super) fn all(&self) -> Vec<Arc<RedisConnection>> {
        let opened = self.0.lock();
        let connections = opened.iter().filter_map(Weak::upgrade);
        connections
            .filter(|connection| !connection.is_closed())
            .collect()
    }
}

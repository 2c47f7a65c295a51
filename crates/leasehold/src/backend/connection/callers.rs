//! The callers' connections to one node, separate for each runtime.
//!
//! A connection is made and read by one runtime. If callers of several runtimes
//! shared it, they would all wait for that runtime, which may be blocked, or
//! not be driven at all. So every request uses a connection of the runtime that
//! makes the request. It closes with that runtime. The runtime of a blocking
//! caller is the keeper's.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::runtime::{Handle, Id};

use super::RedisConnection;
use super::replicated::{ReplicaCount, ReplicatedPool};
use super::shared::SharedConnection;
use crate::backend::topology::Master;
use crate::sync::Mutex;

/// See the module's documentation.
pub(crate) struct CallerConnections {
    master: Master,
    keeper: Handle,
    replica_count: ReplicaCount,
    runtimes: Mutex<HashMap<Id, Arc<RuntimeConnections>>>,
}

/// The connections of callers on one runtime.
pub(crate) struct RuntimeConnections {
    pub(super) requests: Arc<SharedConnection>,
    pub(super) replicated: Arc<ReplicatedPool>,
}

impl RuntimeConnections {
    /// Returns whether nothing is lost when this is dropped, as after the
    /// runtime's end.
    fn is_unused(&self) -> bool {
        self.requests.is_unused() && self.replicated.is_unused()
    }
}

impl CallerConnections {
    pub(crate) fn new(master: Master, keeper: Handle, replica_count: ReplicaCount) -> Self {
        Self {
            master,
            keeper,
            replica_count,
            runtimes: Mutex::default(),
        }
    }

    /// Returns the current runtime's open connection for requests.
    pub(crate) fn open_connection(&self) -> Option<Arc<RedisConnection>> {
        let runtimes = self.runtimes.lock();
        // Does not create an entry: this is the fast path of every request.
        let own = runtimes.get(&Handle::current().id())?;
        own.requests.open_connection()
    }

    /// Returns the current runtime's connections.
    pub(crate) fn of_current_runtime(&self) -> Arc<RuntimeConnections> {
        let runtime = Handle::current().id();
        let mut runtimes = self.runtimes.lock();
        if let Some(own) = runtimes.get(&runtime) {
            return own.clone();
        }
        // Only a new runtime adds an entry, so it is enough to remove those of
        // ended runtimes here. A count above one means that a caller is about
        // to connect.
        runtimes.retain(|_, other| Arc::strong_count(other) > 1 || !other.is_unused());
        let own = Arc::new(RuntimeConnections {
            requests: SharedConnection::new(self.master.clone(), self.keeper.clone()),
            replicated: ReplicatedPool::new(
                self.master.clone(),
                self.keeper.clone(),
                self.replica_count.clone(),
            ),
        });
        runtimes.insert(runtime, own.clone());
        own
    }

    /// Returns the connections of all runtimes that have any.
    pub(crate) fn all(&self) -> Vec<Arc<RuntimeConnections>> {
        self.runtimes.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use testkit::Flavor;

    use super::*;
    use crate::backend::Connection;
    use crate::backend::connection::{ConnectOptions, Endpoint, Role};

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    #[test]
    fn ended_runtimes_are_forgotten() {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let endpoint = Endpoint::new(&url, &ConnectOptions::default()).unwrap();
        let master = Master::Fixed(Arc::new(endpoint), Role::Master);
        let keeper = runtime();
        let handle = keeper.handle().clone();
        let callers = CallerConnections::new(master, handle, ReplicaCount::default());
        let connect = async || {
            let own = callers.of_current_runtime();
            own.requests.connection().await.unwrap().id()
        };
        let lasting = runtime();
        let first = lasting.block_on(connect());
        for _ in 0..50 {
            assert_ne!(runtime().block_on(connect()), first);
            // The lasting runtime and the one that has just ended.
            assert!(callers.all().len() <= 2);
        }
        assert_eq!(lasting.block_on(connect()), first);
    }
}

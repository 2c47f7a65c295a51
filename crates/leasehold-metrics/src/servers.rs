//! The handles of every server.

use std::collections::HashMap;
use std::sync::Arc;

use metrics::{Counter, Gauge, SharedString};
use parking_lot::Mutex;

use crate::names::{CONNECTIONS, RECONNECTS};
use crate::recorder::{Registrar, label};
use crate::table::OTHER;

/// The most values of the label `server`. Addresses change in a cluster whose
/// nodes are replaced.
const MAX_SERVERS: usize = 100;

/// The handles by address. They are used once per connection.
#[derive(Default)]
pub(crate) struct Servers(Mutex<HashMap<Arc<str>, Server>>);

/// The handles of one server.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) connections: Gauge,
    pub(crate) reconnects: Counter,
}

impl Servers {
    pub(crate) fn get(&self, registrar: &Registrar, address: &str) -> Server {
        let mut servers = self.0.lock();
        // As for locks, an address maps to the same series at all times.
        let address = match servers.contains_key(address) || servers.len() < MAX_SERVERS {
            true => address,
            false => OTHER,
        };
        if let Some(server) = servers.get(address) {
            return server.clone();
        }
        let address: Arc<str> = address.into();
        let server = Server::register(registrar, &address);
        servers.insert(address, server.clone());
        server
    }
}

impl Server {
    fn register(registrar: &Registrar, address: &Arc<str>) -> Self {
        let labels = || vec![label("server", SharedString::from_shared(address.clone()))];
        Self {
            connections: registrar.gauge(CONNECTIONS, labels()),
            reconnects: registrar.counter(RECONNECTS, labels()),
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics::NoopRecorder;

    use super::*;

    #[test]
    fn addresses_are_bounded() {
        let servers = Servers::default();
        let registrar = Registrar(Some(Box::new(NoopRecorder)));
        for number in 0..10_000 {
            servers.get(&registrar, &format!("10.0.0.1:{number}"));
        }
        assert_eq!(servers.0.lock().len(), MAX_SERVERS + 1);
    }
}

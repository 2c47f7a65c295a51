//! The address of a server and the settings to connect to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::handshake::{Login, Role, handshake};
use super::socket::{SocketReader, SocketWriter, own_halves};
use super::tls::{self, Connector, Tls};
use super::wire::{OnEvent, Wire};
use crate::backend::topology::{ServerAddress, ServerUrl};
use crate::backend::{RequestError, ServerFacts};
use crate::error::BoxError;
use crate::observe::Observers;

/// How a client connects to servers.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    /// The limit for connecting, authentication included.
    pub(crate) timeout: Duration,
    pub(crate) tls: Tls,
    pub(crate) observers: Observers,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            tls: Tls::default(),
            observers: Observers::default(),
        }
    }
}

/// A server's address, with credentials, TLS settings and timeout.
#[derive(Clone)]
pub(crate) struct Endpoint {
    url: ServerUrl,
    connector: Option<Connector>,
    connect_timeout: Duration,
    observers: Observers,
}

impl Endpoint {
    /// Parses `url`.
    pub(crate) fn new(url: &str, options: &ConnectOptions) -> Result<Self, BoxError> {
        let url = ServerUrl::parse(url)?;
        let connector = match url.address {
            ServerAddress::Tcp { is_tls: true, .. } => Some(Connector::new(&options.tls)?),
            _ => None,
        };
        Ok(Self {
            url,
            connector,
            connect_timeout: options.timeout,
            observers: options.observers.clone(),
        })
    }

    pub(super) fn observers(&self) -> &Observers {
        &self.observers
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Returns the host as written in the URL.
    pub(crate) fn host(&self) -> String {
        match &self.url.address {
            ServerAddress::Tcp { host, .. } => host.clone(),
            ServerAddress::Unix(_) => "127.0.0.1".to_owned(),
        }
    }

    /// Returns an endpoint for another server with the same settings.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let mut other = self.clone();
        other.url.address = ServerAddress::Tcp {
            host: host.to_owned(),
            port,
            is_tls: self.connector.is_some(),
        };
        other
    }

    /// Connects on the current runtime and performs the handshake. Fails if the
    /// server does not have the required `role`.
    pub(super) async fn connect(
        &self,
        name: &'static str,
        role: Role,
        keeper: &Handle,
        on_event: OnEvent,
    ) -> Result<(Arc<Wire>, ServerFacts), RequestError> {
        let timeout = self.connect_timeout;
        let connecting = async {
            let (reader, writer) = self
                .open()
                .await
                .map_err(|error| RequestError::Unreachable(error.into()))?;
            let wire = Wire::start(reader, writer, keeper, on_event);
            let mut guard = CloseOnDrop::new(wire.clone());
            let login = Login {
                credentials: self.url.credentials.as_ref(),
                database: self.url.database,
                name,
                role,
            };
            let facts = handshake(&wire, login).await?;
            // From here on, the owner of the wire closes it.
            guard.is_complete = true;
            wire.establish(role != Role::Sentinel);
            Ok((wire, facts))
        };
        let connected = tokio::time::timeout(timeout, connecting).await;
        let timed_out = |_| {
            let reason = format!("no reply within {timeout:?}");
            Err(RequestError::Unreachable(reason.into()))
        };
        // No request was sent yet, so an unknown outcome is impossible.
        connected
            .unwrap_or_else(timed_out)
            .map_err(|error| match error {
                RequestError::Unreachable(cause) | RequestError::Unknown(cause) => {
                    RequestError::Unreachable(format!("{self:?}: {cause}").into())
                }
                other => other,
            })
    }

    async fn open(&self) -> std::io::Result<(SocketReader, SocketWriter)> {
        match &self.url.address {
            ServerAddress::Tcp { host, port, .. } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // Requests are small and must leave at once. We collect them
                // ourselves.
                stream.set_nodelay(true)?;
                match &self.connector {
                    None => {
                        let (reader, writer) = stream.into_split();
                        Ok(own_halves(reader, writer))
                    }
                    Some(connector) => {
                        let stream = tls::connect(connector, host, stream).await?;
                        let (reader, writer) = tokio::io::split(stream);
                        Ok(own_halves(reader, writer))
                    }
                }
            }
            #[cfg(unix)]
            ServerAddress::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let (reader, writer) = stream.into_split();
                Ok(own_halves(reader, writer))
            }
            #[cfg(not(unix))]
            ServerAddress::Unix(_) => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Closes the connection when dropped during the handshake. The reading task
/// would otherwise keep it open.
struct CloseOnDrop {
    wire: Arc<Wire>,
    is_complete: bool,
}

impl CloseOnDrop {
    fn new(wire: Arc<Wire>) -> Self {
        Self {
            wire,
            is_complete: false,
        }
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if !self.is_complete {
            self.wire.close("the handshake failed");
        }
    }
}

impl fmt::Debug for Endpoint {
    /// Shows the address without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.url.address {
            // An IPv6 address needs brackets before a port.
            ServerAddress::Tcp { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            ServerAddress::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            ServerAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_address_without_password() {
        let url = "redis://user:secret@127.0.0.1:6380/3";
        let endpoint = Endpoint::new(url, &ConnectOptions::default()).unwrap();
        assert_eq!(format!("{endpoint:?}"), "127.0.0.1:6380");
        assert_eq!(format!("{:?}", endpoint.at("::1", 7)), "[::1]:7");
    }
}

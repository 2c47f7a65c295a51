//! The address of a server and the settings to connect to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::dial::dial;
use super::handshake::{Login, Role, handshake, is_login_refused};
use super::reauthenticate::{Reauthentication, refused_login};
use super::socket::{SocketReader, SocketWriter, own_halves, shared_halves};
use super::tls::{self, Connector, Tls};
use super::wire::{OnEvent, Wire};
use crate::backend::topology::{ServerAddress, ServerUrl};
use crate::backend::{RequestError, ServerFacts};
use crate::credentials::{Credentials, CredentialsProvider, Server};
use crate::error::BoxError;
use crate::observe::Observers;

/// How a client connects to servers.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    /// The limit for connecting, authentication included.
    pub(crate) timeout: Duration,
    /// Where credentials come from, instead of the URL.
    pub(crate) credentials: Option<CredentialsProvider>,
    pub(crate) tls: Tls,
    pub(crate) observers: Observers,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            credentials: None,
            tls: Tls::default(),
            observers: Observers::default(),
        }
    }
}

/// A server's address, with credentials, TLS settings and timeout.
#[derive(Clone)]
pub(crate) struct Endpoint {
    url: ServerUrl,
    /// Returns the credentials, unless the URL has some.
    provider: Option<CredentialsProvider>,
    connector: Option<Connector>,
    connect_timeout: Duration,
    observers: Observers,
}

impl Endpoint {
    /// Parses `url`. Fails if both the URL and `options` have credentials.
    pub(crate) fn new(url: &str, options: &ConnectOptions) -> Result<Self, BoxError> {
        let endpoint = Self::with_own_login(url, options)?;
        match endpoint.provider.is_none() && options.credentials.is_some() {
            true => Err(
                "it has a password, and a provider of credentials is set, too; remove one".into(),
            ),
            false => Ok(endpoint),
        }
    }

    /// Parses `url`, whose credentials take precedence over those of `options`.
    pub(crate) fn with_own_login(url: &str, options: &ConnectOptions) -> Result<Self, BoxError> {
        let url = ServerUrl::parse(url)?;
        let is_free = url.credentials.login().is_none();
        let connector = match url.address {
            ServerAddress::Tcp { is_tls: true, .. } => Some(Connector::new(&options.tls)?),
            _ => None,
        };
        Ok(Self {
            url,
            provider: options.credentials.clone().filter(|_| is_free),
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
        let start = Instant::now();
        let connecting = async {
            let (reader, writer) = self
                .open()
                .await
                .map_err(|error| RequestError::Unreachable(error.into()))?;
            let wire = Wire::start(reader, writer, keeper, on_event);
            let mut guard = CloseOnDrop::new(wire.clone());
            // After the socket is open: a server that is down costs no token.
            let rest = timeout.saturating_sub(start.elapsed());
            let credentials = self.ask_credentials(role, keeper, rest).await?;
            let login = Login {
                credentials: &credentials,
                database: self.url.database,
                name,
                role,
            };
            let facts = handshake(&wire, login).await;
            let facts = facts.map_err(|error| self.blame_provider(error))?;
            // From here on, the owner of the wire closes it.
            guard.is_complete = true;
            wire.establish(role != Role::Sentinel);
            self.reauthenticate(&wire, &credentials, role, keeper);
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

    /// Returns the credentials for a login that may take as long as `rest`.
    async fn ask_credentials(
        &self,
        role: Role,
        keeper: &Handle,
        rest: Duration,
    ) -> Result<Credentials, RequestError> {
        let Some(provider) = &self.provider else {
            return Ok(self.url.credentials.clone());
        };
        // Leaves time for the login. If the provider could use all of it, the
        // connect would time out first, with an error that blames the server.
        let limit = rest.mul_f64(0.75);
        let asked = provider.ask(self.server(role), keeper, limit).await;
        asked.map_err(|error| RequestError::Unreachable(error.into()))
    }

    /// Converts the error of a login. The next credentials of a provider may be
    /// better, so a refusal is not final as that of a fixed password.
    fn blame_provider(&self, error: RequestError) -> RequestError {
        match error {
            RequestError::Refused(error) if self.has_provider() && is_login_refused(&error) => {
                RequestError::Unreachable(refused_login(&error).into())
            }
            other => other,
        }
    }

    /// Keeps a connection logged in if its credentials end.
    fn reauthenticate(
        &self,
        wire: &Arc<Wire>,
        credentials: &Credentials,
        role: Role,
        keeper: &Handle,
    ) {
        if let (Some(provider), Some(end)) = (&self.provider, credentials.end()) {
            let task = Reauthentication {
                wire: wire.clone(),
                provider: provider.clone(),
                server: self.server(role),
                keeper: keeper.clone(),
                timeout: self.connect_timeout,
            };
            task.start(end);
        }
    }

    /// Returns whether the credentials can change.
    pub(super) fn has_provider(&self) -> bool {
        self.provider.is_some()
    }

    /// Returns how a provider sees this server.
    fn server(&self, role: Role) -> Server {
        Server {
            address: format!("{self:?}"),
            is_sentinel: role == Role::Sentinel,
        }
    }

    async fn open(&self) -> std::io::Result<(SocketReader, SocketWriter)> {
        match &self.url.address {
            ServerAddress::Tcp { host, port, .. } => {
                let stream = dial(host, *port, self.connect_timeout).await?;
                match &self.connector {
                    None => {
                        let (reader, writer) = stream.into_split();
                        Ok(own_halves(reader, writer))
                    }
                    Some(connector) => {
                        let stream = tls::connect(connector, host, stream).await?;
                        let (reader, writer) = shared_halves(stream);
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

    #[test]
    fn credentials_come_from_url_or_provider() {
        let options = ConnectOptions {
            credentials: Some(CredentialsProvider::new(|_| async {
                Ok::<_, String>(Credentials::none())
            })),
            ..ConnectOptions::default()
        };
        let url = "redis://user:secret@127.0.0.1";
        let error = Endpoint::new(url, &options).err().unwrap().to_string();
        assert!(error.contains("provider") && !error.contains("secret"));
        let own = Endpoint::with_own_login(url, &options).unwrap();
        assert!(!own.has_provider());
        for url in ["redis://127.0.0.1", "unix:///run/r.sock?db=1"] {
            let endpoint = Endpoint::new(url, &options).unwrap();
            assert!(endpoint.has_provider() && endpoint.at("other", 1).has_provider());
        }
    }
}

//! One server: where it is, how to log in, and the handshake of a new connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::tls::{self, Connector, Tls};
use super::url::{Address, Credentials, Url};
use super::wire::{OnEvent, SocketReader, SocketWriter, Wire, WireClosed};
use crate::backend::{Capabilities, Command, ServerFacts};
use crate::backend::{Reply, RequestError, ServerError, ServerErrorKind};
use crate::error::BoxError;
use crate::time::BootInstant;

/// What a server must be to be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Accepts writes for all slots.
    Master,
    /// The same, and is one of several that must not be the same.
    Voter,
    /// Belongs to a cluster, which says by itself which node accepts writes for what.
    Member,
    /// Watches a group of servers.
    Sentinel,
}

/// Where a server is and how to log in.
#[derive(Clone)]
pub(crate) struct Endpoint {
    url: Url,
    connector: Option<Connector>,
    connect_timeout: Duration,
}

impl Endpoint {
    /// Parses `url`.
    pub(crate) fn new(url: &str, tls: &Tls, connect_timeout: Duration) -> Result<Self, BoxError> {
        let url = Url::parse(url)?;
        let connector = match url.address {
            Address::Tcp { is_tls: true, .. } => Some(Connector::new(tls)?),
            _ => None,
        };
        Ok(Self {
            url,
            connector,
            connect_timeout,
        })
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The host as it was given.
    pub(crate) fn host(&self) -> String {
        match &self.url.address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => "127.0.0.1".to_owned(),
        }
    }

    /// Another server with the same users.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let mut other = self.clone();
        other.url.address = Address::Tcp {
            host: host.to_owned(),
            port,
            is_tls: self.connector.is_some(),
        };
        other
    }

    /// Connects on the current runtime, logs in, and asks the server what it is. A server that is not in its `role` is refused.
    pub(super) async fn connect(
        &self,
        name: &'static str,
        role: Role,
        on_event: OnEvent,
    ) -> Result<(Arc<Wire>, ServerFacts), RequestError> {
        let limit = self.connect_timeout;
        let connecting = async {
            let (reader, writer) = self
                .open()
                .await
                .map_err(|error| RequestError::Unreachable(error.into()))?;
            let wire = Wire::start(reader, writer, on_event);
            let mut handshake = Handshake::on(wire.clone());
            let facts = self.greet(&wire, name, role).await?;
            handshake.is_complete = true;
            match role {
                Role::Sentinel => {}
                Role::Master | Role::Voter | Role::Member => wire.begin_seals(),
            }
            Ok((wire, facts))
        };
        let connected = tokio::time::timeout(limit, connecting).await;
        let late = |_| {
            Err(RequestError::Unreachable(
                format!("no reply within {limit:?}").into(),
            ))
        };
        connected
            .unwrap_or_else(late)
            .map_err(|error| self.not_connected(error))
    }

    async fn open(&self) -> std::io::Result<(SocketReader, SocketWriter)> {
        match &self.url.address {
            Address::Tcp { host, port, .. } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match &self.connector {
                    None => {
                        let (reader, writer) = stream.into_split();
                        Ok((Box::pin(reader), Box::pin(writer)))
                    }
                    Some(connector) => {
                        let stream = tls::connect(connector, host, stream).await?;
                        let (reader, writer) = tokio::io::split(stream);
                        Ok((Box::pin(reader), Box::pin(writer)))
                    }
                }
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let (reader, writer) = stream.into_split();
                Ok((Box::pin(reader), Box::pin(writer)))
            }
            #[cfg(not(unix))]
            Address::Unix(_) => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }

    /// One round trip: protocol and login, database, clock, optional commands, name.
    async fn greet(
        &self,
        wire: &Wire,
        name: &'static str,
        role: Role,
    ) -> Result<ServerFacts, RequestError> {
        let database = u64::from(self.url.database);
        let mut greeting = vec![hello(self.url.credentials.as_ref())];
        if role != Role::Sentinel {
            greeting.push(Command::new("TIME"));
            greeting.push(
                Command::new("COMMAND")
                    .arg("INFO")
                    .arg("DELEX")
                    .arg("DELIFEQ"),
            );
            greeting.push(Command::new("CLIENT").arg("SETNAME").arg(name));
            greeting.push(Command::new("ECHO").arg(name));
        }
        if role == Role::Voter {
            greeting.push(Command::new("INFO").arg("server"));
        }
        if database > 0 {
            greeting.push(Command::new("SELECT").number(database));
        }
        let replies = wire.request(&greeting.into_iter().collect()).await;
        let replies = replies
            .map_err(|WireClosed(reason)| RequestError::Unreachable(reason.to_string().into()))?;
        let read_at = BootInstant::now();
        let hello = &replies[0];
        accepted(hello)?;
        check_role(hello, role)?;
        if database > 0 {
            accepted(&replies[replies.len() - 1])?;
        }
        let (server_time, capabilities) = match role {
            Role::Sentinel => (0, Capabilities::default()),
            Role::Master | Role::Voter | Role::Member => {
                // Whether seals are permitted.
                accepted(&replies[4])?;
                (server_time(&replies[1])?, capabilities(&replies[2]))
            }
        };
        Ok(ServerFacts {
            server_time,
            read_at,
            version: version(hello)?,
            run_id: match role {
                Role::Voter => run_id(&replies[5]),
                _ => None,
            },
            capabilities,
        })
    }

    /// Nothing of ours was sent yet, so a handshake of unknown outcome has none.
    fn not_connected(&self, error: RequestError) -> RequestError {
        match error {
            RequestError::Unreachable(cause) | RequestError::Unknown(cause) => {
                RequestError::Unreachable(format!("{self:?}: {cause}").into())
            }
            other => other,
        }
    }
}

/// A handshake under way. Dropping it before it is complete closes the connection, which its reading task
/// would keep open.
struct Handshake {
    wire: Arc<Wire>,
    is_complete: bool,
}

impl Handshake {
    fn on(wire: Arc<Wire>) -> Self {
        Self {
            wire,
            is_complete: false,
        }
    }
}

impl Drop for Handshake {
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
            Address::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

fn hello(credentials: Option<&Credentials>) -> Command {
    let hello = Command::new("HELLO").arg("3");
    match credentials {
        None => hello,
        Some(Credentials { user, password }) => {
            let user = if user.is_empty() { "default" } else { user };
            hello.arg("AUTH").arg(user).arg(password)
        }
    }
}

fn accepted(reply: &Reply) -> Result<(), RequestError> {
    match reply {
        Reply::Refused(error) => Err(RequestError::Refused(error.clone())),
        _ => Ok(()),
    }
}

/// Says what to do where the server is not what it was taken for.
fn check_role(hello: &Reply, role: Role) -> Result<(), RequestError> {
    let said = |name| hello.field(name).and_then(Reply::text);
    let reason = match (said("mode"), said("role"), role) {
        (_, _, Role::Sentinel) => return Ok(()),
        (Some("sentinel"), ..) => {
            "it is a sentinel; the URL for that is `redis+sentinel://host/group`"
        }
        (Some("cluster"), _, Role::Master | Role::Voter) => {
            "it belongs to a cluster; the URL for that is `redis+cluster://host`"
        }
        (Some("standalone"), _, Role::Member) => {
            "it belongs to no cluster; the URL for that is `redis://host`"
        }
        (_, Some("replica" | "slave"), Role::Master | Role::Voter) => {
            "it is a replica; give its master's URL, or that of its sentinels"
        }
        _ => return Ok(()),
    };
    Err(RequestError::Unreachable(reason.into()))
}

fn server_time(time: &Reply) -> Result<u64, RequestError> {
    accepted(time)?;
    let parts = time.list().unwrap_or_default();
    let number = |at: usize| u64::try_from(parts.get(at)?.int()?).ok();
    let micros = |seconds: u64, micros| seconds.checked_mul(1_000_000)?.checked_add(micros);
    let time = number(0)
        .zip(number(1))
        .and_then(|(one, two)| micros(one, two));
    time.ok_or_else(|| RequestError::malformed("TIME", parts))
}

/// Reads the reply to `INFO`; `None` where that is forbidden.
fn run_id(info: &Reply) -> Option<String> {
    let mut lines = info.text()?.lines();
    lines.find_map(|line| Some(line.strip_prefix("run_id:")?.to_owned()))
}

fn version(hello: &Reply) -> Result<String, RequestError> {
    let said = |name| hello.field(name).and_then(Reply::text);
    let server = said("server").unwrap_or("redis");
    let version = said("version").unwrap_or("0");
    let major = version
        .split('.')
        .next()
        .and_then(|n| n.parse::<u32>().ok());
    if major.is_some_and(|major| major < 7) {
        return Err(RequestError::Refused(ServerError {
            kind: ServerErrorKind::Other,
            message: format!("{server} {version} is too old: version 7.0 is needed"),
        }));
    }
    Ok(format!("{server} {version}"))
}

/// Where the question itself is forbidden, the server counts as having none of them.
fn capabilities(commands: &Reply) -> Capabilities {
    let known = commands.list().unwrap_or_default();
    let has = |index: usize| known.get(index).is_some_and(|entry| *entry != Reply::Nil);
    Capabilities {
        delex: has(0),
        delifeq: has(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_address_and_no_password() {
        let url = "redis://user:secret@127.0.0.1:6380/3";
        let endpoint = Endpoint::new(url, &Tls::default(), Duration::from_secs(1)).unwrap();
        assert_eq!(format!("{endpoint:?}"), "127.0.0.1:6380");
        assert_eq!(format!("{:?}", endpoint.at("::1", 7)), "[::1]:7");
    }

    #[test]
    fn an_old_server_is_refused_by_name() {
        let text = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        let hello = ["server", "redis", "version", "6.2.14"].map(text).to_vec();
        let Err(RequestError::Refused(error)) = version(&Reply::List(hello)) else {
            panic!("accepted")
        };
        assert!(error.message.contains("6.2.14"));
    }

    #[test]
    fn a_clock_out_of_range_is_malformed() {
        let time = |seconds| server_time(&Reply::List(vec![Reply::Int(seconds), Reply::Int(1)]));
        assert_eq!(time(2).unwrap(), 2_000_001);
        assert!(time(-1).is_err());
        assert!(time(i64::MAX).is_err());
    }
}

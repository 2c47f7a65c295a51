//! How a connection is made: address, credentials, TLS, and the questions asked of a new server.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, PushInfo, TlsCertificates,
};

use super::answer::{failure_of, reply_of};
use super::command::Outgoing;
use super::reply::{Cause, Failure, Refusal, RefusalKind, Reply};
use super::{Batch, Capabilities, Command, Facts};
use crate::clock::Moment;

/// Room for requests on their way to the socket; beyond it callers wait their turn.
const QUEUE: usize = 1024;

/// What TLS connections trust and show.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// The certificate (PEM) that a server's must be signed by, in place of the system's.
    pub(crate) root_certificate: Option<Vec<u8>>,
    /// Certificate and key (PEM), for servers that ask who we are.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Believes whatever certificate a server has.
    pub(crate) trusts_all: bool,
}

/// What a server must be to be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Takes writes for all slots.
    Master,
    /// Belongs to a cluster, which says by itself who takes writes for what.
    Member,
}

/// Where the server is and how to be let in.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: Client,
    connect_timeout: Duration,
}

impl Endpoint {
    /// Understands `url`.
    pub(crate) fn new(url: &str, tls: &Tls, connect_timeout: Duration) -> Result<Self, Cause> {
        let info = connection_info(url, tls.trusts_all)?;
        let client = if is_tls(&info) {
            install_crypto_provider();
            let identity = tls.identity.clone();
            let certificates = TlsCertificates {
                client_tls: identity.map(|(client_cert, client_key)| ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
                root_cert: tls.root_certificate.clone(),
            };
            Client::build_with_tls(info, certificates)
        } else {
            Client::open(info)
        };
        Ok(Self {
            client: client.map_err(|error| Cause::from(error.to_string()))?,
            connect_timeout,
        })
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The host as it was given.
    pub(super) fn host(&self) -> String {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => "127.0.0.1".to_owned(),
        }
    }

    /// Another server that lets the same users in.
    pub(super) fn at(&self, host: &str, port: u16) -> Result<Self, Cause> {
        let info = self.client.get_connection_info().clone();
        let host = host.to_owned();
        let address = match info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let client = Client::open(info.set_addr(address));
        Ok(Self {
            client: client.map_err(|error| Cause::from(error.to_string()))?,
            connect_timeout: self.connect_timeout,
        })
    }

    /// Connects, logs in and asks the server what it is; `on_push` hears what it sends unasked. One that
    /// is not in its `role` is not connected to.
    pub(super) async fn connect(
        &self,
        name: &'static str,
        role: Role,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, Facts), Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_push_sender(move |info| {
                on_push(info);
                Ok::<(), ()>(())
            });
        let greeting = async {
            let connecting = self
                .client
                .get_multiplexed_async_connection_with_config(&config);
            let mut connection = connecting.await.map_err(|error| failure_of(&error))?;
            let facts = interview(&mut connection, name, role).await?;
            Ok((connection, facts))
        };
        let limit = self.connect_timeout;
        let greeted = tokio::time::timeout(limit, greeting).await;
        let late = |_| {
            Err(Failure::Unknown(
                format!("no answer within {limit:?}").into(),
            ))
        };
        greeted
            .unwrap_or_else(late)
            .map_err(|failure| self.not_connected(failure))
    }

    /// Nothing of ours was sent yet, so an unknown outcome of the greeting is no outcome.
    fn not_connected(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Unreachable(cause) | Failure::Unknown(cause) => {
                Failure::Unreachable(format!("{self:?}: {cause}").into())
            }
            other => other,
        }
    }
}

impl std::fmt::Debug for Endpoint {
    /// Shows the address without credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.client.get_connection_info().addr())
    }
}

fn connection_info(url: &str, trusts_all: bool) -> Result<ConnectionInfo, Cause> {
    // The driver's own words without the name it has for the kind of error.
    let refuse = |error: redis::RedisError| {
        let why = error.to_string();
        let why = why.split(" - ").next().unwrap_or_default();
        Cause::from(format!(
            "{why}; it looks like `redis://user:password@host:6379/0`"
        ))
    };
    let mut info = url.into_connection_info().map_err(refuse)?;
    if let ConnectionAddr::TcpTls {
        host,
        port,
        insecure,
        tls_params,
    } = info.addr().clone()
    {
        if insecure {
            return Err("`#insecure` does not turn off verification, only code does".into());
        }
        info = info.set_addr(ConnectionAddr::TcpTls {
            host,
            port,
            insecure: trusts_all,
            tls_params,
        });
    }
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
}

fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. })
}

/// Without a process-wide choice rustls panics; an application that chose keeps its choice.
fn install_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

async fn interview(
    connection: &mut MultiplexedConnection,
    name: &'static str,
    role: Role,
) -> Result<Facts, Failure> {
    const OPTIONAL: [&str; 2] = ["DELEX", "DELIFEQ"];

    let questions = [
        Command::new("HELLO"),
        Command::new("TIME"),
        OPTIONAL
            .iter()
            .fold(Command::new("COMMAND").arg("INFO"), |ask, name| {
                ask.arg(name)
            }),
        Command::new("CLIENT").arg("SETNAME").arg(name),
    ];
    let questions = Outgoing::from(questions.into_iter().collect::<Batch>());
    let pipeline = questions.pipeline();
    let values = connection
        .send_packed_commands(pipeline, 0, pipeline.len())
        .await
        .map_err(|error| failure_of(&error))?;
    let read_at = Moment::now();
    let answers: Vec<Reply> = values.into_iter().map(reply_of).collect();
    let [hello, time, commands, ..] = answers.as_slice() else {
        return Err(Failure::malformed("the greeting", &answers));
    };
    if let Reply::Refused(refusal) = hello {
        return Err(Failure::Refused(refusal.clone()));
    }
    check_role(hello, role)?;
    Ok(Facts {
        server_time: server_time(time)?,
        read_at,
        version: version(hello)?,
        capabilities: capabilities(commands),
    })
}

/// Says what to do where the server is another than it was taken for.
fn check_role(hello: &Reply, role: Role) -> Result<(), Failure> {
    let told = |name| hello.field(name).and_then(Reply::text);
    let why = match (told("mode"), told("role"), role) {
        (Some("sentinel"), ..) => {
            "it is a sentinel; the URL for that is `redis+sentinel://host/group`"
        }
        (Some("cluster"), _, Role::Master) => {
            "it belongs to a cluster; the URL for that is `redis+cluster://host`"
        }
        (Some("standalone"), _, Role::Member) => {
            "it belongs to no cluster; the URL for that is `redis://host`"
        }
        (_, Some("replica" | "slave"), Role::Master) => {
            "it is a replica; give its master's URL, or that of its sentinels"
        }
        _ => return Ok(()),
    };
    Err(Failure::Unreachable(why.into()))
}

fn server_time(time: &Reply) -> Result<u64, Failure> {
    if let Reply::Refused(refusal) = time {
        return Err(Failure::Refused(refusal.clone()));
    }
    let parts = time.list().unwrap_or_default();
    let numbers: Vec<i64> = parts.iter().filter_map(Reply::int).collect();
    match numbers.as_slice() {
        [seconds, micros] => Ok(u64::try_from(seconds * 1_000_000 + micros).unwrap_or(0)),
        _ => Err(Failure::malformed("TIME", parts)),
    }
}

fn version(hello: &Reply) -> Result<String, Failure> {
    let told = |name| hello.field(name).and_then(Reply::text);
    let server = told("server").unwrap_or("redis");
    let version = told("version").unwrap_or("0");
    let major = version
        .split('.')
        .next()
        .and_then(|n| n.parse::<u32>().ok());
    if major.is_some_and(|major| major < 7) {
        return Err(Failure::Refused(Refusal {
            kind: RefusalKind::Other,
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

    fn endpoint(url: &str) -> Result<Endpoint, Cause> {
        Endpoint::new(url, &Tls::default(), Duration::from_secs(1))
    }

    #[test]
    fn every_scheme_is_understood() {
        for url in [
            "redis://127.0.0.1",
            "redis://user:secret@127.0.0.1:6380/3",
            "rediss://127.0.0.1",
            "valkey://127.0.0.1",
            "valkeys://127.0.0.1",
            "unix:///run/redis.sock",
            "redis+unix:///run/redis.sock?db=1&user=u&pass=secret",
        ] {
            endpoint(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        }
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        for url in [
            "http://u:secret@host",
            "redis://u:secret@host:port",
            "secret",
        ] {
            let error = endpoint(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_url_cannot_turn_off_verification() {
        assert!(endpoint("rediss://127.0.0.1/#insecure").is_err());
    }

    #[test]
    fn debug_shows_the_address_and_no_password() {
        let endpoint = endpoint("redis://user:secret@127.0.0.1:6380/3").unwrap();
        assert_eq!(format!("{endpoint:?}"), "127.0.0.1:6380");
    }

    #[test]
    fn an_old_server_is_refused_by_name() {
        let hello = Reply::List(vec![
            Reply::Bytes(b"server".to_vec()),
            Reply::Bytes(b"redis".to_vec()),
            Reply::Bytes(b"version".to_vec()),
            Reply::Bytes(b"6.2.14".to_vec()),
        ]);
        let Err(Failure::Refused(refusal)) = version(&hello) else {
            panic!("accepted")
        };
        assert!(refusal.message.contains("6.2.14"));
    }
}

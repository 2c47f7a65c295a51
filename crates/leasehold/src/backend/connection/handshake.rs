//! The handshake of a new connection.

use super::request::{Deadline, Unanswered};
use super::wire::Wire;
use crate::backend::{
    Batch, Capabilities, Reply, RequestError, ServerError, ServerErrorKind, ServerFacts,
};
use crate::credentials::Credentials;
use crate::info::Messages;
use crate::time::BootInstant;

const NEEDS_RESP3: &str = "the server does not speak RESP3, which Redis 7.0 and Valkey do";

/// A channel that users may publish to and no client subscribes to.
const PROBE_CHANNEL: &str = "leasehold:probe";

/// The role that a server must have to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A server that accepts writes for all slots.
    Master,
    /// A master that is a node of a quorum.
    QuorumNode,
    /// A node of a cluster. The cluster itself routes writes to masters.
    Member,
    /// A replica. We only read its clock.
    Replica,
    /// A sentinel.
    Sentinel,
}

impl Role {
    /// Returns whether locks are stored there, and messages published.
    fn stores_locks(self) -> bool {
        match self {
            Self::Master | Self::QuorumNode | Self::Member => true,
            Self::Replica | Self::Sentinel => false,
        }
    }
}

/// What the handshake sends.
pub(super) struct Login<'a> {
    pub(super) credentials: &'a Credentials,
    pub(super) database: u32,
    /// The connection's name in `CLIENT LIST`.
    pub(super) name: &'static str,
    pub(super) role: Role,
}

/// Logs in and reads the server's facts, in one round trip. A server without
/// sharded channels takes a second one.
pub(super) async fn handshake(wire: &Wire, login: Login<'_>) -> Result<ServerFacts, RequestError> {
    let role = login.role;
    let hello = hello(login.credentials);
    let facts = questions(&login);
    // Two requests: a server that has too many clients replies to the first
    // command only, and closes the connection.
    let (hello, replies) = tokio::join!(
        // Connecting has a timeout of its own.
        wire.request(&hello, Deadline::NEVER),
        wire.request(&facts, Deadline::NEVER),
    );
    // After the reply: the estimate of the server's clock is then late, and
    // never ahead of it.
    let read_at = BootInstant::now();
    let closed = |unanswered| match unanswered {
        Unanswered::Closed(reason) => RequestError::Unreachable(reason.to_string().into()),
        Unanswered::TimedOut => RequestError::Unreachable("no reply".into()),
    };
    let hello = hello.map_err(closed)?.remove(0);
    if let Reply::Refused(error) = &hello {
        return Err(RequestError::Refused(login_error(error)));
    }
    // RESP2 has no pushes: a message would look like a reply.
    check_protocol(&hello)?;
    let replies = replies.map_err(closed)?;
    check_role(&hello, role)?;
    if login.database > 0 {
        check(&replies[replies.len() - 1])?;
    }
    let (server_time, capabilities) = match role {
        Role::Sentinel => (0, Capabilities::default()),
        Role::Master | Role::QuorumNode | Role::Member | Role::Replica => {
            // Seals need permission for `ECHO`.
            require("ECHO", &replies[3])?;
            (server_time(&replies[0])?, capabilities(&replies[1]))
        }
    };
    let messages = match role.stores_locks() {
        true => messages(wire, role, &replies[4]).await.map_err(closed)?,
        false => Messages::default(),
    };
    let capabilities = Capabilities {
        messages,
        ..capabilities
    };
    Ok(ServerFacts {
        server_time,
        read_at,
        version: version(&hello)?,
        run_id: match role {
            Role::QuorumNode => run_id(&replies[5]),
            _ => None,
        },
        capabilities,
    })
}

/// Returns what we ask after the login.
fn questions(login: &Login<'_>) -> Batch {
    let (role, name) = (login.role, login.name);
    let mut commands = Vec::new();
    if role != Role::Sentinel {
        commands.push(Batch::new("TIME"));
        commands.push(
            Batch::new("COMMAND")
                .arg("INFO")
                .arg("DELEX")
                .arg("DELIFEQ"),
        );
        commands.push(Batch::new("CLIENT").arg("SETNAME").arg(name));
        commands.push(Batch::new("ECHO").arg(name));
    }
    if role.stores_locks() {
        // Tells all that matters at once: whether the server knows the command,
        // and whether the user may send it, and use our channels. `COMMAND
        // INFO` tells only the first.
        commands.push(publish_probe("SPUBLISH"));
    }
    if role == Role::QuorumNode {
        commands.push(Batch::new("INFO").arg("server"));
    }
    if login.database > 0 {
        commands.push(Batch::new("SELECT").number(u64::from(login.database)));
    }
    commands.into_iter().collect()
}

fn publish_probe(command: &str) -> Batch {
    Batch::new(command).arg(PROBE_CHANNEL).arg("")
}

/// Decides how messages reach subscribers, given the reply to a probe of
/// `SPUBLISH`.
async fn messages(wire: &Wire, role: Role, sharded: &Reply) -> Result<Messages, Unanswered> {
    // A cluster's redirection, or an error that passes, shows that the command
    // exists.
    if !lacks_command(sharded) {
        return Ok(Messages::Sharded);
    }
    // A cluster would broadcast each classic message to all of its nodes.
    if role == Role::Member {
        return Ok(Messages::Polled);
    }
    let probe = publish_probe("PUBLISH");
    let classic = wire.request(&probe, Deadline::NEVER).await?;
    Ok(match classic.iter().any(lacks_command) {
        true => Messages::Polled,
        false => Messages::Classic,
    })
}

fn lacks_command(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(error) if error.lacks_command())
}

fn hello(credentials: &Credentials) -> Batch {
    let hello = Batch::new("HELLO").arg("3");
    match credentials.login() {
        None => hello,
        Some((user, password)) => hello.arg("AUTH").arg(user).arg(password),
    }
}

/// Returns whether the server did not accept the user and the password, or
/// requires some.
pub(super) fn is_login_refused(error: &ServerError) -> bool {
    ["WRONGPASS", "NOAUTH"]
        .iter()
        .any(|code| error.message.starts_with(code))
}

/// Describes why `HELLO` was refused, without the server's own words: a server
/// that does not know `HELLO` quotes the arguments, and so the password.
pub(super) fn login_error(error: &ServerError) -> ServerError {
    let code = error.message.split(' ').next().unwrap_or_default();
    let (kind, message) = match code {
        "WRONGPASS" => (error.kind, "WRONGPASS: wrong user name or password"),
        "NOAUTH" => (error.kind, "NOAUTH: the server requires a password"),
        "NOPERM" => (error.kind, "NOPERM: the user lacks permission for `HELLO`"),
        "DENIED" => (
            ServerErrorKind::Denied,
            "DENIED: the server is in protected mode, which needs a password or a local client",
        ),
        "LOADING" => (error.kind, "LOADING: the server is loading its data"),
        "BUSY" => (error.kind, "BUSY: the server is running a slow script"),
        "MASTERDOWN" => (error.kind, "MASTERDOWN: the replica has lost its master"),
        "NOPROTO" => (ServerErrorKind::Unsupported, NEEDS_RESP3),
        _ if error.message.contains("max number of clients") => (
            ServerErrorKind::Temporary,
            "the server has reached its maximum number of clients",
        ),
        _ if error.message.contains("unknown command") => (
            ServerErrorKind::Unsupported,
            "the server does not know `HELLO`: Redis 7.0 or Valkey with RESP3 is needed",
        ),
        _ => (
            match error.kind {
                // A proxy's own words, such as "command not supported".
                ServerErrorKind::Other => ServerErrorKind::Unsupported,
                kind => kind,
            },
            "the server refused `HELLO 3`, which starts RESP3; its message is not shown, since it \
             can quote the password",
        ),
    };
    let message = message.to_owned();
    ServerError { kind, message }
}

/// Fails if the server, or a proxy, continues with RESP2.
fn check_protocol(hello: &Reply) -> Result<(), RequestError> {
    match hello.field("proto").and_then(Reply::int) {
        Some(3) => Ok(()),
        _ => Err(unsupported(NEEDS_RESP3.to_owned())),
    }
}

fn unsupported(message: String) -> RequestError {
    let kind = ServerErrorKind::Unsupported;
    RequestError::Refused(ServerError { kind, message })
}

/// Fails if the server refused `command`, without which we cannot use it.
fn require(command: &str, reply: &Reply) -> Result<(), RequestError> {
    match reply {
        Reply::Refused(error) if error.kind == ServerErrorKind::Other => Err(unsupported(format!(
            "the server does not support `{command}`, which every connection needs: {error}"
        ))),
        reply => check(reply),
    }
}

fn check(reply: &Reply) -> Result<(), RequestError> {
    match reply {
        Reply::Refused(error) => Err(RequestError::Refused(error.clone())),
        _ => Ok(()),
    }
}

/// Fails if the server does not have `role`. The error names the URL to use
/// instead.
fn check_role(hello: &Reply, role: Role) -> Result<(), RequestError> {
    let field = |name| hello.field(name).and_then(Reply::text);
    let reason = match (field("mode"), field("role"), role) {
        (_, _, Role::Sentinel) => return Ok(()),
        (Some("sentinel"), ..) => "the server is a sentinel; use `redis+sentinel://host/group`",
        (Some("cluster"), _, Role::Master | Role::QuorumNode) => {
            "the server is a cluster node; use `redis+cluster://host`"
        }
        (Some("standalone"), _, Role::Member) => {
            "the server is not a cluster node; use `redis://host`"
        }
        (_, Some("replica" | "slave"), Role::Master | Role::QuorumNode) => {
            "the server is a replica; use the URL of its master or of its sentinels"
        }
        _ => return Ok(()),
    };
    Err(RequestError::Unreachable(reason.into()))
}

fn server_time(time: &Reply) -> Result<u64, RequestError> {
    require("TIME", time)?;
    time.time()
        .ok_or_else(|| RequestError::malformed("TIME", std::slice::from_ref(time)))
}

/// Returns the `run_id` of an `INFO` reply, or `None` if an ACL denies `INFO`.
fn run_id(info: &Reply) -> Option<String> {
    let mut lines = info.text()?.lines();
    lines.find_map(|line| Some(line.strip_prefix("run_id:")?.to_owned()))
}

fn version(hello: &Reply) -> Result<String, RequestError> {
    let field = |name| hello.field(name).and_then(Reply::text);
    let server = field("server").unwrap_or("redis");
    let version = field("version").unwrap_or("0");
    let major = version
        .split('.')
        .next()
        .and_then(|n| n.parse::<u32>().ok());
    if major.is_some_and(|major| major < 7) {
        return Err(unsupported(format!(
            "{server} {version} is below the minimum version 7.0"
        )));
    }
    Ok(format!("{server} {version}"))
}

/// Reads the reply to `COMMAND INFO`. If an ACL denies it, no optional command
/// is used.
fn capabilities(commands: &Reply) -> Capabilities {
    let known = commands.list().unwrap_or_default();
    let has = |index: usize| known.get(index).is_some_and(|entry| *entry != Reply::Nil);
    Capabilities {
        delex: has(0),
        delifeq: has(1),
        ..Capabilities::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_server_is_rejected_with_its_version() {
        let text = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        let hello = ["server", "redis", "version", "6.2.14"].map(text).to_vec();
        let Err(RequestError::Refused(error)) = version(&Reply::List(hello)) else {
            panic!("accepted")
        };
        assert!(error.message.contains("6.2.14"));
    }

    #[test]
    fn clock_out_of_range_is_malformed() {
        let time = |seconds| server_time(&Reply::List(vec![Reply::Int(seconds), Reply::Int(1)]));
        assert_eq!(time(2).unwrap(), 2_000_001);
        assert!(time(-1).is_err());
        assert!(time(i64::MAX).is_err());
    }
}

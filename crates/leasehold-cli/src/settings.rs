//! Settings from the command line, the environment and a file, in this order of
//! precedence; and connections with these settings.

use std::env::VarError;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Client, Connect, Error, Quorum};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::args::ServerArgs;
use crate::duration;
use crate::output::CliError;
use crate::password::{Login, PasswordSettings};

/// The lease of a client that sets none.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The least time to connect if a password command runs first.
const SLOW_LOGIN: Duration = Duration::from_secs(10);

/// The contents of a configuration file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    url: Option<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    password_command: Option<String>,
    prefix: Option<String>,
    #[serde(deserialize_with = "read_duration")]
    lease: Option<Duration>,
    #[serde(deserialize_with = "read_duration")]
    request_timeout: Option<Duration>,
    /// The path of a PEM file, like the two below.
    root_certificate: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_key: Option<PathBuf>,
    tls_name: Option<String>,
}

impl ConfigFile {
    /// Parses a file. The error names the line and the key, and doesn't quote
    /// the line: it can contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let why = error.message();
            let Some(span) = error.span() else {
                return why.to_owned();
            };
            let before = text.get(..span.start).unwrap_or(text);
            let number = before.matches('\n').count() + 1;
            let line = text.lines().nth(number - 1).unwrap_or_default();
            let key = line.split_once('=').map_or("", |(key, _)| key.trim());
            let is_key = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            match key.chars().all(is_key) && !why.contains(key) {
                true => format!("line {number}: invalid `{key}`: {why}"),
                false => format!("line {number}: {why}"),
            }
        })
    }
}

/// Reads a duration such as `30s`.
fn read_duration<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(value)?;
    duration::parse(&text).map(Some).map_err(D::Error::custom)
}

/// The effective settings.
pub(crate) struct Settings {
    /// There is no default: a lock on the wrong server protects nothing.
    url: Option<String>,
    login: Option<Login>,
    prefix: Option<String>,
    pub(crate) lease: Option<Duration>,
    pub(crate) request_timeout: Option<Duration>,
    root_certificate: Option<Vec<u8>>,
    client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    tls_name: Option<String>,
}

impl Settings {
    pub(crate) fn load(args: &ServerArgs) -> Result<Self, CliError> {
        let path = config_path(args);
        let file = path.as_deref().map(load_file).transpose()?;
        let file = file.unwrap_or_default();
        let timeout = variable("LEASEHOLD_REQUEST_TIMEOUT")?
            .map(|text| duration::parse(&text))
            .transpose()
            .map_err(|why| CliError::usage(format!("invalid LEASEHOLD_REQUEST_TIMEOUT: {why}")))?;
        let certificate = read_pem("client_certificate", file.client_certificate.as_deref())?;
        let key = read_pem("client_key", file.client_key.as_deref())?;
        if certificate.is_some() != key.is_some() {
            let path = path.unwrap_or_default();
            return Err(CliError::usage(format!(
                "{}: `client_certificate` and `client_key` must be set together",
                path.display()
            )));
        }
        let passwords = [
            PasswordSettings {
                file: args.password_file.clone(),
                command: args.password_command.clone(),
            },
            PasswordSettings {
                file: path_variable("LEASEHOLD_PASSWORD_FILE"),
                command: variable("LEASEHOLD_PASSWORD_COMMAND")?,
            },
            PasswordSettings {
                file: file.password_file,
                command: file.password_command,
            },
        ];
        let user = option_or("LEASEHOLD_USER", args.user.as_ref())?;
        Ok(Self {
            login: Login::new(user.or(file.user), passwords)?,
            url: option_or("LEASEHOLD_URL", args.url.as_ref())?.or(file.url),
            prefix: args.prefix.clone().or(file.prefix),
            lease: file.lease,
            request_timeout: args.request_timeout.or(timeout).or(file.request_timeout),
            root_certificate: read_pem("root_certificate", file.root_certificate.as_deref())?,
            client_certificate: certificate.zip(key),
            tls_name: args.tls_name.clone().or(file.tls_name),
        })
    }

    /// Connects to the configured server. `lease` overrides the configured
    /// lease.
    pub(crate) async fn connect(&self, lease: Option<Duration>) -> Result<Client, CliError> {
        let url = self.url.as_ref().ok_or_else(|| {
            CliError::usage("no server is configured")
                .with_hint("set LEASEHOLD_URL=redis://HOST:6379, or use --url")
        })?;
        let connect = self.apply(Client::connect(url), lease);
        connect.await.map_err(rejected_at_login)
    }

    /// Returns whether the prefix is empty, so a scan finds every key of the
    /// server.
    pub(crate) fn has_empty_prefix(&self) -> bool {
        self.prefix.as_deref() == Some("")
    }

    /// Returns the connect of a quorum of these servers.
    pub(crate) fn quorum(&self, urls: &[String], lease: Option<Duration>) -> Connect<Quorum> {
        self.apply(Quorum::connect(urls), lease)
    }

    fn apply<C>(&self, mut connect: Connect<C>, lease: Option<Duration>) -> Connect<C> {
        if let Some(prefix) = &self.prefix {
            connect = connect.prefix(prefix);
        }
        if let Some(lease) = lease.or(self.lease) {
            connect = connect.lease(lease);
        }
        if let Some(timeout) = self.request_timeout {
            connect = connect.request_timeout(timeout);
        }
        let limit = self
            .request_timeout
            .map(|timeout| timeout.saturating_mul(2));
        let is_slow = self.login.as_ref().is_some_and(Login::is_slow);
        if let Some(limit) = limit.max(is_slow.then_some(SLOW_LOGIN)) {
            connect = connect.connect_timeout(limit);
        }
        if let Some(login) = &self.login {
            connect = login.apply(connect);
        }
        if let Some(certificate) = &self.root_certificate {
            connect = connect.root_certificate(certificate.clone());
        }
        if let Some((certificate, key)) = &self.client_certificate {
            connect = connect.client_certificate(certificate.clone(), key.clone());
        }
        if let Some(name) = &self.tls_name {
            connect = connect.tls_name(name);
        }
        // Tools that trace a script pass their trace on in this variable.
        connect.trace_parent(|| std::env::var("TRACEPARENT").ok())
    }
}

/// Converts an error of a connect. `doctor` could not connect either, so a
/// refusal does not suggest it.
pub(crate) fn rejected_at_login(error: Error) -> CliError {
    let hint = match &error {
        Error::Denied(why) if why.to_string().contains("WRONGPASS") => {
            "check the user and the password in the URL; a server without a password has the user `default` only"
        }
        Error::Denied(why) if why.to_string().contains("NOAUTH") => {
            "the server requires a login: redis://USER:PASSWORD@HOST, or --password-file"
        }
        Error::Denied(_) => {
            "check the user and the password in the URL; required ACL rules: https://github.com/leasehold/leasehold/blob/main/docs/servers.md#permissions"
        }
        Error::Invalid { why, .. } if why.contains("has no password") => {
            "for a user with `nopass`, write any password"
        }
        _ => return error.into(),
    };
    CliError::from(error).with_hint(hint)
}

/// Returns the value of an environment variable, unless it is empty. A value
/// that is not UTF-8 is an error: the file may name another server.
fn variable(name: &str) -> Result<Option<String>, CliError> {
    match std::env::var(name) {
        Err(VarError::NotUnicode(_)) => {
            Err(CliError::usage(format!("invalid {name}: it is not UTF-8")))
        }
        value => Ok(value.ok().filter(|value| !value.is_empty())),
    }
}

/// Returns the value of an option, or else of a variable.
fn option_or(name: &str, option: Option<&String>) -> Result<Option<String>, CliError> {
    match option {
        Some(option) => Ok(Some(option.clone())),
        None => variable(name),
    }
}

fn path_variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name)?;
    (!value.is_empty()).then(|| value.into())
}

fn config_path(args: &ServerArgs) -> Option<PathBuf> {
    if let Some(path) = &args.config {
        return Some(path.clone());
    }
    if let Some(path) = path_variable("LEASEHOLD_CONFIG") {
        return Some(path);
    }
    let home_folder = || path_variable("HOME").map(|home| home.join(".config"));
    let user_folder = path_variable("XDG_CONFIG_HOME").or_else(home_folder);
    let user_file = user_folder.map(|folder| folder.join("leasehold.toml"));
    let mut candidates = user_file
        .into_iter()
        .chain([PathBuf::from("/etc/leasehold.toml")]);
    candidates.find(|path| may_exist(path))
}

/// Returns whether a file exists, or may exist where this user cannot see it.
/// We must not fall through to another file then: it may name another server.
fn may_exist(path: &Path) -> bool {
    match path.try_exists() {
        Ok(exists) => exists,
        // A `HOME` such as /dev/null.
        Err(error) => error.kind() != ErrorKind::NotADirectory,
    }
}

fn load_file(path: &Path) -> Result<ConfigFile, CliError> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    ConfigFile::parse(&text).map_err(|why| CliError::usage(format!("{}, {why}", path.display())))
}

/// Reads the file that `key` names.
fn read_pem(key: &str, path: Option<&Path>) -> Result<Option<Vec<u8>>, CliError> {
    let pem = path.map(std::fs::read).transpose();
    pem.map_err(|error| {
        let path = path.unwrap_or(Path::new(""));
        CliError::usage(format!("cannot read `{key}`, {}: {error}", path.display()))
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::usage(format!("cannot read {}: {error}", path.display()))
}

//! Parsers for the URLs of all topologies.
//!
//! Errors name the invalid part, and don't repeat it: a character of a password
//! that is not encoded can make any part contain the password.

use std::path::PathBuf;
use std::str::FromStr;

use crate::credentials::Credentials;
use crate::error::BoxError;

/// The expected form of a server URL.
const EXPECTED_FORM: &str = "expected `redis://user:password@host:6379/0`";

// The usual cause of these is a password that is not encoded.
const INVALID_PORT: &str = "the port is not a number up to 65535; \
                            in a password, write `/` as `%2F` and `@` as `%40`";
const UNEXPECTED_QUERY: &str = "unexpected query or fragment; \
                                in a password, write `?` as `%3F` and `#` as `%23`";
const INVALID_DATABASE: &str = "the database is not a number; \
                                in a password, write `/` as `%2F`";

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    Tcp {
        host: String,
        port: u16,
        is_tls: bool,
    },
    Unix(PathBuf),
}

/// The URL of one server.
#[derive(Clone)]
pub(crate) struct ServerUrl {
    pub(crate) address: ServerAddress,
    pub(crate) credentials: Credentials,
    pub(crate) database: u32,
}

impl ServerUrl {
    /// Parses the URL of one server.
    pub(crate) fn parse(url: &str) -> Result<Self, BoxError> {
        let (scheme, rest) = url.split_once("://").ok_or(EXPECTED_FORM)?;
        match scheme {
            "redis" | "valkey" => Self::parse_tcp(rest, false),
            "rediss" | "valkeys" => Self::parse_tcp(rest, true),
            "unix" | "redis+unix" | "valkey+unix" => Self::parse_unix(rest),
            _ => Err(format!("unknown scheme; {EXPECTED_FORM}").into()),
        }
    }

    /// Parses `user:password@host:port/database`.
    fn parse_tcp(rest: &str, is_tls: bool) -> Result<Self, BoxError> {
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        if fragment == "insecure" {
            return Err("`#insecure` does not disable certificate verification; \
                        use `dangerously_trust_any_certificate`"
                .into());
        }
        if !fragment.is_empty() || rest.contains('?') {
            return Err(UNEXPECTED_QUERY.into());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The last `@`, since a password may contain one.
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (host, port) = host_and_port(host)?;
        Ok(Self {
            address: ServerAddress::Tcp { host, port, is_tls },
            credentials: login_credentials(login)?,
            database: database(path)?,
        })
    }

    /// Parses `/path/to/socket?db=0&user=…&pass=…`.
    fn parse_unix(rest: &str) -> Result<Self, BoxError> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = percent_decode(path)?;
        if path.is_empty() {
            return Err("expected `unix:///run/redis.sock`".into());
        }
        if cfg!(not(unix)) {
            return Err("Unix sockets are not supported on this platform".into());
        }
        let (mut user, mut password, mut number) = (String::new(), String::new(), 0);
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=').unwrap_or((setting, "")) {
                ("db", value) => number = database(value)?,
                ("user", value) => user = percent_decode(value)?,
                ("pass", value) => password = percent_decode(value)?,
                _ => return Err("unknown query parameter; expected `db`, `user` or `pass`".into()),
            }
        }
        Ok(Self {
            address: ServerAddress::Unix(path.into()),
            credentials: credentials(user, password)?,
            database: number,
        })
    }
}

fn host_and_port(authority: &str) -> Result<(String, u16), BoxError> {
    let (host, port) = match authority.strip_prefix('[') {
        // An IPv6 address contains colons.
        Some(rest) => {
            let (host, rest) = rest
                .split_once(']')
                .ok_or("the host has no `]` after `[`")?;
            match (rest, rest.strip_prefix(':')) {
                ("", _) => (host, None),
                (_, Some(port)) => (host, Some(port)),
                _ => return Err("expected `:` and a port after the host's `]`".into()),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        Some(port) => number(port).ok_or(INVALID_PORT)?,
        None => 6379,
    };
    let host = percent_decode(host)?;
    if host.is_empty() {
        return Err(format!("the host is missing; {EXPECTED_FORM}").into());
    }
    match host.contains(char::is_whitespace) {
        true => Err("the host contains white space".into()),
        false => Ok((host, port)),
    }
}

/// Parses `user:password`.
fn login_credentials(login: &str) -> Result<Credentials, BoxError> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    credentials(percent_decode(user)?, percent_decode(password)?)
}

fn credentials(user: String, password: String) -> Result<Credentials, BoxError> {
    match (user.is_empty(), password.is_empty()) {
        (true, true) => Ok(Credentials::none()),
        // The server would log us in as the default user instead.
        (false, true) => Err("the user name has no password; \
                              expected `redis://user:password@host`"
            .into()),
        (true, false) => Ok(Credentials::default_user(password)),
        (false, false) => Ok(Credentials::new(user, password)),
    }
}

fn database(path: &str) -> Result<u32, BoxError> {
    match path.trim_end_matches('/') {
        "" => Ok(0),
        digits => Ok(number(digits).ok_or(INVALID_DATABASE)?),
    }
}

/// Parses digits. Unlike [`str::parse`], rejects a sign.
fn number<T: FromStr>(digits: &str) -> Option<T> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Decodes `%` followed by two hexadecimal digits.
fn percent_decode(text: &str) -> Result<String, BoxError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'%' => {
                const INVALID: &str = "`%` must be followed by two hexadecimal digits";
                let ([high, low], after) = rest.split_first_chunk().ok_or(INVALID)?;
                rest = after;
                let digit = |digit: &u8| char::from(*digit).to_digit(16).ok_or(INVALID);
                u8::try_from(16 * digit(high)? + digit(low)?).map_err(|_| INVALID)?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "what `%` encodes is not UTF-8".into())
}

/// A URL with several hosts:
/// `scheme://credentials@host:port,host:port/path?query`.
pub(crate) struct MultiHostUrl<'a> {
    scheme: &'a str,
    /// Including the `@`; empty without credentials.
    pub(crate) credentials: String,
    hosts: Vec<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) query: Vec<(&'a str, &'a str)>,
}

impl<'a> MultiHostUrl<'a> {
    /// Parses what follows `scheme+topology://`. Returns `None` if a host is
    /// empty.
    pub(crate) fn parse(scheme: &'a str, rest: &'a str) -> Option<Self> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), authority),
        };
        let hosts: Vec<_> = hosts.split(',').collect();
        let query = query.split('&').filter(|pair| !pair.is_empty());
        let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        hosts.iter().all(|host| !host.is_empty()).then(|| Self {
            scheme,
            credentials,
            hosts,
            path,
            query: query.collect(),
        })
    }

    /// Returns one URL per host. `port` is the default port.
    pub(crate) fn urls(&self, credentials: &str, port: u16) -> Vec<String> {
        let url = |host: &&str| {
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.contains(']'));
            let port = if has_port {
                String::new()
            } else {
                format!(":{port}")
            };
            format!("{}://{credentials}{host}{port}/", self.scheme)
        };
        self.hosts.iter().map(url).collect()
    }

    /// Returns a URL with these credentials and a placeholder address.
    pub(super) fn placeholder(&self, database: &str) -> String {
        let (scheme, credentials) = (self.scheme, &self.credentials);
        format!("{scheme}://{credentials}127.0.0.1:6379/{database}")
    }

    /// Fails if a parameter is not `known`. The error does not repeat it.
    pub(crate) fn check_parameters(&self, known: &[&str]) -> Result<(), BoxError> {
        match self.query.iter().all(|(name, _)| known.contains(name)) {
            true => Ok(()),
            false => Err("unknown query parameter".into()),
        }
    }

    pub(crate) fn parameter(&self, name: &str) -> &'a str {
        let found = self.query.iter().find(|(at, _)| *at == name);
        found.map_or("", |(_, value)| value)
    }
}

/// A sentinel URL, split into URLs of single servers. It contains passwords,
/// so it has no `Debug` output.
pub(super) struct SentinelUrl {
    /// The group's name, as configured in the sentinels.
    pub(super) group: String,
    /// A URL with the members' credentials and database. The address is a
    /// placeholder.
    pub(super) member: String,
    pub(super) sentinels: Vec<String>,
}

impl SentinelUrl {
    pub(super) fn parse(scheme: &str, rest: &str) -> Result<Self, BoxError> {
        const EXPECTED_FORM: &str =
            "expected `redis+sentinel://user:password@host:26379,host:26379/group/0`";
        let hosts = MultiHostUrl::parse(scheme, rest).ok_or(EXPECTED_FORM)?;
        hosts.check_parameters(&["sentinel_username", "sentinel_password"])?;
        let (group, database) = hosts.path.split_once('/').unwrap_or((hosts.path, ""));
        if group.is_empty() {
            return Err(EXPECTED_FORM.into());
        }
        let own = match (
            hosts.parameter("sentinel_username"),
            hosts.parameter("sentinel_password"),
        ) {
            ("", "") => String::new(),
            (_, "") => return Err("`sentinel_username` has no `sentinel_password`".into()),
            (user, password) => format!("{user}:{password}@"),
        };
        Ok(Self {
            group: percent_decode(group)?,
            // The sentinels name the actual address.
            member: hosts.placeholder(database),
            sentinels: hosts.urls(&own, 26379),
        })
    }
}

/// Splits a cluster URL into the URLs of its hosts.
pub(super) fn cluster_urls(scheme: &str, rest: &str) -> Result<Vec<String>, BoxError> {
    const EXPECTED_FORM: &str = "expected `redis+cluster://user:password@host:6379,host:6379`";
    let hosts = MultiHostUrl::parse(scheme, rest).ok_or(EXPECTED_FORM)?;
    hosts.check_parameters(&[])?;
    match hosts.path {
        "" => Ok(hosts.urls(&hosts.credentials, 6379)),
        _ => Err("a cluster has only one database; remove the path".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(url: &str) -> (String, u16, bool) {
        match ServerUrl::parse(url).map(|url| url.address) {
            Ok(ServerAddress::Tcp { host, port, is_tls }) => (host, port, is_tls),
            other => panic!("{url}: {:?}", other.err()),
        }
    }

    #[test]
    fn host_and_port_are_parsed() {
        assert_eq!(tcp("redis://host"), ("host".to_owned(), 6379, false));
        assert_eq!(tcp("valkeys://h:1/"), ("h".to_owned(), 1, true));
        assert_eq!(tcp("rediss://[::1]:7/2"), ("::1".to_owned(), 7, true));
        assert_eq!(tcp("redis://u:p@[::1]"), ("::1".to_owned(), 6379, false));
    }

    #[test]
    fn credentials_are_decoded() {
        let login = |url| {
            let credentials = ServerUrl::parse(url).unwrap().credentials;
            let login = credentials.login();
            login.map(|(user, password)| (user.to_owned(), password.to_owned()))
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(login("redis://u:a%40b%2F@h"), pair("u", "a@b/"));
        assert_eq!(login("redis://:p@h"), pair("default", "p"));
        assert_eq!(login("redis://u:p@x@h"), pair("u", "p@x"));
        for url in ["redis://h", "redis://@h", "redis://:@h", "unix:///s?pass="] {
            assert_eq!(login(url), None, "{url}");
        }
        let socket = "redis+unix:///run/r.sock?db=1&user=u&pass=p%26";
        assert_eq!(login(socket), pair("u", "p&"));
        assert_eq!(ServerUrl::parse(socket).unwrap().database, 1);
    }

    /// The server logged in the default user instead.
    #[test]
    fn user_without_password_is_rejected() {
        for url in ["redis://u@h", "redis://u:@h", "unix:///s?user=u"] {
            let error = ServerUrl::parse(url).err().map(|error| error.to_string());
            let names_user = error.is_some_and(|error| error.contains("user name"));
            assert!(names_user, "{url}");
        }
        let error = SentinelUrl::parse("redis", "h/group?sentinel_username=u").err();
        assert!(error.unwrap().to_string().contains("`sentinel_username`"));
    }

    #[test]
    fn invalid_part_is_named_and_not_repeated() {
        for (url, part) in [
            ("http://u:secret@host", "scheme"),
            ("secret", "expected `redis://"),
            ("redis://u:secret@host:port", "port"),
            ("redis://u:secret@host:+1", "port"),
            ("redis://u:secret@host:65536", "port"),
            ("redis://u:secret/1@host", "port"),
            ("redis://u:secret@", "host is missing"),
            ("redis://u:secret@:1", "host is missing"),
            ("redis://u:secret@a host", "white space"),
            ("redis://u:secret@[::1", "`]`"),
            ("redis://u:secret@[::1]x", "`]`"),
            ("redis://u:%zzsecret@host", "`%`"),
            ("redis://u:%+1secret@host", "`%`"),
            ("redis://u:%ffsecret@host", "UTF-8"),
            ("redis://u:secret@host/+1", "database"),
            ("redis://u:secret@host/secret", "database"),
            ("redis://u:secret@host?secret=1", "query"),
            ("redis://u:secret#1@host", "fragment"),
            ("rediss://u:secret@host/#insecure", "`#insecure`"),
            ("unix://?pass=secret", "unix:///"),
            ("unix:///s?secret=1", "query parameter"),
        ] {
            let error = ServerUrl::parse(url).err().expect(url).to_string();
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn sentinel_url_is_parsed() {
        let url = SentinelUrl::parse(
            "rediss",
            "user:secret@one:26380,two,[::1]/a%20group/3?sentinel_username=s&sentinel_password=p",
        );
        let url = url.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(url.group, "a group");
        assert_eq!(url.member, "rediss://user:secret@127.0.0.1:6379/3");
        let sentinels = ["one:26380", "two:26379", "[::1]:26379"];
        let sentinels = sentinels.map(|host| format!("rediss://s:p@{host}/"));
        assert_eq!(url.sentinels, sentinels);
    }

    #[test]
    fn invalid_sentinel_url_is_not_repeated() {
        for rest in [
            "u:secret@host",
            "u:secret@host/",
            "u:secret@/group",
            "u:secret@host/group?secret=1",
        ] {
            let error = SentinelUrl::parse("redis", rest).err().unwrap().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}

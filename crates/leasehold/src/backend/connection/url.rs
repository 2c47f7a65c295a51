//! The URL of one server, taken apart.

use std::path::PathBuf;

use crate::error::BoxError;

/// What a URL is expected to be; the URL itself is not repeated, for it may hold a password.
const FORM: &str = "it looks like `redis://user:password@host:6379/0`";

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp {
        host: String,
        port: u16,
        is_tls: bool,
    },
    Unix(PathBuf),
}

/// A server, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) address: Address,
    pub(super) credentials: Option<Credentials>,
    pub(super) database: u32,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl Url {
    pub(super) fn parse(url: &str) -> Result<Self, BoxError> {
        let (scheme, rest) = url.split_once("://").ok_or(FORM)?;
        match scheme {
            "redis" | "valkey" => Self::network(rest, false),
            "rediss" | "valkeys" => Self::network(rest, true),
            "unix" | "redis+unix" | "valkey+unix" => Self::unix(rest),
            _ => Err(FORM.into()),
        }
    }

    /// `user:password@host:port/database`
    fn network(rest: &str, is_tls: bool) -> Result<Self, BoxError> {
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        if fragment == "insecure" {
            return Err("`#insecure` does not turn off verification, only code does".into());
        }
        if !fragment.is_empty() || rest.contains('?') {
            return Err("it has a setting that is not known".into());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let (host, port) = host_and_port(place)?;
        Ok(Self {
            address: Address::Tcp { host, port, is_tls },
            credentials: login.map(credentials).transpose()?.flatten(),
            database: database(path)?,
        })
    }

    /// `/path/to/socket?db=0&user=…&pass=…`
    fn unix(rest: &str) -> Result<Self, BoxError> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = decoded(path)?;
        if path.is_empty() {
            return Err("it looks like `unix:///run/redis.sock`".into());
        }
        let (mut user, mut password, mut number) = (String::new(), None, 0);
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=').unwrap_or((setting, "")) {
                ("db", value) => number = database(value)?,
                ("user", value) => user = decoded(value)?,
                ("pass", value) => password = Some(decoded(value)?),
                _ => return Err("it has a setting that is not known".into()),
            }
        }
        Ok(Self {
            address: Address::Unix(path.into()),
            credentials: password.map(|password| Credentials { user, password }),
            database: number,
        })
    }
}

fn host_and_port(place: &str) -> Result<(String, u16), BoxError> {
    let (host, port) = match place.strip_prefix('[') {
        // An IPv6 address has colons of its own.
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(FORM)?;
            match (rest, rest.strip_prefix(':')) {
                ("", _) => (host, None),
                (_, Some(port)) => (host, Some(port)),
                _ => return Err(FORM.into()),
            }
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = port.map_or(Ok(6379), str::parse).map_err(|_| FORM)?;
    let host = decoded(host)?;
    match host.is_empty() || host.contains(char::is_whitespace) {
        true => Err(FORM.into()),
        false => Ok((host, port)),
    }
}

/// Without a password there is nothing to log in with.
fn credentials(login: &str) -> Result<Option<Credentials>, BoxError> {
    let Some((user, password)) = login.split_once(':') else {
        return Ok(None);
    };
    let (user, password) = (decoded(user)?, decoded(password)?);
    Ok((!password.is_empty()).then_some(Credentials { user, password }))
}

fn database(path: &str) -> Result<u32, BoxError> {
    match path.trim_end_matches('/') {
        "" => Ok(0),
        number => number.parse().map_err(|_| FORM.into()),
    }
}

/// Replaces each `%` and two hex digits by the byte that they stand for.
fn decoded(text: &str) -> Result<String, BoxError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2).ok_or(FORM)?;
                rest = after;
                let digits = std::str::from_utf8(digits).map_err(|_| FORM)?;
                u8::from_str_radix(digits, 16).map_err(|_| FORM)?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| FORM.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(url: &str) -> (String, u16, bool) {
        match Url::parse(url).map(|url| url.address) {
            Ok(Address::Tcp { host, port, is_tls }) => (host, port, is_tls),
            other => panic!("{url}: {:?}", other.err()),
        }
    }

    #[test]
    fn hosts_and_ports_are_read() {
        assert_eq!(tcp("redis://host"), ("host".to_owned(), 6379, false));
        assert_eq!(tcp("valkeys://h:1/"), ("h".to_owned(), 1, true));
        assert_eq!(tcp("rediss://[::1]:7/2"), ("::1".to_owned(), 7, true));
        assert_eq!(tcp("redis://u:p@[::1]"), ("::1".to_owned(), 6379, false));
    }

    #[test]
    fn credentials_are_decoded() {
        let login = |url| {
            let credentials = Url::parse(url).unwrap().credentials;
            credentials.map(|one| (one.user, one.password))
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(login("redis://u:a%40b%2F@h"), pair("u", "a@b/"));
        assert_eq!(login("redis://:p@h"), pair("", "p"));
        assert_eq!(login("redis://u:p@x@h"), pair("u", "p@x"));
        assert_eq!(login("redis://u@h"), None);
        assert_eq!(login("redis://h"), None);
        let socket = "redis+unix:///run/r.sock?db=1&user=u&pass=p%26";
        assert_eq!(login(socket), pair("u", "p&"));
        assert_eq!(Url::parse(socket).unwrap().database, 1);
    }

    #[test]
    fn anything_else_is_refused_without_repeating_it() {
        for url in [
            "http://u:secret@host",
            "redis://u:secret@host:port",
            "redis://u:secret@",
            "redis://u:%zzsecret@host",
            "redis://u:secret@host/secret",
            "redis://u:secret@host?secret=1",
            "rediss://u:secret@host/#insecure",
            "redis://u:secret@[::1",
            "redis://u:secret@[::1]x",
            "unix://?pass=secret",
            "secret",
        ] {
            let error = Url::parse(url).err().map(|error| error.to_string());
            assert!(
                error.is_some_and(|error| !error.contains("secret")),
                "{url}"
            );
        }
    }
}

//! URLs that name several hosts: taken apart into one URL per host.

use crate::error::BoxError;

/// The parts of `scheme://credentials@host:port,host:port/path?query`.
pub(crate) struct MultiHostUrl<'a> {
    scheme: &'a str,
    /// With its `@`, where there are any.
    pub(crate) credentials: String,
    hosts: Vec<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) query: Vec<(&'a str, &'a str)>,
}

impl<'a> MultiHostUrl<'a> {
    /// Takes apart what follows `scheme+topology://`; `None` where it does not look like that.
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

    /// One URL per host, with these credentials, and `port` where none is given.
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

    /// The URL of some server that lets the same users in.
    pub(crate) fn any(&self, database: &str) -> String {
        let (scheme, credentials) = (self.scheme, &self.credentials);
        format!("{scheme}://{credentials}127.0.0.1:6379/{database}")
    }

    /// Refuses settings that are not `known`, without repeating what may be a secret.
    pub(crate) fn check_settings(&self, known: &[&str]) -> Result<(), BoxError> {
        match self.query.iter().all(|(name, _)| known.contains(name)) {
            true => Ok(()),
            false => Err("it has a setting that is not known".into()),
        }
    }

    pub(crate) fn setting(&self, name: &str) -> &'a str {
        let found = self.query.iter().find(|(at, _)| *at == name);
        found.map_or("", |(_, value)| value)
    }
}

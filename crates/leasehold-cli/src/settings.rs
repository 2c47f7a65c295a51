//! Where the locks are: from the command line, the environment or a file, in this order; and connecting there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Client, Quorum, QuorumBuilder};
use serde::Deserialize;

use crate::args::ServerArgs;
use crate::duration;
use crate::exit;
use crate::output::CliError;

/// What a file can say.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    url: Option<String>,
    prefix: Option<String>,
    /// As in `30s`.
    lease: Option<String>,
    request_timeout: Option<String>,
    /// PEM files, for TLS.
    root_certificate: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_key: Option<PathBuf>,
    tls_name: Option<String>,
}

impl File {
    /// Understands what is in a file, or says why not.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }
}

/// What is in force.
pub(crate) struct Settings {
    /// Nothing where none is given: a lock on the wrong server is worse than none.
    url: Option<String>,
    prefix: Option<String>,
    pub(crate) lease: Option<Duration>,
    pub(crate) request_timeout: Option<Duration>,
    root_certificate: Option<Vec<u8>>,
    client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    tls_name: Option<String>,
}

/// A builder with what was set; those of one server and of several have the same settings and are of different types.
macro_rules! configured {
    ($settings:expr, $builder:expr, $lease:expr) => {{
        let settings = $settings;
        let mut builder = $builder;
        if let Some(prefix) = &settings.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(lease) = $lease.or(settings.lease) {
            builder = builder.lease(lease);
        }
        if let Some(timeout) = settings.request_timeout {
            builder = builder
                .request_timeout(timeout)
                .connect_timeout(timeout * 2);
        }
        if let Some(certificate) = &settings.root_certificate {
            builder = builder.root_certificate(certificate.clone());
        }
        if let Some((certificate, key)) = &settings.client_certificate {
            builder = builder.client_certificate(certificate.clone(), key.clone());
        }
        if let Some(name) = &settings.tls_name {
            builder = builder.tls_name(name);
        }
        builder
    }};
}

impl Settings {
    pub(crate) fn read(args: &ServerArgs) -> Result<Self, CliError> {
        let file = match file_named(args) {
            Some(path) => parse(&path)?,
            None => File::default(),
        };
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let length = |name: &str, text: Option<String>| match text.as_deref().map(duration::parse) {
            None => Ok(None),
            Some(Ok(length)) => Ok(Some(length)),
            Some(Err(why)) => Err(CliError::usage(format!("`{name}`: {why}"))),
        };
        let timeout = variable("LEASEHOLD_REQUEST_TIMEOUT").or(file.request_timeout);
        let timeout = length("request_timeout", timeout)?;
        let identity = match (&file.client_certificate, &file.client_key) {
            (Some(certificate), Some(key)) => Some((pem(certificate)?, pem(key)?)),
            (None, None) => None,
            _ => {
                let text = "`client_certificate` and `client_key` must be given together";
                return Err(CliError::usage(text));
            }
        };
        Ok(Self {
            url: args.url.clone().or(variable("LEASEHOLD_URL")).or(file.url),
            prefix: args.prefix.clone().or(file.prefix),
            lease: length("lease", file.lease)?,
            request_timeout: args.request_timeout.or(timeout),
            root_certificate: file.root_certificate.as_deref().map(pem).transpose()?,
            client_certificate: identity,
            tls_name: args.tls_name.clone().or(file.tls_name),
        })
    }

    /// Connects to the one server that is named.
    pub(crate) async fn connect(&self, lease: Option<Duration>) -> Result<Client, CliError> {
        let url = self.url.as_ref().ok_or_else(|| {
            CliError::usage("no server is named")
                .with_hint("set LEASEHOLD_URL=redis://HOST:6379, or give --url")
        })?;
        let builder = configured!(self, Client::builder(url), lease);
        Ok(builder.connect().await?)
    }

    /// Whether names are whole keys, so that what is found may be anything.
    pub(crate) fn has_no_prefix(&self) -> bool {
        self.prefix.as_deref() == Some("")
    }

    /// What was set, for several servers that are asked as one.
    pub(crate) fn builder_of_all(&self, urls: &[String], lease: Option<Duration>) -> QuorumBuilder {
        configured!(self, Quorum::builder(urls.iter().cloned()), lease)
    }
}

fn file_named(args: &ServerArgs) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = &args.config {
        return Some(path.clone());
    }
    if let Some(path) = variable("LEASEHOLD_CONFIG") {
        return Some(path.into());
    }
    let own = match variable("XDG_CONFIG_HOME") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => variable("HOME").map(|home| Path::new(&home).join(".config")),
    };
    let own = own.map(|folder| folder.join("leasehold.toml"));
    let places = own
        .into_iter()
        .chain([PathBuf::from("/etc/leasehold.toml")]);
    places.into_iter().find(|path| path.exists())
}

fn parse(path: &Path) -> Result<File, CliError> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    File::read(&text).map_err(|why| {
        CliError::usage(format!("{}: {why}", path.display())).with_hint(
            "it may have url, prefix, lease, request_timeout, root_certificate, client_certificate, client_key and tls_name",
        )
    })
}

fn pem(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(
        exit::USAGE,
        format!("cannot read {}: {error}", path.display()),
    )
}

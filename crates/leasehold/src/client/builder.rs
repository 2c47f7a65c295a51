//! The settings of a client, and how a client starts: the layers are put
//! together here.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use crate::backend::{Backend, Target, Tls};
use crate::error::Error;
use crate::lease::{Engine, Keeper, Limits};
use crate::options::{AcquireOptions, DEFAULT_LEASE, ReplicaAck, Replicas};
use crate::protocol::{Counters, Keyspace};

impl Client {
    /// Connects with the default settings.
    ///
    /// The URL is `redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` (TLS) or `unix://`, with user,
    /// password and database as in `redis://user:password@host:6379/0`; or `redis+sentinel://` (and
    /// `rediss+sentinel://`) with the sentinels, the group's name and the database, as in
    /// `redis+sentinel://user:password@one:26379,two:26379/group/0?sentinel_password=other`; or
    /// `redis+cluster://` (and `rediss+cluster://`) with some of a cluster's nodes, as in
    /// `redis+cluster://user:password@one:6379,two:6379`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    ///
    /// When the URL makes no sense, or the server cannot be reached or refuses the credentials.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Connects with other settings.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            replica_ack: None,
            settings: Settings::default(),
        }
    }
}

/// Settings of a [`Client`], each with a default for a server in the same data centre.
#[must_use = "nothing is connected until `connect` is called"]
pub struct ClientBuilder {
    url: String,
    replica_ack: Option<ReplicaAck>,
    pub(super) settings: Settings,
}

/// What clients of one server and of several have in common.
pub(super) struct Settings {
    pub(super) prefix: String,
    pub(super) lease: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) max_outage: Duration,
    pub(super) tls: Tls,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "lock:".to_owned(),
            lease: DEFAULT_LEASE,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(1),
            max_outage: Duration::from_secs(30),
            tls: Tls::default(),
        }
    }
}

impl Settings {
    /// What `url` names.
    pub(super) fn target(&self, url: &str) -> Result<Target, Error> {
        Target::new(url, &self.tls, self.connect_timeout)
            .map_err(|why| Error::invalid("url", why.to_string()))
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            request: self.request_timeout,
            outage: self.max_outage,
        }
    }
}

/// The settings that clients of one server and of several share.
macro_rules! settings {
    ($builder:ident) => {
        impl $builder {
            /// What stands before every name to make its key; `lock:` by default, may be empty.
            pub fn prefix(mut self, prefix: &str) -> Self {
                prefix.clone_into(&mut self.settings.prefix);
                self
            }

            /// How long a lease lasts that is renewed; 30 s by default. It is renewed every third of it.
            /// After a crash of the holder, others wait at most this long.
            pub fn lease(mut self, length: Duration) -> Self {
                self.settings.lease = length;
                self
            }

            /// How long connecting may take, with login; 2 s by default.
            pub fn connect_timeout(mut self, limit: Duration) -> Self {
                self.settings.connect_timeout = limit;
                self
            }

            /// How long the answer to one request may take; 1 s by default, 200 ms from a node of a quorum.
            /// Then its outcome is unknown, and it is cancelled in the background.
            pub fn request_timeout(mut self, limit: Duration) -> Self {
                self.settings.request_timeout = limit;
                self
            }

            /// How long those who wait for a lock bear that it cannot be asked for, before they are told;
            /// 30 s by default.
            pub fn max_outage(mut self, limit: Duration) -> Self {
                self.settings.max_outage = limit;
                self
            }

            /// The certificate (PEM) that a TLS server's must be signed by, in place of the system's.
            pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
                self.settings.tls.root_certificate = Some(pem.into());
                self
            }

            /// The certificate and its key (PEM) that a TLS server is shown when it asks who we are.
            pub fn client_certificate(
                mut self,
                certificate: impl Into<Vec<u8>>,
                key: impl Into<Vec<u8>>,
            ) -> Self {
                self.settings.tls.identity = Some((certificate.into(), key.into()));
                self
            }

            /// The name that a TLS server's certificate must have, in place of
            /// the host that the client dials; it is also sent as the server
            /// name (SNI).
            ///
            /// A client dials the nodes of a Cluster, and the master that a
            /// sentinel names, at the address that they announce. Where that is
            /// an IP address and the certificates have none, set the name that
            /// all of them share. It applies to every server and sentinel of
            /// this client.
            pub fn tls_name(mut self, name: &str) -> Self {
                self.settings.tls.name = Some(name.to_owned());
                self
            }

            /// Believes whatever certificate a TLS server has, so that anybody in between can read and change
            /// what is sent. For trying things out only.
            pub fn dangerously_trust_any_certificate(mut self) -> Self {
                self.settings.tls.trusts_all = true;
                self
            }
        }

        impl std::fmt::Debug for $builder {
            /// Leaves out addresses: they may hold a password.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($builder))
                    .field("prefix", &self.settings.prefix)
                    .field("lease", &self.settings.lease)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use settings;
settings!(ClientBuilder);

impl ClientBuilder {
    /// What [`replicas`](crate::Acquire::replicas) says, for all locks of this client.
    pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
        let replicas = count.into();
        self.replica_ack = Some(ReplicaAck { replicas, timeout });
        self
    }

    /// Connects, and starts the keeper.
    ///
    /// # Cancel safety
    ///
    /// As for [`Client::connect`].
    ///
    /// # Errors
    ///
    /// As for [`Client::connect`].
    pub async fn connect(self) -> Result<Client, Error> {
        let settings = self.settings;
        let mut options = AcquireOptions::new(settings.lease);
        options.replica_ack = self.replica_ack;
        options.validate()?;
        let target = settings.target(&self.url)?;
        let counters = match target.divides_slots() {
            true => Counters::PerSlot,
            false => Counters::one(),
        };
        let keyspace = Arc::new(Keyspace::new(&settings.prefix, counters)?);
        let runtime = keeper_runtime()?;
        let backend = target.open(runtime.handle());
        let engine = Arc::new(start(runtime, backend, settings.limits())?);
        engine.connect().await?;
        Ok(Client {
            engine,
            keyspace,
            options,
        })
    }
}

pub(super) fn keeper_runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Unavailable(error.into()))
}

/// Starts the keeper on its own thread, so that a blocked application loses no lease.
pub(super) fn start(
    runtime: tokio::runtime::Runtime,
    backend: Arc<dyn Backend>,
    limits: Limits,
) -> Result<Engine, Error> {
    let keeper = Keeper::default();
    let work = keeper.clone().work(backend.clone(), limits.request);
    std::thread::Builder::new()
        .name("leasehold".to_owned())
        .spawn(move || runtime.block_on(work))
        .map_err(|error| Error::Unavailable(error.into()))?;
    Ok(Engine::new(backend, keeper, limits))
}

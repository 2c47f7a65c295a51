//! The settings of a client, and how a client connects.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use crate::backend::{Backend, ConnectOptions, Target};
use crate::error::Error;
use crate::lease::{Engine, Keeper, Limits};
use crate::observe::Observers;
use crate::options::{AcquireOptions, DEFAULT_LEASE, ReplicaAck, Replicas, validate_timeout};
use crate::protocol::{Counters, Keyspace};
use crate::trace_parent::TraceParentSource;

impl Client {
    /// Connects with the default settings.
    ///
    /// | Deployment | URL |
    /// |---|---|
    /// | one server | `redis://user:password@host:6379/0`, or `valkey://` |
    /// | one server, TLS | `rediss://`, or `valkeys://` |
    /// | one server, Unix socket | `unix://` |
    /// | Sentinel | `redis+sentinel://user:password@one:26379,two:26379/group/0` |
    /// | Cluster | `redis+cluster://user:password@one:6379,two:6379` |
    ///
    /// A Sentinel URL lists sentinels, followed by the name of the group and
    /// the database. The query `?sentinel_password=…` sets the password of the
    /// sentinels, and `sentinel_username` their user. A Cluster URL lists some
    /// of the nodes. Both have a TLS form, `rediss+sentinel://` and
    /// `rediss+cluster://`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that were opened.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL is invalid, [`Error::Unavailable`] if the
    /// server is unreachable, and [`Error::Denied`] if it rejects the
    /// credentials.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Returns a builder to connect with other settings.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::builder("redis://127.0.0.1/")
    ///     .prefix("shop:lock:")
    ///     .lease(Duration::from_secs(10))
    ///     .connect()
    ///     .await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            replica_ack: None,
            settings: Settings::default(),
        }
    }
}

/// The settings of a [`Client`]; see [`Client::builder`].
///
/// The defaults suit a server in the same data centre.
#[must_use = "nothing is connected until `connect` is called"]
pub struct ClientBuilder {
    url: String,
    replica_ack: Option<ReplicaAck>,
    pub(crate) settings: Settings,
}

/// The settings of all builders.
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) lease: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) max_outage: Duration,
    pub(crate) connect: ConnectOptions,
    pub(crate) slow_hold: Option<Duration>,
    pub(crate) trace_parent: Option<TraceParentSource>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "lock:".to_owned(),
            lease: DEFAULT_LEASE,
            request_timeout: Duration::from_secs(1),
            max_outage: Duration::from_secs(30),
            connect: ConnectOptions::default(),
            slow_hold: None,
            trace_parent: None,
        }
    }
}

impl Settings {
    /// Parses `url`.
    pub(super) fn target(&self, url: &str) -> Result<Target, Error> {
        Target::new(url, &self.connect).map_err(|why| Error::invalid("url", why.to_string()))
    }

    /// Rejects settings that are out of range, except those of an acquire.
    pub(super) fn validate(&self) -> Result<(), Error> {
        validate_timeout("request_timeout", self.request_timeout)?;
        validate_timeout("connect_timeout", self.connect.timeout)
    }

    /// Returns the default options of an acquire.
    pub(super) fn acquire_options(&self) -> AcquireOptions {
        AcquireOptions {
            slow_hold: self.slow_hold,
            trace_parent: self.trace_parent.clone(),
            ..AcquireOptions::new(self.lease)
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            request: self.request_timeout,
            outage: self.max_outage,
        }
    }
}

/// The methods that all builders share.
macro_rules! settings {
    ($builder:ident) => {
        impl $builder {
            /// Sets the prefix of every key; `lock:` by default.
            ///
            /// The key of a lock is the prefix followed by the name. The
            /// prefix can be empty and has at most 128 bytes.
            pub fn prefix(mut self, prefix: &str) -> Self {
                prefix.clone_into(&mut self.settings.prefix);
                self
            }

            /// Sets the length of renewed leases; 30 s by default.
            ///
            /// A lease is renewed every third of its length. If the holder
            /// crashes, other clients wait at most this long.
            pub fn lease(mut self, length: Duration) -> Self {
                self.settings.lease = length;
                self
            }

            /// Limits how long connecting can take, authentication included;
            /// 2 s by default, from 1 ms to 366 days.
            pub fn connect_timeout(mut self, limit: Duration) -> Self {
                self.settings.connect.timeout = limit;
                self
            }

            /// Limits how long the reply to one request can take; 1 s by
            /// default, 200 ms for the nodes of a quorum. It is from 1 ms to
            /// 366 days.
            ///
            /// After that, the outcome of the request is unknown, and the
            /// client cancels it in the background.
            pub fn request_timeout(mut self, limit: Duration) -> Self {
                self.settings.request_timeout = limit;
                self
            }

            /// Limits how long waiters retry through an outage of the server
            /// before they fail; 30 s by default. With [`Duration::MAX`] they
            /// never give up.
            pub fn max_outage(mut self, limit: Duration) -> Self {
                self.settings.max_outage = limit;
                self
            }

            /// Adds an observer, which receives the events of this client; see
            /// [`observe`](crate::observe).
            pub fn observe(mut self, observer: impl crate::observe::Observer) -> Self {
                self.settings
                    .connect
                    .observers
                    .add(std::sync::Arc::new(observer));
                self
            }

            /// Logs a warning for every lock that is held for longer than
            /// `limit`; disabled by default.
            ///
            /// The warning is a `tracing` event while the lock is still held.
            /// It names the lock and the line of code that acquired it.
            pub fn slow_hold(mut self, limit: Duration) -> Self {
                self.settings.slow_hold = Some(limit);
                self
            }

            /// Stores the holder's trace with every lock, so that waiters and
            /// the CLI can show it; disabled by default.
            ///
            /// `source` returns the W3C `traceparent` of the current task. It
            /// is called once for each acquire, and must not block. The value
            /// is public to all clients of the server, as
            /// [`Holder::trace_parent`](crate::Holder::trace_parent).
            ///
            /// It takes 68 bytes in each lock, which every renewal sends. Tasks
            /// of different traces do not hand a lock off to each other,
            /// because the server would show the wrong holder.
            pub fn trace_parent(
                mut self,
                source: impl Fn() -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                self.settings.trace_parent =
                    Some(crate::trace_parent::TraceParentSource::new(source));
                self
            }

            /// Sets the root certificate (PEM) that TLS servers are verified
            /// against, instead of the system's root certificates.
            pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
                self.settings.connect.tls.root_certificate = Some(pem.into());
                self
            }

            /// Sets the client certificate and its key (PEM) that are
            /// presented to TLS servers that request one.
            pub fn client_certificate(
                mut self,
                certificate: impl Into<Vec<u8>>,
                key: impl Into<Vec<u8>>,
            ) -> Self {
                self.settings.connect.tls.identity = Some((certificate.into(), key.into()));
                self
            }

            /// Sets the name that the certificates of TLS servers must have,
            /// instead of the host that the client connects to. It is also
            /// sent as the server name (SNI).
            ///
            /// Nodes of a Cluster, and a master behind Sentinel, announce the
            /// address that a client connects to. If that is an IP address
            /// that the certificates do not have, set the name that all of
            /// them share. It applies to every server and sentinel of this
            /// client.
            pub fn tls_name(mut self, name: &str) -> Self {
                self.settings.connect.tls.name = Some(name.to_owned());
                self
            }

            /// Disables the verification of TLS certificates.
            ///
            /// An attacker on the network can then read and change all
            /// traffic. Use it for experiments only.
            pub fn dangerously_trust_any_certificate(mut self) -> Self {
                self.settings.connect.tls.trusts_all = true;
                self
            }
        }

        impl std::fmt::Debug for $builder {
            /// Omits the URLs, which can contain a password.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($builder))
                    .field("prefix", &self.settings.prefix)
                    .field("lease", &self.settings.lease)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use settings;
settings!(ClientBuilder);

impl ClientBuilder {
    /// Requires `count` replicas to acknowledge every lock of this client, each
    /// within `timeout`; see [`Acquire::replicas`](crate::Acquire::replicas).
    pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
        let replicas = count.into();
        self.replica_ack = Some(ReplicaAck { replicas, timeout });
        self
    }

    /// Connects and starts the keeper.
    ///
    /// # Cancel safety
    ///
    /// As for [`Client::connect`].
    ///
    /// # Errors
    ///
    /// As for [`Client::connect`], and [`Error::Invalid`] if a setting is out
    /// of range.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.open()?;
        client.engine.connect().await?;
        Ok(client)
    }

    /// Starts the keeper of a client that has not connected yet.
    pub(crate) fn open(self) -> Result<Client, Error> {
        let settings = self.settings;
        settings.validate()?;
        let mut options = settings.acquire_options();
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
        let engine = Arc::new(start_engine(
            runtime,
            backend,
            settings.limits(),
            settings.connect.observers,
        )?);
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

/// Starts the keeper on its own thread, so that it renews leases while the
/// application's runtime is blocked.
pub(super) fn start_engine(
    runtime: tokio::runtime::Runtime,
    backend: Arc<dyn Backend>,
    limits: Limits,
    observers: Observers,
) -> Result<Engine, Error> {
    let keeper = Keeper::new(runtime.handle());
    let work = keeper
        .clone()
        .work(backend.clone(), limits.request, observers.clone());
    let marked = keeper.clone();
    std::thread::Builder::new()
        .name("leasehold".to_owned())
        .spawn(move || {
            let _thread = marked.mark_thread();
            runtime.block_on(work);
        })
        .map_err(|error| Error::Unavailable(error.into()))?;
    Ok(Engine::new(backend, keeper, limits, observers))
}

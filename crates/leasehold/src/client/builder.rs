//! A client's settings, and how a client connects.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::Client;
use crate::backend::{Backend, ConnectOptions, Target};
use crate::credentials::{Credentials, CredentialsProvider, Server};
use crate::error::Error;
use crate::lease::Pending;
use crate::lease::{Engine, Keeper, Limits};
use crate::observe::{Event, Observers};
use crate::options::{AcquireOptions, DEFAULT_LEASE, ReplicaAck, Replicas, validate_timeout};
use crate::protocol::{Counters, Keyspace};
use crate::trace_parent::TraceParentSource;

impl Client {
    /// Connects to a server, a Sentinel group or a Cluster. Set options on the
    /// returned [`Connect`], then `.await` it, or [`wait`](Connect::wait) for
    /// it on a thread.
    ///
    /// | Deployment | URL |
    /// |---|---|
    /// | one server | `redis://user:password@host:6379/0`, or `valkey://` |
    /// | one server, TLS | `rediss://`, or `valkeys://` |
    /// | one server, Unix socket | `unix://` |
    /// | Sentinel | `redis+sentinel://user:password@one:26379,two:26379/group/0` |
    /// | Cluster | `redis+cluster://user:password@one:6379,two:6379` |
    ///
    /// A Sentinel URL lists sentinels, followed by the group's name and the
    /// database. The query `?sentinel_password=…` sets the sentinels' password,
    /// and `sentinel_username` their user. A Cluster URL lists some of the
    /// nodes. Both have a TLS form, `rediss+sentinel://` and
    /// `rediss+cluster://`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that were opened.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL or a setting is invalid,
    /// [`Error::Unavailable`] if the server is unreachable, and
    /// [`Error::Denied`] if it rejects the credentials in the URL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("redis://127.0.0.1/").await?;
    /// # Ok(()) }
    /// ```
    pub fn connect(url: &str) -> Connect {
        Connect {
            urls: vec![url.to_owned()],
            settings: Settings::default(),
            makes: PhantomData,
        }
    }
}

/// A client that has not connected: set options, then `.await` it in a task or
/// call `wait` on a thread.
///
/// [`Client::connect`] and [`Quorum::connect`](crate::Quorum::connect) return
/// one. Nothing is connected, and no thread starts, before that. The defaults
/// suit a server in the same data centre. An option that is out of range is
/// reported as [`Error::Invalid`] when you connect.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// let client = Client::connect("redis://127.0.0.1/")
///     .prefix("shop:lock:")
///     .lease(Duration::from_secs(10))
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is connected until it is awaited, or waited for with `wait`"]
pub struct Connect<C = Client> {
    pub(super) urls: Vec<String>,
    pub(super) settings: Settings,
    pub(super) makes: PhantomData<fn() -> C>,
}

/// The settings of all builders.
pub(super) struct Settings {
    pub(super) prefix: String,
    pub(super) lease: Duration,
    pub(super) request_timeout: Duration,
    pub(super) max_outage: Duration,
    pub(super) connect: ConnectOptions,
    pub(super) slow_hold: Option<Duration>,
    pub(super) trace_parent: Option<TraceParentSource>,
    pub(super) acquire_timeout: Option<Duration>,
    pub(super) replica_ack: Option<ReplicaAck>,
    pub(super) max_lease: Duration,
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
            acquire_timeout: None,
            replica_ack: None,
            max_lease: Duration::from_secs(60),
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
            timeout: self.acquire_timeout,
            replica_ack: self.replica_ack,
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

impl<C> Connect<C> {
    /// Limits how long every acquire of this client can take; no limit by
    /// default. [`Acquire::timeout`](crate::Acquire::timeout) overrides it.
    ///
    /// Elections, jobs per tick and [`adopt`](crate::Client::adopt) ignore it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// // No request of this web service waits for longer.
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .acquire_timeout(Duration::from_secs(2))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire_timeout(mut self, limit: Duration) -> Self {
        self.settings.acquire_timeout = Some(limit);
        self
    }

    /// Sets the prefix of every lock's key; `lock:` by default.
    ///
    /// A lock's key is the prefix followed by the name. The prefix can be empty
    /// and has at most 128 bytes. What the client stores beside the locks, such
    /// as tokens, terms and runs, has keys that begin with `leasehold:`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .prefix("shop:lock:")
    ///     .wait()?;
    /// // Its key is `shop:lock:coupon:42`.
    /// let coupon = client.mutex("coupon:42");
    /// # Ok(()) }
    /// ```
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.settings.prefix);
        self
    }

    /// Sets how long renewed leases last; 30 s by default.
    ///
    /// A lease is renewed every third of this time. If the holder crashes,
    /// other clients wait at most this long. If the server is unreachable for
    /// this long, holders lose their locks.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .lease(Duration::from_secs(10))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, length: Duration) -> Self {
        self.settings.lease = length;
        self
    }

    /// Limits how long connecting can take, authentication included; 2 s by
    /// default, from 1 ms to 366 days.
    ///
    /// A name is resolved for every connection. All of its addresses share the
    /// limit: the next one is tried after at most 250 ms, while the ones before
    /// may still accept.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("rediss://locks.example.com/")
    ///     .connect_timeout(Duration::from_secs(10))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect.timeout = limit;
        self
    }

    /// Sets where credentials come from, instead of the URL: a password that is
    /// rotated, or tokens that expire.
    ///
    /// `provider` is called for each connection that the client makes, to
    /// servers, replicas, sentinels and nodes. If the credentials have an
    /// [end](Credentials::valid_until), it is called again after about three
    /// quarters of that time, and the open connection logs in again. The
    /// client does not cache what it returns, since the SDKs of cloud services
    /// do.
    ///
    /// A provider that fails or takes too long, and credentials that the
    /// server rejects, count as an outage, because the next ones may be
    /// better: waiters retry for up to [`max_outage`](Self::max_outage), and
    /// leases last until their deadline. The error is
    /// [`Error::Unavailable`], and names the provider.
    ///
    /// The provider runs on the client's own thread, which renews leases. So
    /// it must not block: read files and sockets as tokio does. It may take
    /// three quarters of the [`connect_timeout`](Self::connect_timeout). Its
    /// error becomes part of ours, so it must not contain a secret.
    ///
    /// A password in the URL as well is [`Error::Invalid`]. Only
    /// `?sentinel_password=…` can be combined with a provider, which is then
    /// not asked for the sentinels. A provider should return
    /// [`Credentials::none`] for sentinels without a password.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::SystemTime;
    /// # struct Token { text: String, expires_on: SystemTime }
    /// # async fn fetch_token() -> std::io::Result<Token> {
    /// #     Err(std::io::ErrorKind::Other.into())
    /// # }
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Credentials};
    ///
    /// let client = Client::connect("rediss://locks.example.com/")
    ///     .credentials(|_server| async {
    ///         let token = fetch_token().await?;
    ///         let credentials = Credentials::new("web", token.text)
    ///             .valid_until(token.expires_on);
    ///         Ok::<_, std::io::Error>(credentials)
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn credentials<F, E>(
        mut self,
        provider: impl Fn(Server) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.settings.connect.credentials = Some(CredentialsProvider::new(provider));
        self
    }

    /// Limits how long the reply to one request can take; 1 s by default, 200
    /// ms for a quorum's nodes. It is from 1 ms to 366 days.
    ///
    /// After that, the request's outcome is unknown, and the client cancels it
    /// in the background. The client checks every 10 ms, so it may notice up to
    /// 20 ms late.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// // The server is on another continent.
    /// let client = Client::connect("redis://locks.example.com/")
    ///     .request_timeout(Duration::from_secs(3))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.settings.request_timeout = limit;
        self
    }

    /// Limits how long waiters retry through a server outage before they fail;
    /// 30 s by default. With [`Duration::MAX`] they never give up.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// // A batch job would rather wait until the server is back.
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .max_outage(Duration::MAX)
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn max_outage(mut self, limit: Duration) -> Self {
        self.settings.max_outage = limit;
        self
    }

    /// Adds an observer, which is called with this client's events; see
    /// [`observe`](crate::observe).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// use leasehold::observe::Event;
    ///
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .observe(|event| {
    ///         if let Event::ConnectionDown { server, reason, .. } = event {
    ///             eprintln!("disconnected from {server}: {reason}");
    ///         }
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn observe(mut self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.connect.observers.add(Arc::new(observer));
        self
    }

    /// Logs a warning for every lock that is held for longer than `limit`;
    /// disabled by default.
    ///
    /// The warning is a `tracing` event while the lock is still held. It names
    /// the lock and the line of code that acquired it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .slow_hold(Duration::from_secs(60))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn slow_hold(mut self, limit: Duration) -> Self {
        self.settings.slow_hold = Some(limit);
        self
    }

    /// Stores the holder's trace with every lock, for waiters and the CLI to
    /// show; disabled by default.
    ///
    /// `source` returns the current task's W3C `traceparent`. It is called once
    /// for each acquire, and must not block. The value is public to all clients
    /// of the server, as [`Holder::trace_parent`](crate::Holder::trace_parent).
    ///
    /// It takes 54 bytes in each lock, which every renewal sends. Tasks of
    /// different traces do not hand a lock off to each other, because the
    /// server would show the wrong holder.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn current_traceparent() -> Option<String> { None }
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("redis://127.0.0.1/")
    ///     .trace_parent(|| current_traceparent())
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn trace_parent(
        mut self,
        source: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.settings.trace_parent = Some(TraceParentSource::new(source));
        self
    }

    /// Sets the root certificate (PEM) that TLS servers are verified against,
    /// instead of the system's root certificates.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use leasehold::Client;
    /// let client = Client::connect("rediss://locks.example.com/")
    ///     .root_certificate(std::fs::read("ca.pem")?)
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.settings.connect.tls.root_certificate = Some(pem.into());
        self
    }

    /// Sets the client certificate and the key (PEM) that we present to TLS
    /// servers that request one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use leasehold::Client;
    /// let certificate = std::fs::read("web.pem")?;
    /// let client = Client::connect("rediss://locks.example.com/")
    ///     .client_certificate(certificate, std::fs::read("web.key")?)
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.settings.connect.tls.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the name that TLS servers' certificates must have, instead of the
    /// host that the client connects to. It is also sent as the server name
    /// (SNI).
    ///
    /// Nodes of a Cluster, and a master behind Sentinel, announce the address
    /// that a client connects to. If that is an IP address that the
    /// certificates do not have, set the name that all of them share. It
    /// applies to every server and sentinel of this client.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("rediss+cluster://10.0.0.1,10.0.0.2")
    ///     .tls_name("locks.example.com")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn tls_name(mut self, name: &str) -> Self {
        self.settings.connect.tls.name = Some(name.to_owned());
        self
    }

    /// Disables the verification of TLS certificates.
    ///
    /// An attacker on the network can then read and change all traffic. Use it
    /// for experiments only.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// # use leasehold::Client;
    /// let client = Client::connect("rediss://localhost")
    ///     .dangerously_trust_any_certificate() // a certificate made by hand
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn dangerously_trust_any_certificate(mut self) -> Self {
        self.settings.connect.tls.trusts_all = true;
        self
    }
}

impl<C> std::fmt::Debug for Connect<C> {
    /// Omits the URLs, which can contain a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connect")
            .field("prefix", &self.settings.prefix)
            .field("lease", &self.settings.lease)
            .finish_non_exhaustive()
    }
}

impl Connect {
    /// Requires `count` replicas to acknowledge every lock of this client, each
    /// within `timeout`; see [`Acquire::replicas`](crate::Acquire::replicas).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Replicas};
    ///
    /// let url = "redis+sentinel://one:26379,two:26379,three:26379/locks";
    /// let client = Client::connect(url)
    ///     .replicas(Replicas::All, Duration::from_millis(200))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn replicas(mut self, count: impl Into<Replicas>, timeout: Duration) -> Self {
        let replicas = count.into();
        self.settings.replica_ack = Some(ReplicaAck { replicas, timeout });
        self
    }

    /// Connects, and blocks this thread until the client is connected. The
    /// client can be used by threads and by tasks.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`], and those of [`Pending::wait`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("redis://127.0.0.1/").wait()?;
    /// let guard = client.mutex("report").lock().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<Client, Error> {
        self.into_future().wait()
    }

    /// Starts the keeper of a client that has not connected yet.
    fn open(self) -> Result<Client, Error> {
        let settings = self.settings;
        settings.validate()?;
        let options = settings.acquire_options();
        options.validate()?;
        let target = settings.target(&self.urls[0])?;
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

impl IntoFuture for Connect {
    type Output = Result<Client, Error>;
    type IntoFuture = Pending<'static, Client>;

    fn into_future(self) -> Self::IntoFuture {
        let client = match self.open() {
            Ok(client) => client,
            Err(error) => return Pending::failed(error),
        };
        let runtime = client.engine.runtime().clone();
        Pending::new(&runtime, async move {
            client.engine.connect().await?;
            Ok(client)
        })
    }
}

pub(super) fn keeper_runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Unavailable(error.into()))
}

/// Starts the keeper on its own thread, so it renews leases while the
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
            // Dropped before `runtime`, which the closure owns: waiting threads
            // must see the end before timers panic.
            let _thread = marked.mark_thread();
            runtime.block_on(work);
        })
        .map_err(|error| Error::Unavailable(error.into()))?;
    Ok(Engine::new(backend, keeper, limits, observers))
}

//! The client of a quorum: independent servers that grant locks by majority.

use std::sync::Arc;
use std::time::Duration;

use super::builder::{Settings, keeper_runtime, settings, start_engine};
use crate::backend::Target;
use crate::error::Error;
use crate::lease::{Engine, KeeperRuntime, Readmission, ShutdownOutcome};
use crate::locks::Mutex;
use crate::options::AcquireOptions;
use crate::protocol::{Counters, Electorate, Keyspace};

/// A client of independent servers that grant locks by majority (Redlock).
///
/// A lock survives the loss of any minority of the servers. It is held while a
/// majority stores it and its lease lasts. Its fencing tokens increase as those
/// of every other lock.
///
/// # Limitations
///
/// - The servers must be independent: not replicas of each other, and not nodes
///   of a Cluster. Use three or five, on machines that fail independently.
/// - A server that restarted does not vote until the
///   [longest lease](QuorumBuilder::max_lease) has passed, even if it kept its
///   data.
/// - [`Mutex`] is the only kind of lock.
/// - The quorum must be [bootstrapped](QuorumBuilder::bootstrap) once before
///   its first use.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::Quorum;
///
/// let nodes = ["redis://one", "redis://two", "redis://three"];
/// // Once, when the servers are set up.
/// Quorum::builder(nodes).bootstrap().await?;
///
/// let quorum = Quorum::connect(nodes).await?;
/// let guard = quorum.mutex("coupon:42").lock().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Quorum {
    pub(crate) engine: Arc<Engine>,
    keyspace: Arc<Keyspace>,
    electorate: Arc<Electorate>,
    options: AcquireOptions,
}

impl Quorum {
    /// Connects with the default settings.
    ///
    /// The URLs have the form of [`Client::connect`](crate::Client::connect);
    /// Cluster URLs are not allowed. Every client must list the same servers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that were opened.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a URL is invalid, or if there are fewer than 3 or
    /// more than 64. [`Error::Denied`] if a server rejects the credentials.
    /// [`Error::NoQuorum`] if fewer than a majority of the servers can vote.
    pub async fn connect(urls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        Self::builder(urls).connect().await
    }

    /// Returns a builder to connect with other settings.
    pub fn builder(urls: impl IntoIterator<Item = impl Into<String>>) -> QuorumBuilder {
        QuorumBuilder {
            urls: urls.into_iter().map(Into::into).collect(),
            max_lease: Duration::from_secs(60),
            settings: Settings {
                request_timeout: Duration::from_millis(200),
                ..Settings::default()
            },
        }
    }

    /// Returns a handle to a mutual-exclusion lock.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        let engine = self.engine.clone();
        Mutex::with_quorum(
            engine,
            &self.keyspace,
            &self.electorate,
            name,
            &self.options,
        )
    }

    /// Releases every lock of this client and rejects further operations; see
    /// [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops only the waiting.
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownOutcome {
        self.engine.shutdown(timeout).await
    }
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quorum").finish_non_exhaustive()
    }
}

/// The settings of a [`Quorum`]; see [`Quorum::builder`].
///
/// The defaults suit servers in the same region.
#[must_use = "nothing is connected until `connect` is called"]
pub struct QuorumBuilder {
    urls: Vec<String>,
    max_lease: Duration,
    pub(crate) settings: Settings,
}
settings!(QuorumBuilder);

impl QuorumBuilder {
    /// Sets the longest lease of any client of this quorum and prefix; one
    /// minute by default.
    ///
    /// A server that restarted does not vote for this long. The value must be
    /// the same for all clients.
    pub fn max_lease(mut self, length: Duration) -> Self {
        self.max_lease = length;
        self
    }

    /// Connects and starts the keeper.
    ///
    /// # Cancel safety
    ///
    /// As for [`Quorum::connect`].
    ///
    /// # Errors
    ///
    /// As for [`Quorum::connect`].
    pub async fn connect(self) -> Result<Quorum, Error> {
        self.open()?.connect().await
    }

    /// Lets every server vote.
    ///
    /// Call it once before the first use. Call it again after a majority
    /// restarted, because the servers do not rejoin by themselves then. All
    /// servers must be reachable.
    ///
    /// Servers that never voted can vote at once. If any server has voted,
    /// those that restarted may have forgotten locks that are still held. They
    /// can vote when the [longest lease](Self::max_lease) has passed since
    /// they were first asked. An earlier call fails, and says how long that
    /// takes.
    ///
    /// **If all servers have lost their data**, nothing distinguishes them from
    /// new ones. Wait for the longest lease before you call it then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave some servers voting and others not. Call
    /// it again; the others then vote after the longest lease.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if a server is unreachable, or restarted less than
    /// the longest lease ago. Otherwise as for [`Quorum::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Quorum;
    ///
    /// let nodes = ["redis://one", "redis://two", "redis://three"];
    /// Quorum::builder(nodes).bootstrap().await?;
    /// # Ok(()) }
    /// ```
    pub async fn bootstrap(self) -> Result<(), Error> {
        self.open()?.bootstrap().await
    }

    /// Starts the keeper of a client that has not connected yet.
    pub(crate) fn open(self) -> Result<OpenQuorum, Error> {
        let settings = self.settings;
        settings.validate()?;
        let mut options = settings.acquire_options();
        options.max_lease = self.max_lease;
        options.quorum = true;
        options.validate()?;
        let urls = self.urls.iter();
        let targets: Vec<_> = urls
            .map(|url| settings.target(url))
            .collect::<Result<_, _>>()?;
        if targets.len() < 3 || targets.len() > 64 || targets.iter().any(Target::divides_slots) {
            let why = format!(
                "{} servers; a quorum has 3 to 64 independent servers, and none is a cluster",
                targets.len()
            );
            return Err(Error::invalid("url", why));
        }
        let keyspace = Arc::new(Keyspace::new(&settings.prefix, Counters::one())?);
        let electorate = Arc::new(Electorate::new(&keyspace.voter()));
        let runtime = keeper_runtime()?;
        let keeper = runtime.handle().clone();
        let backend = Target::open_all(
            targets,
            settings.connect.timeout,
            settings.request_timeout,
            &keeper,
        );
        let (max_lease, timeout) = (self.max_lease, settings.request_timeout);
        let readmission = Readmission::new(electorate.clone(), max_lease, timeout);
        let engine = Arc::new(start_engine(
            runtime,
            backend,
            settings.limits(),
            settings.connect.observers,
        )?);
        let quorum = Quorum {
            engine,
            keyspace,
            electorate,
            options,
        };
        Ok(OpenQuorum {
            quorum,
            readmission,
            keeper,
            connect_timeout: settings.connect.timeout,
        })
    }
}

/// The client of a quorum whose votes are not checked yet.
pub(crate) struct OpenQuorum {
    quorum: Quorum,
    readmission: Readmission,
    keeper: tokio::runtime::Handle,
    connect_timeout: Duration,
}

impl OpenQuorum {
    /// Returns the runtime for the requests of blocking callers.
    pub(crate) fn runtime(&self) -> &KeeperRuntime {
        self.quorum.engine.runtime()
    }

    /// Checks that a majority votes.
    pub(crate) async fn connect(self) -> Result<Quorum, Error> {
        let (engine, limit) = (&self.quorum.engine, self.connect_timeout);
        engine.check_votes(&self.readmission, limit).await?;
        self.keeper.spawn(engine.readmit(self.readmission));
        Ok(self.quorum)
    }

    /// Lets every server vote.
    pub(crate) async fn bootstrap(self) -> Result<(), Error> {
        let (engine, limit) = (&self.quorum.engine, self.connect_timeout);
        let result = engine.bootstrap(&self.readmission, limit).await;
        engine.shutdown(Duration::from_secs(1)).await;
        result
    }
}

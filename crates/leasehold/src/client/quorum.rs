//! The client of a quorum: independent servers that grant locks by majority.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::builder::{Connect, Settings, keeper_runtime, start_engine};
use crate::backend::Target;
use crate::error::Error;
use crate::lease::{Engine, Pending, Readmission};
use crate::locks::Mutex;
use crate::options::AcquireOptions;
use crate::protocol::{Counters, Electorate, Keyspace};

/// A client of independent servers that grant locks by majority (Redlock).
///
/// A lock survives the loss of any minority of the servers. It is held while a
/// majority stores it and the lease lasts. Fencing tokens increase as for every
/// other lock.
///
/// # Limitations
///
/// - The servers must be independent: not replicas of each other, and not nodes
///   of a Cluster. Use three or five, on machines that fail independently.
/// - A server that restarted does not vote until the [longest
///   lease](Connect::max_lease) has passed, even if it kept its data.
/// - [`Mutex`] is the only kind of lock.
/// - The quorum must be [bootstrapped](Connect::bootstrap) once before its
///   first use.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// use leasehold::Quorum;
///
/// let nodes = ["redis://one", "redis://two", "redis://three"];
/// // Once, when the servers are set up.
/// Quorum::connect(nodes).bootstrap().await?;
///
/// let quorum = Quorum::connect(nodes).await?;
/// let guard = quorum.mutex("coupon:42").lock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Quorum {
    pub(crate) engine: Arc<Engine>,
    keyspace: Arc<Keyspace>,
    electorate: Arc<Electorate>,
    options: AcquireOptions,
}

impl Quorum {
    /// Connects to the servers of a quorum. Set options on the returned
    /// [`Connect`], then `.await` it, or call [`wait`](Connect::wait) on a
    /// thread.
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
    /// [`Error::Invalid`] if a URL or a setting is invalid, or if there are
    /// fewer than 3 or more than 64 servers. [`Error::Denied`] if a server
    /// rejects the credentials. [`Error::NoQuorum`] if fewer than a majority of
    /// the servers can vote.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Quorum;
    ///
    /// let quorum = Quorum::connect(["redis://one", "redis://two", "redis://three"])
    ///     .lease(Duration::from_secs(10))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn connect(urls: impl IntoIterator<Item = impl Into<String>>) -> Connect<Self> {
        Connect {
            urls: urls.into_iter().map(Into::into).collect(),
            settings: Settings {
                request_timeout: Duration::from_millis(200),
                ..Settings::default()
            },
            makes: PhantomData,
        }
    }

    /// Returns a handle to a mutual-exclusion lock that a majority of the
    /// servers grants.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Error, Quorum};
    /// # async fn example(quorum: Quorum) -> Result<(), Error> {
    /// # async fn pay() {}
    /// quorum.mutex("payment:42").run(|_lease| pay()).await
    /// # }
    /// ```
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
    ///
    /// # Errors
    ///
    /// [`Error::Unreleased`] if some locks were not released in time. They
    /// expire with their leases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Quorum};
    /// # fn example(quorum: Quorum) -> Result<(), Error> {
    /// quorum.shutdown(Duration::from_secs(5)).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn shutdown(&self, timeout: Duration) -> Pending<'_, ()> {
        self.engine.pending(self.engine.shutdown(timeout))
    }
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quorum").finish_non_exhaustive()
    }
}

impl Connect<Quorum> {
    /// Sets the longest lease of any client of this quorum and prefix; one
    /// minute by default.
    ///
    /// A server that restarted does not vote for this long. The value must be
    /// the same for all clients.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::Quorum;
    /// # async fn example() -> Result<(), leasehold::Error> {
    /// let nodes = ["redis://one", "redis://two", "redis://three"];
    /// let quorum = Quorum::connect(nodes)
    ///     .max_lease(Duration::from_secs(30))
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn max_lease(mut self, length: Duration) -> Self {
        self.settings.max_lease = length;
        self
    }

    /// Connects, and blocks this thread until the client is connected. The
    /// client can be used by threads and by tasks.
    ///
    /// # Errors
    ///
    /// Those of [`Quorum::connect`], and those of [`Pending::wait`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), leasehold::Error> {
    /// use leasehold::Quorum;
    ///
    /// let nodes = ["redis://one", "redis://two", "redis://three"];
    /// let quorum = Quorum::connect(nodes).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<Quorum, Error> {
        self.into_future().wait()
    }

    /// Lets every server vote.
    ///
    /// Call it once before the first use. Call it again after a majority
    /// restarted, because the servers do not rejoin by themselves then. All
    /// servers must be reachable.
    ///
    /// Servers that never voted can vote at once. If any server has voted,
    /// those that restarted may have forgotten locks that are still held. They
    /// can vote when the [longest lease](Self::max_lease) has passed since they
    /// were first asked. An earlier call fails, and says how long that takes.
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
    /// Quorum::connect(nodes).bootstrap().await?;
    /// # Ok(()) }
    /// ```
    pub fn bootstrap(self) -> Pending<'static, ()> {
        self.started(OpenQuorum::bootstrap)
    }

    /// Opens the client and starts a request with it.
    fn started<T, W>(self, request: fn(OpenQuorum) -> W) -> Pending<'static, T>
    where
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        match self.open() {
            Ok(opened) => {
                let runtime = opened.quorum.engine.runtime().clone();
                Pending::new(&runtime, request(opened))
            }
            Err(error) => Pending::failed(error),
        }
    }

    /// Starts the keeper of a client that has not connected yet.
    fn open(self) -> Result<OpenQuorum, Error> {
        let settings = self.settings;
        settings.validate()?;
        let mut options = settings.acquire_options();
        options.max_lease = settings.max_lease;
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
        let (max_lease, timeout) = (settings.max_lease, settings.request_timeout);
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
struct OpenQuorum {
    quorum: Quorum,
    readmission: Readmission,
    keeper: tokio::runtime::Handle,
    connect_timeout: Duration,
}

impl OpenQuorum {
    /// Checks that a majority votes.
    async fn connect(self) -> Result<Quorum, Error> {
        let (engine, limit) = (&self.quorum.engine, self.connect_timeout);
        engine.check_votes(&self.readmission, limit).await?;
        self.keeper.spawn(engine.readmit(self.readmission));
        Ok(self.quorum)
    }

    /// Lets every server vote.
    async fn bootstrap(self) -> Result<(), Error> {
        let (engine, limit) = (&self.quorum.engine, self.connect_timeout);
        let result = engine.bootstrap(&self.readmission, limit).await;
        // Nothing was acquired, so a shutdown that fails leaves nothing behind.
        let _ = engine.shutdown(Duration::from_secs(1)).await;
        result
    }
}

impl IntoFuture for Connect<Quorum> {
    type Output = Result<Quorum, Error>;
    type IntoFuture = Pending<'static, Quorum>;

    fn into_future(self) -> Self::IntoFuture {
        self.started(OpenQuorum::connect)
    }
}

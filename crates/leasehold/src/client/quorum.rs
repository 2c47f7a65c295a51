//! A quorum: locks kept by a majority of independent servers (Redlock), put together from the layers.

use std::sync::Arc;
use std::time::Duration;

use super::builder::{Settings, keeper_runtime, settings, start};
use crate::backend::Target;
use crate::error::Error;
use crate::lease::{Admission, Engine, ShutdownOutcome};
use crate::locks::Mutex;
use crate::options::AcquireOptions;
use crate::protocol::{Counters, Electorate, Keyspace};

/// Independent servers, of which a majority keeps each lock: it outlives the loss of any minority.
///
/// The servers must not be replicas of each other, nor nodes of a cluster; three or five of them, best on machines that
/// fail apart. A lock is held while a majority has it and its lease lasts; tokens rise as everywhere. A server
/// that was started again, whether or not it kept its data, does not vote until the longest lease has passed.
/// Before the first use the quorum must be [founded](QuorumBuilder::found), once.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold::Error> {
/// let nodes = ["redis://one", "redis://two", "redis://three"];
/// leasehold::Quorum::builder(nodes).bootstrap().await?; // once, by whoever sets it up
///
/// let quorum = leasehold::Quorum::connect(nodes).await?;
/// let guard = quorum.mutex("coupon:42").lock().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Quorum {
    engine: Arc<Engine>,
    keyspace: Arc<Keyspace>,
    electorate: Arc<Electorate>,
    options: AcquireOptions,
}

impl Quorum {
    /// Connects with the default settings. The URLs are those of [`Client::connect`](crate::Client::connect),
    /// except clusters; the same ones for every client.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    ///
    /// When a URL makes no sense, a server refuses the credentials, or fewer than a majority can vote
    /// ([`Error::NoQuorum`]).
    pub async fn connect(urls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        Self::builder(urls).connect().await
    }

    /// Connects with other settings.
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

    /// A lock that one holder has at a time.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        let engine = self.engine.clone();
        Mutex::voted(
            engine,
            &self.keyspace,
            &self.electorate,
            name,
            &self.options,
        )
    }

    /// As [`Client::shutdown`](crate::Client::shutdown).
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

/// Settings of a [`Quorum`], each with a default for servers in the same region.
#[must_use = "nothing is connected until `connect` is called"]
pub struct QuorumBuilder {
    urls: Vec<String>,
    max_lease: Duration,
    settings: Settings,
}
settings!(QuorumBuilder);

impl QuorumBuilder {
    /// The longest lease of any client of this quorum and prefix; a minute by default. A server that was started again
    /// does not vote for so long: it must be the same for all.
    pub fn max_lease(mut self, length: Duration) -> Self {
        self.max_lease = length;
        self
    }

    /// Connects, and starts the keeper.
    ///
    /// # Cancel safety
    ///
    /// As for [`Quorum::connect`].
    ///
    /// # Errors
    ///
    /// As for [`Quorum::connect`].
    pub async fn connect(self) -> Result<Quorum, Error> {
        let limit = self.settings.connect_timeout;
        let (quorum, admission, keeper) = self.open()?;
        admission.check(&quorum.engine, limit).await?;
        keeper.spawn(admission.watch(Arc::downgrade(&quorum.engine)));
        Ok(quorum)
    }

    /// Declares that no lock of this quorum and prefix is held, and lets every server vote: once before the first
    /// use, and again only when a majority has lost its data and the longest lease has passed since.
    ///
    /// Where locks are held, it makes no difference to servers that vote already; those that do not forget what they
    /// granted before they were started again, which may be granted twice.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves some servers voting and others not; it can be repeated.
    ///
    /// # Errors
    ///
    /// When one of the servers cannot be reached: all of them must vote at the start.
    pub async fn bootstrap(self) -> Result<(), Error> {
        let limit = self.settings.connect_timeout;
        let (quorum, admission, _) = self.open()?;
        let founded = admission.found(&quorum.engine, limit).await;
        quorum.shutdown(Duration::from_secs(1)).await;
        founded
    }

    fn open(self) -> Result<(Quorum, Admission, tokio::runtime::Handle), Error> {
        let settings = self.settings;
        let mut options = AcquireOptions::new(settings.lease);
        options.max_lease = self.max_lease;
        options.quorum = true;
        options.validate()?;
        let urls = self.urls.iter();
        let targets: Vec<_> = urls
            .map(|url| settings.target(url))
            .collect::<Result<_, _>>()?;
        if targets.len() < 3 || targets.len() > 64 || targets.iter().any(Target::divides_slots) {
            let why = "a quorum is from 3 to 64 independent servers, none of them a cluster";
            return Err(Error::invalid("url", why));
        }
        let keyspace = Arc::new(Keyspace::new(&settings.prefix, Counters::one())?);
        let electorate = Arc::new(Electorate::new(&keyspace.voter()));
        let runtime = keeper_runtime()?;
        let keeper = runtime.handle().clone();
        let backend = Target::open_all(
            targets,
            settings.connect_timeout,
            settings.request_timeout,
            &keeper,
        );
        let (longest, timeout) = (self.max_lease, settings.request_timeout);
        let admission = Admission::new(electorate.clone(), longest, timeout);
        let engine = Arc::new(start(runtime, backend, settings.limits())?);
        let quorum = Quorum {
            engine,
            keyspace,
            electorate,
            options,
        };
        Ok((quorum, admission, keeper))
    }
}

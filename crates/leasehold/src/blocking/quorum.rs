//! The client of a quorum.

use std::time::Duration;

use super::bridge::Bridge;
use super::mutex::Mutex;
use crate::client::{Settings, settings};
use crate::error::Error;
use crate::lease::ShutdownOutcome;

/// A client of independent servers that grant locks by majority (Redlock); see
/// the async [`Quorum`](crate::Quorum).
#[derive(Clone, Debug)]
pub struct Quorum(Bridge<crate::Quorum>);

impl Quorum {
    /// Connects with the default settings.
    ///
    /// # Errors
    ///
    /// As for the async [`connect`](crate::Quorum::connect).
    pub fn connect(urls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        Self::builder(urls).connect()
    }

    /// Returns a builder to connect with other settings.
    pub fn builder(urls: impl IntoIterator<Item = impl Into<String>>) -> QuorumBuilder {
        let mut builder = crate::Quorum::builder(urls);
        QuorumBuilder {
            settings: std::mem::take(&mut builder.settings),
            builder,
        }
    }

    /// Returns a handle to a mutual-exclusion lock.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex(self.0.map(|quorum| quorum.mutex(name)))
    }

    /// Releases every lock of this client and rejects further operations; see
    /// [`Client::shutdown`](super::Client::shutdown).
    ///
    /// # Errors
    ///
    /// As for [`Client::shutdown`](super::Client::shutdown).
    pub fn shutdown(&self, timeout: Duration) -> Result<ShutdownOutcome, Error> {
        self.0
            .wait(async { Ok(self.0.inner.shutdown(timeout).await) })
    }
}

/// The settings of a [`Quorum`]; see [`Quorum::builder`].
#[must_use = "nothing is connected until `connect` is called"]
pub struct QuorumBuilder {
    /// Its own settings are replaced by `settings`.
    builder: crate::QuorumBuilder,
    settings: Settings,
}
settings!(QuorumBuilder);

impl QuorumBuilder {
    /// Sets the longest lease of any client of this quorum and prefix; see the
    /// async [`max_lease`](crate::QuorumBuilder::max_lease).
    pub fn max_lease(mut self, length: Duration) -> Self {
        self.builder = self.builder.max_lease(length);
        self
    }

    /// Connects and starts the keeper.
    ///
    /// # Errors
    ///
    /// As for [`Quorum::connect`].
    pub fn connect(mut self) -> Result<Quorum, Error> {
        self.builder.settings = self.settings;
        let open = self.builder.open()?;
        let runtime = open.runtime().clone();
        let inner = runtime.wait(open.connect())?;
        Ok(Quorum(Bridge { inner, runtime }))
    }

    /// Lets every server vote, once no lock from before can be held; see the
    /// async [`bootstrap`](crate::QuorumBuilder::bootstrap).
    ///
    /// # Errors
    ///
    /// As for the async [`bootstrap`](crate::QuorumBuilder::bootstrap).
    pub fn bootstrap(mut self) -> Result<(), Error> {
        self.builder.settings = self.settings;
        let open = self.builder.open()?;
        let runtime = open.runtime().clone();
        runtime.wait(open.bootstrap())
    }
}

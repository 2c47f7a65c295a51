//! Where the server is that takes writes: always at one address, or wherever sentinels say.

use std::sync::Arc;
use std::time::Duration;

use super::dial::Endpoint;
use super::reply::{Cause, Failure};
use super::sentinel::Sentinels;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) enum Origin {
    Fixed(Arc<Endpoint>),
    Elected(Arc<Sentinels>),
}

impl Origin {
    /// Understands `url`; `root_certificate` (PEM) replaces the system's trusted ones.
    pub(crate) fn new(
        url: &str,
        root_certificate: Option<&[u8]>,
        connect_timeout: Duration,
    ) -> Result<Self, Cause> {
        match Sentinels::new(url, root_certificate, connect_timeout) {
            Some(sentinels) => sentinels.map(Self::Elected),
            None => {
                let endpoint = Endpoint::new(url, root_certificate, connect_timeout)?;
                Ok(Self::Fixed(Arc::new(endpoint)))
            }
        }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        match self {
            Self::Fixed(endpoint) => endpoint.connect_timeout(),
            // The sentinels are asked first.
            Self::Elected(sentinels) => sentinels.connect_timeout() * 2,
        }
    }

    /// The server to connect to now.
    pub(super) async fn endpoint(&self) -> Result<Arc<Endpoint>, Failure> {
        match self {
            Self::Fixed(endpoint) => Ok(endpoint.clone()),
            Self::Elected(sentinels) => sentinels.master().await.map(Arc::new),
        }
    }
}

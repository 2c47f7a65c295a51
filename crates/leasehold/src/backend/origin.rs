//! Where the server is that takes writes: always at one address, or wherever sentinels say.

use std::sync::Arc;
use std::time::Duration;

use super::dial::{Endpoint, Role, Tls};
use super::reply::{Cause, Failure};
use super::sentinel::Sentinels;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) enum Origin {
    Fixed(Arc<Endpoint>, Role),
    Elected(Arc<Sentinels>),
}

impl Origin {
    /// Understands `url`.
    pub(super) fn new(url: &str, tls: &Tls, connect_timeout: Duration) -> Result<Self, Cause> {
        match Sentinels::new(url, tls, connect_timeout) {
            Some(sentinels) => sentinels.map(Self::Elected),
            None => {
                let endpoint = Endpoint::new(url, tls, connect_timeout)?;
                Ok(Self::Fixed(Arc::new(endpoint), Role::Master))
            }
        }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        match self {
            Self::Fixed(endpoint, _) => endpoint.connect_timeout(),
            // The sentinels are asked first.
            Self::Elected(sentinels) => sentinels.connect_timeout() * 2,
        }
    }

    /// The server to connect to now, and what it must be.
    pub(super) async fn endpoint(&self) -> Result<(Arc<Endpoint>, Role), Failure> {
        match self {
            Self::Fixed(endpoint, role) => Ok((endpoint.clone(), *role)),
            Self::Elected(sentinels) => {
                let master = sentinels.master().await?;
                Ok((Arc::new(master), Role::Master))
            }
        }
    }
}

//! The lane of callers: one shared connection, made by whichever caller first needs it.
//!
//! The connection is made in the caller's own task and so driven by the caller's runtime: no hop
//! between threads on the way to the server. When that runtime ends, the connection ends with it,
//! and the next caller makes another on its own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Mutex;

use super::backoff::Backoff;
use super::link::LiveLink;
use super::origin::Origin;
use super::reply::Failure;
use crate::clock::Moment;

pub(super) struct Requests {
    origin: Origin,
    current: RwLock<Option<Arc<LiveLink>>>,
    /// Held while connecting, so that many callers make one connection.
    dialing: Mutex<Dialing>,
}

/// What the last failed attempt left: the next one must wait until `not_before`.
struct Dialing {
    backoff: Backoff,
    not_before: Moment,
    last_error: String,
}

impl Requests {
    pub(super) fn new(origin: Origin) -> Self {
        Self {
            origin,
            current: RwLock::new(None),
            dialing: Mutex::new(Dialing {
                backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
                not_before: Moment::now(),
                last_error: String::new(),
            }),
        }
    }

    pub(super) async fn link(&self) -> Result<Arc<LiveLink>, Failure> {
        match self.open_link() {
            Some(link) => Ok(link),
            None => self.dial().await,
        }
    }

    pub(super) fn open_link(&self) -> Option<Arc<LiveLink>> {
        self.current
            .read()
            .as_ref()
            .filter(|link| link.is_open())
            .cloned()
    }

    async fn dial(&self) -> Result<Arc<LiveLink>, Failure> {
        let mut dialing = self.dialing.lock().await;
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        if Moment::now() < dialing.not_before {
            return Err(Failure::Unreachable(dialing.last_error.clone().into()));
        }
        match LiveLink::connect(&self.origin, "leasehold-requests", |_, _| ()).await {
            Ok(link) => {
                dialing.backoff.reset();
                *self.current.write() = Some(link.clone());
                Ok(link)
            }
            Err(failure) => {
                *self.current.write() = None;
                dialing.not_before = Moment::now() + dialing.backoff.pause();
                dialing.last_error = failure.to_string();
                Err(failure)
            }
        }
    }
}

//! Watching for changes on the server: a subscription, and a poll as fallback.

use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, error_of};
use super::wait::Wakeup;
use crate::backend::{Channel, Purpose, RequestError, Slot, Subscription};
use crate::error::Error;
use crate::protocol::Call;

/// A lost message delays a watcher by at most this.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A watcher of one channel. It stays subscribed until it is dropped.
pub(crate) struct Watch {
    context: Arc<Context>,
    channel: Channel,
    slot: Slot,
    wakeup: Arc<Wakeup>,
    subscription: Option<Subscription>,
}

impl Watch {
    pub(super) fn new(context: Arc<Context>, channel: Channel, slot: Slot) -> Self {
        Self {
            context,
            channel,
            slot,
            wakeup: Arc::default(),
            subscription: None,
        }
    }

    /// Reads the current state of `name`. Every later change wakes the
    /// watcher.
    pub(crate) async fn read<R>(&mut self, name: &str, call: Call<R>) -> Result<R, Error> {
        self.context.check_process()?;
        let read = async {
            self.context.check_open()?;
            // Subscribed before the read, or a change in between would be
            // missed.
            self.subscribe().await?;
            // The subscription's own connection: the read notices if it no
            // longer responds.
            let backend = &self.context.backend;
            let connection = backend.connection(Purpose::Keeper, self.slot).await?;
            call.send(&*connection, self.context.limits.request).await
        };
        read.await.map_err(|error| error_of(error, name))
    }

    /// Waits for a message, or until the next poll is due.
    pub(crate) async fn changed(&self) {
        tokio::select! {
            biased;
            () = self.context.closed() => {}
            () = self.wakeup.0.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }

    /// If subscribing takes too long we go on polling, and try again with the
    /// next read.
    async fn subscribe(&mut self) -> Result<(), RequestError> {
        if self.subscription.is_none() {
            let (backend, limit) = (&self.context.backend, self.context.limits.request);
            let listener = self.wakeup.clone();
            let subscribed = backend.subscribe(self.channel.clone(), self.slot, listener);
            if let Ok(subscribed) = tokio::time::timeout(limit, subscribed).await {
                self.subscription = Some(subscribed?);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

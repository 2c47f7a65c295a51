//! Watching for changes on the server: a subscription, and a poll as fallback.

use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, error_of};
use super::wait::Wakeups;
use crate::backend::{Channel, Purpose, Slot};
use crate::error::Error;
use crate::protocol::Call;

/// A lost message delays a watcher by at most this.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A watcher of one channel. It stays subscribed until it is dropped.
pub(crate) struct Watch {
    context: Arc<Context>,
    channel: Channel,
    slot: Slot,
    wakeups: Wakeups,
}

impl Watch {
    pub(super) fn new(context: Arc<Context>, channel: Channel, slot: Slot) -> Self {
        Self {
            context,
            channel,
            slot,
            wakeups: Wakeups::default(),
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
            let channel = || self.channel.clone();
            self.wakeups
                .listen(&self.context, channel, self.slot)
                .await?;
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
            _ = self.wakeups.next(POLL_INTERVAL) => {}
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

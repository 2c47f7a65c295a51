//! Wake-ups: a subscription, and polls as a fallback (invariant 5).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Channel, Listener, PubSubEvent, RequestError, Slot, Subscription};
use crate::lease::context::Context;

/// A wake-up, set by the connection's task.
#[derive(Default)]
struct Wakeup(Notify);

impl Listener for Wakeup {
    fn on_event(&self, _event: PubSubEvent<'_>) {
        // Every event is a wake-up; its content does not matter.
        self.0.notify_one();
    }
}

/// Returns the subscription; `None` if the server does not know the command, or
/// an ACL denies it. Waiters poll then.
pub(super) fn unless_refused<T>(
    subscribed: Result<T, RequestError>,
) -> Result<Option<T>, RequestError> {
    match subscribed {
        Ok(subscription) => Ok(Some(subscription)),
        Err(error) if error.lacks_command() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The messages of one channel, from the first [`listen`](Self::listen) on.
#[derive(Default)]
pub(crate) struct Wakeups {
    wakeup: Arc<Wakeup>,
    subscription: Option<Subscription>,
}

impl Wakeups {
    /// Subscribes. If that takes too long, or the server has no such channels,
    /// we go on without for now, and try again the next time.
    pub(crate) async fn listen(
        &mut self,
        context: &Context,
        channel: impl FnOnce() -> Channel,
        slot: Slot,
    ) -> Result<(), RequestError> {
        if self.subscription.is_none() {
            let listener = self.wakeup.clone();
            let subscribing = context.backend.subscribe(channel(), slot, listener);
            let limit = context.limits.request;
            if let Ok(subscribed) = tokio::time::timeout(limit, subscribing).await {
                self.subscription = unless_refused(subscribed)?;
            }
        }
        Ok(())
    }

    /// Waits for a message, at most `limit`. Returns whether there was one.
    pub(crate) async fn next(&self, limit: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.wakeup.0.notified() => true,
            () = tokio::time::sleep(limit) => false,
        }
    }
}

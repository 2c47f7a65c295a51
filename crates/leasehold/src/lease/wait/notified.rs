//! Waiting for a wake-up: after a release, the first client to retry wins.
//!
//! The waiting task subscribes to wake-ups and polls as a fallback (invariant
//! 5). Polls use the connection that carries the subscription, so they notice a
//! connection that stopped responding.

use std::time::Duration;

use super::progress::Wait;
use super::wakeup::Wakeups;
use crate::backend::{Purpose, RequestError, Slot};
use crate::lease::attempt::{Attempt, attempt, split_backoff};
use crate::lease::context::Context;
use crate::lease::owned::OwnedLease;
use crate::owner::Owner;
use crate::protocol::{LockStatus, Notified};
use crate::time::BootInstant;

/// A lost message delays a waiter by at most this.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Polls are at least this far apart: two commands a second.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(550);

/// How long a process that used up its hand-off window waits before an attempt,
/// once for each other process that waits.
const YIELD_DELAY: Duration = Duration::from_millis(1);

/// What a waiting task keeps from one acquisition to the next.
#[derive(Default)]
pub(super) struct Conversation {
    wakeups: Wakeups,
    /// The number of attempts before which this process yields to others.
    yields: u64,
}

impl Conversation {
    /// Lets `others` processes go first.
    pub(super) fn yield_to(&mut self, others: u64) {
        self.yields = self.yields.max(others);
    }

    /// Delays the next attempt of a process that used up a hand-off window.
    async fn yield_once(&mut self) {
        if let Some(left) = self.yields.checked_sub(1) {
            tokio::time::sleep(YIELD_DELAY).await;
            // After the pause: if that is cancelled, it has not counted.
            self.yields = left;
        }
    }
}

/// Attempts until the lock is acquired, after each wake-up and each poll that
/// finds the lock free.
pub(super) async fn acquire(
    wait: &Wait<'_>,
    lock: &dyn Notified,
    conversation: &mut Conversation,
) -> Result<OwnedLease, RequestError> {
    let Wait { context, kind, .. } = wait;
    let slot = kind.slot();
    let mut backoff = split_backoff();
    let mut polls = Polls::default();
    loop {
        conversation.yield_once().await;
        // Subscribed before the attempt, so that no release is missed.
        let channel = || lock.channel_name().channel();
        let wakeups = &mut conversation.wakeups;
        let outcome = match wakeups.listen(context, channel, slot).await {
            Ok(()) => attempt(context, kind, wait.options, Owner::random(), true).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(Attempt::Acquired(lease)) => return Ok(lease),
            Ok(Attempt::Split) => {
                wait.progress.on_reply();
                tokio::time::sleep(backoff.pause()).await;
            }
            Ok(Attempt::Busy(holder)) => {
                backoff.reset();
                let remaining = holder.lease_remaining;
                wait.progress.on_busy(holder, None);
                polls
                    .wait_for_wakeup(context, lock, slot, wakeups, remaining)
                    .await;
            }
            Err(error) => tokio::time::sleep(wait.progress.on_error(error)?).await,
        }
    }
}

/// The polls of one wait.
#[derive(Default)]
pub(super) struct Polls {
    last: Option<BootInstant>,
}

impl Polls {
    /// Waits for a wake-up, or until a poll finds the lock free. `remaining` is
    /// the holder's lease unless it is renewed.
    pub(super) async fn wait_for_wakeup(
        &mut self,
        context: &Context,
        lock: &dyn Notified,
        slot: Slot,
        wakeups: &Wakeups,
        mut remaining: Option<Duration>,
    ) {
        while !wakeups.next(self.next_poll_delay(remaining)).await {
            self.last = Some(BootInstant::now());
            match poll(context, lock, slot).await {
                Ok(LockStatus::Held { remaining: left }) => remaining = left,
                // An error too: the next attempt meets it again, and backs off.
                Ok(LockStatus::Free) | Err(_) => return,
            }
        }
    }

    /// Returns the delay until the holder's lease can have expired, at most
    /// [`MAX_POLL_INTERVAL`], and at least [`MIN_POLL_INTERVAL`] after the
    /// last poll.
    fn next_poll_delay(&self, remaining: Option<Duration>) -> Duration {
        let millisecond = Duration::from_millis(1);
        let expiry = remaining.map_or(MAX_POLL_INTERVAL, |remaining| remaining + millisecond);
        let since_last = self
            .last
            .map_or(MIN_POLL_INTERVAL, |last| BootInstant::now().since(last));
        expiry
            .min(MAX_POLL_INTERVAL)
            .max(MIN_POLL_INTERVAL.saturating_sub(since_last))
    }
}

/// Reads whether `lock` is free.
pub(super) async fn poll(
    context: &Context,
    lock: &dyn Notified,
    slot: Slot,
) -> Result<LockStatus, RequestError> {
    let connection = context.backend.connection(Purpose::Keeper, slot).await?;
    lock.poll().send(&*connection, context.limits.request).await
}

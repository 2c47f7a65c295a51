//! Waiting for a wake-up: after a release, the first client to retry wins.
//!
//! The leader subscribes to wake-ups and polls as a fallback (invariant 5).
//! Its polls use the connection that carries the subscription, so they notice
//! a connection that stopped responding.

use std::sync::Arc;
use std::time::Duration;

use super::leader::{LeaderTurn, drive, turn_to_lead};
use super::registry::WaiterRegistry;
use crate::backend::{Purpose, RequestError, Slot};
use crate::lease::attempt::{Attempt, attempt, split_backoff};
use crate::lease::context::Context;
use crate::lease::owned::OwnedLease;
use crate::lease::retry::RetryState;
use crate::options::AcquireOptions;
use crate::protocol::{Kind, LockStatus, Notified};
use crate::time::BootInstant;

/// A lost message delays a waiter by at most this.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Polls are at least this far apart: two commands a second.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(550);

/// Attempts until the lock is acquired, after each wake-up and each poll that
/// finds the lock free.
pub(super) async fn acquire(
    context: &Arc<Context>,
    kind: &Arc<dyn Kind>,
    lock: &dyn Notified,
    options: &AcquireOptions,
    mut turn: LeaderTurn<'_>,
    retry: &mut RetryState,
) -> Result<OwnedLease, RequestError> {
    let (mut backoff, mut polls) = (split_backoff(), Polls::default());
    loop {
        turn.yield_to_other_processes().await;
        // Subscribed before the attempt, so that no release is missed.
        let outcome = match turn.listen(context, lock, kind.slot()).await {
            Ok(()) => attempt(context, kind, options, true).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(Attempt::Acquired(mut lease)) => {
                turn.on_acquired(&mut lease, options);
                return Ok(lease);
            }
            Ok(Attempt::Split) => {
                retry.on_reply();
                tokio::time::sleep(backoff.pause()).await;
            }
            Ok(Attempt::Busy(holder)) => {
                backoff.reset();
                let remaining = holder.lease_remaining;
                turn.record_holder(&holder, None);
                retry.on_busy(holder);
                polls
                    .wait_for_wakeup(context, lock, kind.slot(), &turn, remaining)
                    .await;
            }
            Err(error) => {
                retry.on_error(error)?;
                tokio::time::sleep(retry.backoff.pause()).await;
            }
        }
    }
}

/// Waits until a poll finds the lock free, without acquiring it.
pub(super) async fn wait_until_free(
    context: &Context,
    registry: &Arc<WaiterRegistry>,
    lock: &dyn Notified,
    slot: Slot,
    retry: &mut RetryState,
) -> Result<(), RequestError> {
    let registration = registry.register(lock.local_queue_key());
    let mut turn = turn_to_lead(&registration, &context.keeper).await;
    let pulse = turn.pulse();
    let waiting = async {
        let mut polls = Polls::default();
        loop {
            let status = match turn.listen(context, lock, slot).await {
                Ok(()) => poll(context, lock, slot).await,
                Err(error) => Err(error),
            };
            match status {
                Ok(LockStatus::Free) => return Ok(()),
                Ok(LockStatus::Held { remaining }) => {
                    retry.on_reply();
                    polls
                        .wait_for_wakeup(context, lock, slot, &turn, remaining)
                        .await;
                }
                Err(error) => {
                    retry.on_error(error)?;
                    tokio::time::sleep(retry.backoff.pause()).await;
                }
            }
        }
    };
    drive(Some(pulse), waiting).await
}

/// The polls of one turn.
#[derive(Default)]
struct Polls {
    last: Option<BootInstant>,
}

impl Polls {
    /// Waits for a wake-up, or until a poll finds the lock free. `remaining` is
    /// the holder's lease unless it is renewed.
    async fn wait_for_wakeup(
        &mut self,
        context: &Context,
        lock: &dyn Notified,
        slot: Slot,
        turn: &LeaderTurn<'_>,
        mut remaining: Option<Duration>,
    ) {
        loop {
            let delay = self.next_poll_delay(remaining);
            tokio::select! {
                biased;
                () = turn.registration.entry.wakeup.0.notified() => return,
                () = tokio::time::sleep(delay) => {}
            }
            self.last = Some(BootInstant::now());
            match poll(context, lock, slot).await {
                Ok(LockStatus::Held { remaining: left }) => remaining = left,
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

async fn poll(
    context: &Context,
    lock: &dyn Notified,
    slot: Slot,
) -> Result<LockStatus, RequestError> {
    let connection = context.backend.connection(Purpose::Keeper, slot).await?;
    lock.poll().send(&*connection, context.limits.request).await
}

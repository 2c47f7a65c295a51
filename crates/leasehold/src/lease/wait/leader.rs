//! A task's turn to talk to the server for all tasks that want the same lock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::handoff::Handoff;
use super::local_queue::{Enqueued, Leader, Pulse, Wake};
use super::registry::{LeaderState, LeaseQueue, Registration};
use crate::backend::{RequestError, Slot};
use crate::info::Holder;
use crate::lease::context::Context;
use crate::lease::keeper::Keeper;
use crate::lease::owned::OwnedLease;
use crate::options::AcquireOptions;
use crate::protocol::Notified;

/// How long a process waits before its next attempt after it used up a
/// hand-off window.
const YIELD_DELAY: Duration = Duration::from_millis(1);

/// What a task in the local queue is woken for.
pub(super) enum Turn<'a> {
    Lead(LeaderTurn<'a>),
    Hold(OwnedLease),
}

/// The leadership of one task.
pub(super) struct LeaderTurn<'a> {
    pub(super) registration: &'a Registration,
    pub(super) leader: Leader<LeaderState, OwnedLease>,
    yield_delay: Option<Duration>,
}

/// Waits in the local queue until this task leads, or holds the lock by
/// hand-off.
pub(super) async fn turn<'a>(
    registration: &'a Registration,
    options: &AcquireOptions,
    keeper: &Keeper,
) -> Turn<'a> {
    let queue = &registration.entry.queue;
    let mut enqueued = monitored(queue, queue.enqueue(), keeper);
    loop {
        match enqueued.woken().await {
            Wake::Lead(leader) => return Turn::Lead(LeaderTurn::new(registration, leader)),
            Wake::Hold(lease) => match lease.claim(options).await {
                Ok(lease) => return Turn::Hold(lease),
                Err(unusable) => {
                    enqueued = monitored(queue, queue.requeue_front(), keeper);
                    // Only once this task is queued again: it is elected as
                    // soon as the lock is released.
                    drop(unusable);
                }
            },
        }
    }
}

/// Waits in the local queue until this task leads; it wants no lock.
pub(super) async fn turn_to_lead<'a>(
    registration: &'a Registration,
    keeper: &Keeper,
) -> LeaderTurn<'a> {
    let queue = &registration.entry.queue;
    loop {
        let enqueued = monitored(queue, queue.enqueue(), keeper);
        if let Wake::Lead(leader) = enqueued.woken().await {
            return LeaderTurn::new(registration, leader);
        }
    }
}

/// Registers the queue with the keeper if a task was enqueued.
fn monitored(
    queue: &Arc<LeaseQueue>,
    enqueued: Enqueued<LeaderState, OwnedLease>,
    keeper: &Keeper,
) -> Enqueued<LeaderState, OwnedLease> {
    if queue.begin_monitoring() {
        keeper.monitor(Arc::<LeaseQueue>::downgrade(queue));
    }
    enqueued
}

/// Drives `work` and records each poll: a leader that is not polled loses its
/// turn.
pub(super) async fn drive<T>(pulse: Option<Arc<Pulse>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Some(pulse) = &pulse {
            pulse.beat(context);
        }
        work.as_mut().poll(context)
    })
    .await
}

impl<'a> LeaderTurn<'a> {
    fn new(registration: &'a Registration, mut leader: Leader<LeaderState, OwnedLease>) -> Self {
        let yield_next = std::mem::take(&mut leader.last_window.yield_next);
        Self {
            registration,
            leader,
            yield_delay: yield_next.then_some(YIELD_DELAY),
        }
    }

    pub(super) fn pulse(&self) -> Arc<Pulse> {
        self.leader.pulse()
    }

    /// Ends the turn with the lock acquired. If it can be handed off, the
    /// other tasks wait for that instead of asking the server.
    pub(super) fn on_acquired(self, lease: &mut OwnedLease, options: &AcquireOptions) {
        let Some(holder) = lease.handoff_holder(options) else {
            return;
        };
        self.registration.record_holder(holder, None);
        let registration = self.registration.again();
        let last_handoffs = self.leader.last_window.handoffs;
        if self.leader.park() {
            lease.attach(Handoff::new(registration, options, last_handoffs));
        }
    }

    /// Delays the next attempt of a process that used up a hand-off window, so
    /// that other processes go first. The delay halves with every attempt.
    pub(super) async fn yield_to_other_processes(&mut self) {
        if let Some(delay) = self.yield_delay {
            tokio::time::sleep(delay).await;
            self.yield_delay = Some(delay / 2).filter(|delay| *delay > YIELD_DELAY / 16);
        }
    }

    /// Subscribes to wake-ups. If that takes too long, the leader continues
    /// without for now.
    pub(super) async fn listen(
        &mut self,
        context: &Context,
        lock: &dyn Notified,
        slot: Slot,
    ) -> Result<(), RequestError> {
        if self.leader.subscription.is_none() {
            let wakeup = self.registration.entry.wakeup.clone();
            let channel = lock.channel_name().channel();
            let subscribing = context.backend.subscribe(channel, slot, wakeup);
            let limit = context.limits.request;
            if let Ok(subscribed) = tokio::time::timeout(limit, subscribing).await {
                self.leader.subscription = Some(subscribed?);
            }
        }
        Ok(())
    }

    /// Returns the ticket of this process's position in the server's queue.
    pub(super) fn ticket(&mut self) -> &mut Option<u64> {
        &mut self.leader.ticket
    }

    /// Records the holder for the other tasks at this lock.
    pub(super) fn record_holder(&self, holder: &Holder, ahead: Option<u64>) {
        self.registration.record_holder(holder.clone(), ahead);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::backend::scripted::Scripted;
    use crate::lease::keeper::Monitored;
    use crate::lease::tests::scripted::{LEASE, engine, kind, yes};

    /// A task that was handed an unusable lock was queued again without being
    /// monitored.
    #[tokio::test(start_paused = true)]
    async fn requeued_task_is_monitored() {
        let engine = engine(&Scripted::new(yes));
        let kind = kind();
        let key = kind.wait_strategy().local_queue_key().unwrap();
        let registration = engine.acquirer.registry.register(key);
        let options = AcquireOptions::new(LEASE);
        let lease = engine.acquire(&kind, &options).await.unwrap();
        let queue = &registration.entry.queue;
        let other = AcquireOptions::new(LEASE * 2);
        let mut turn = pin!(turn(&registration, &other, &engine.context.keeper));
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.as_mut().poll(&mut context).is_pending(), "queued");
        // Handed off; the keeper then finds an empty queue.
        drop(lease);
        assert!(!queue.clone().monitor());
        assert!(turn.as_mut().poll(&mut context).is_pending(), "requeued");
        assert!(!queue.begin_monitoring(), "already monitored");
    }
}

//! The waiting task: talks to the server for all callers of this client that
//! want one lock.
//!
//! It runs on the keeper's runtime, which polls it even if the application is
//! stalled. It begins with the first caller that waits, and ends when none
//! waits and none holds the lock after a wait.

use std::pin::pin;
use std::sync::Arc;

use super::grants::GrantRouter;
use super::handoff::Handoff;
use super::notified::{self, Conversation};
use super::progress::Wait;
use super::queued;
use super::registry::{LockEntry, WaitRegistry};
use super::slots::Step;
use super::terms::{LeaseSlot, Terms};
use crate::backend::RequestError;
use crate::lease::context::Context;
use crate::lease::owned::{OwnedLease, Successor};
use crate::protocol::WaitStrategy;
use crate::time::BootInstant;

/// The waiting task of one lock.
pub(super) struct WaitingTask {
    pub(super) context: Arc<Context>,
    pub(super) registry: Arc<WaitRegistry>,
    pub(super) grants: Arc<GrantRouter>,
    pub(super) entry: Arc<LockEntry>,
}

impl WaitingTask {
    pub(super) fn spawn(self) {
        let keeper = self.context.keeper.runtime.clone();
        keeper.spawn(async move {
            tokio::select! {
                biased;
                () = self.context.closed() => {}
                () = self.run() => {}
            }
        });
    }

    async fn run(&self) {
        // What the task keeps from one acquisition to the next.
        let mut conversation = Conversation::default();
        let mut ticket = None;
        loop {
            match self.entry.queue.next_step() {
                Step::Prepare(lease) => lease.refill_and_grant().await,
                Step::Seek(slot) => self.seek(&slot, &mut conversation, &mut ticket).await,
                Step::StandBy => self.entry.queue.stand_by().await,
                Step::End if self.registry.remove_idle(&self.entry) => return,
                Step::End => {}
            }
        }
    }

    /// Acquires the lock for a slot, unless another one becomes the first that
    /// waits.
    async fn seek(
        &self,
        slot: &Arc<LeaseSlot>,
        conversation: &mut Conversation,
        ticket: &mut Option<u64>,
    ) {
        let queue = &self.entry.queue;
        let yields = std::mem::take(&mut self.entry.windows.lock().yields);
        conversation.yield_to(yields);
        let acquired = {
            let mut acquiring = pin!(self.acquire(slot, conversation, ticket));
            loop {
                tokio::select! {
                    biased;
                    acquired = &mut acquiring => break Ok(acquired),
                    () = queue.stand_by() => {}
                }
                // A slot on the same terms can have what was asked for.
                match queue.test_first(|terms| terms.equal(&slot.terms)) {
                    Some(true) => {}
                    first => break Err(first),
                }
            }
        };
        let acquired = match acquired {
            Ok(acquired) => acquired,
            Err(first) => {
                // The position belonged to the callers that have left.
                *ticket = ticket.filter(|_| first.is_some());
                return;
            }
        };
        self.entry.progress.on_reply();
        match acquired {
            Ok(lease) => self.deliver(lease, slot).await,
            Err(error) => slot.fail(error),
        }
    }

    async fn acquire(
        &self,
        slot: &LeaseSlot,
        conversation: &mut Conversation,
        ticket: &mut Option<u64>,
    ) -> Result<OwnedLease, RequestError> {
        let wait = Wait {
            context: &self.context,
            kind: &slot.terms.kind,
            options: &slot.terms.options,
            progress: &self.entry.progress,
            position: &slot.terms.position,
        };
        match wait.kind.wait_strategy() {
            WaitStrategy::Notified(lock) => notified::acquire(&wait, lock, conversation).await,
            WaitStrategy::Queued(queue) => {
                queued::acquire(&wait, &self.grants, queue, ticket, None).await
            }
        }
    }

    /// Grants a lock that was acquired for `origin`.
    async fn deliver(&self, mut lease: OwnedLease, origin: &Arc<LeaseSlot>) {
        let granted = match lease.handoff_holder(&origin.terms.options) {
            Some(holder) => {
                self.entry.progress.on_busy(holder, None);
                let handoff = Handoff::new(&self.entry, origin);
                // Before `attach`: the end of the lease sets it to false, and
                // may already have come.
                self.entry.queue.set_here(true);
                lease.attach(handoff.clone());
                handoff.grant(lease)
            }
            None => self.grant(lease, origin).await,
        };
        if let Err(unwanted) = granted {
            unwanted.discard();
        }
    }

    /// Grants a lock that is not handed off. A caller that began to wait after
    /// `origin` gets another token: other holders of a semaphore may have got
    /// larger ones before it began.
    async fn grant(&self, lease: OwnedLease, origin: &Arc<LeaseSlot>) -> Result<(), OwnedLease> {
        let queue = &self.entry.queue;
        let fits = |terms: &Terms| terms.equal(&origin.terms);
        let Err(mut lease) = queue.grant_to_earlier(lease, origin.start, fits) else {
            return Ok(());
        };
        if queue.test_first(fits) != Some(true) {
            return Err(lease);
        }
        let now = BootInstant::now();
        let is_drawn = {
            let mut drawing = pin!(lease.draw_token());
            loop {
                tokio::select! {
                    biased;
                    is_drawn = &mut drawing => break is_drawn,
                    () = queue.stand_by() => {}
                }
            }
        };
        match is_drawn {
            true => queue.grant_to_earlier(lease, now, fits),
            false => Err(lease),
        }
    }
}

impl Drop for WaitingTask {
    /// Ends all waits: no caller may wait for a task that has ended with the
    /// client, or never began because the keeper has ended.
    fn drop(&mut self) {
        // Removed first: a caller that arrives now starts a new task.
        self.registry.remove(&self.entry);
        drop(self.entry.queue.close());
    }
}

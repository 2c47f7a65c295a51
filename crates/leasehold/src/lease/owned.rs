//! The right to release one acquisition, or to hand it off to another task of
//! this process.
//!
//! A local hand-off changes nothing on the server: the owner, the lease and
//! the renewals continue. The next holder gets a larger token, from a block
//! that is reserved while this owner holds the lock. Views of the previous
//! holder report that it released the lock.

use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, error_of, send_twice};
use super::keeper::{CallerRequest, InboxSlot};
use super::lease::Lease;
use super::report::{report_handoff, report_if_lost, report_loss, report_release};
use super::state::{EndHook, EndReason, Hold, LeaseState, Validity};
use crate::backend::RequestError;
use crate::error::{Error, Loss};
use crate::info::Holder;
use crate::options::{AcquireOptions, ReplicaAck};
use crate::owner::Token;
use crate::protocol::{Call, ReleaseReply, RenewReply, TokenBlock};
use crate::time::BootInstant;

/// The smallest block of tokens that a client reserves.
const MIN_BLOCK: u64 = 16;

/// The largest block of tokens that a client reserves. Unused tokens are
/// skipped when the lock returns to the server.
const MAX_BLOCK: u64 = 1024;

/// The local waiters behind a lock, as the holder sees them.
pub(super) trait Successor: EndHook {
    /// Offers the lease to the next waiter, or returns it if there is none, or
    /// the next one wants another lease.
    fn offer(&self, lease: OwnedLease) -> Result<(), OwnedLease>;

    /// Grants the lease to the next waiter, which gets the current token.
    fn grant(&self, lease: OwnedLease) -> Result<(), OwnedLease>;

    /// Announces that the lease was ended, and that a request of at most
    /// `limit` releases the lock.
    fn on_release(&self, limit: Duration);

    /// Returns whether the hand-off window is still open.
    fn is_open(&self) -> bool;

    /// Returns the number of hand-offs when this process last held the lock.
    fn last_handoffs(&self) -> u64;
}

/// A held lock. Dropping it hands the lock off or releases it. All guards of a
/// reentrant handle share one.
pub(crate) struct OwnedLease {
    pub(super) state: Arc<LeaseState>,
    pub(super) context: Arc<Context>,
    /// The lease in the keeper's inbox, until the keeper takes it.
    slot: InboxSlot,
    generation: u64,
    tokens: Tokens,
    successor: Option<Arc<dyn Successor>>,
    stage: ReleaseStage,
    /// Present from the start of a release on. Dropped once the keeper knows
    /// what is left to do.
    release: Option<CallerRequest>,
    waited: Option<Duration>,
}

/// The holder's token and those reserved for later holders.
#[derive(Clone, Copy)]
struct Tokens {
    own: Token,
    /// The number of reserved tokens that follow `own`.
    spare: u64,
    /// The size of the last reserved block.
    block: u64,
}

/// The progress of a release; dropping an [`OwnedLease`] completes it.
#[derive(PartialEq, Eq)]
enum ReleaseStage {
    Holding,
    /// No task of this process can use the lease.
    Unwanted,
    Releasing,
    Done,
}

impl OwnedLease {
    /// Takes ownership of `state` and registers it with the keeper.
    pub(super) fn new(state: Arc<LeaseState>, context: Arc<Context>) -> Self {
        let slot = context.keeper.keep(state.clone());
        let tokens = Tokens {
            own: state.token,
            spare: 0,
            block: 0,
        };
        Self {
            state,
            context,
            slot,
            generation: 0,
            tokens,
            successor: None,
            stage: ReleaseStage::Holding,
            release: None,
            waited: None,
        }
    }

    /// Returns a view of this holder's lease.
    pub(super) fn view<F>(&self) -> Lease<F> {
        let token = self.state.largest_token(self.tokens.own);
        Lease::new(self.state.clone(), self.generation, token)
    }

    /// Returns the holder's token, which is zero for a kind without tokens.
    pub(super) fn own_token(&self) -> Token {
        self.tokens.own
    }

    /// Returns the token; `None` for a kind without tokens.
    pub(super) fn token(&self) -> Option<Token> {
        Some(self.tokens.own).filter(|token| token.as_u64() > 0)
    }

    /// Starts the hold of a caller, whose acquisition was reported. A lease
    /// that is already lost is reported as such.
    pub(super) fn begin_hold(&self, options: &AcquireOptions) {
        self.state.progress.set_limit(options.progress_within);
        self.begin_at_least(options);
        let observers = &self.context.observers;
        // Without observers, the first holder costs no reading of the clock.
        let since = match self.generation == 0 && observers.is_empty() {
            true => self.state.start,
            false => BootInstant::now(),
        };
        let token = self.tokens.own;
        self.state.set_hold(Some(Hold {
            since,
            token,
            caller: options.caller,
        }));
        if !observers.is_empty() {
            report_if_lost(&self.state, observers);
        }
    }

    /// Lets the caller's `at_least` begin, unless it still waits for other
    /// locks.
    pub(super) fn begin_at_least(&self, options: &AcquireOptions) {
        if !options.is_part {
            self.state.begin_at_least(options.at_least);
        }
    }

    /// Ends the views that exist, so only later ones are valid.
    pub(super) fn end_views(&mut self) {
        self.generation = self.state.advance();
    }

    pub(super) fn is_valid(&self) -> bool {
        self.state.is_valid()
    }

    /// Returns the holder as other tasks see it, if the lease can be handed
    /// off under `options`.
    pub(super) fn handoff_holder(&self, options: &AcquireOptions) -> Option<Holder> {
        let holder = Holder {
            lease_remaining: Some(self.state.lease),
            ..self.state.kind.handoff_holder(&self.state.value)?
        };
        options.allows_handoff().then_some(holder)
    }

    /// Attaches the local waiters that this lease can be handed off to.
    pub(super) fn attach(&mut self, successor: Arc<dyn Successor>) {
        self.successor = Some(successor.clone());
        self.state.set_end_hook(successor);
    }

    /// Moves to the next token. Returns `false` if none is reserved.
    pub(super) fn advance_token(&mut self) -> bool {
        let Tokens { own, spare, block } = self.tokens;
        if spare == 0 {
            return false;
        }
        self.tokens = Tokens {
            own: Token::new(own.as_u64() + 1),
            spare: spare - 1,
            block,
        };
        true
    }

    /// Reserves tokens and moves to the first. Returns `false` if the lease
    /// cannot be handed off.
    async fn refill_tokens(&mut self) -> bool {
        let Tokens { own, block, .. } = self.tokens;
        let Some(successor) = self.successor.as_ref().filter(|_| self.is_valid()) else {
            return false;
        };
        // As many as the last window used plus a quarter, and twice as many
        // each time that was too few.
        let used = successor.last_handoffs();
        let wanted = (used + used / 4).max(2 * block);
        let reserving = self.reserve_tokens(wanted.clamp(MIN_BLOCK, MAX_BLOCK));
        let Some(reserved) = reserving.await else {
            return false;
        };
        // A server that lost the holder's token must not repeat it
        // (invariant 11).
        if reserved.first <= own {
            return false;
        }
        self.tokens = Tokens {
            own: reserved.first,
            spare: reserved.count - 1,
            block: reserved.count,
        };
        self.is_valid()
    }

    /// Reserves tokens, and grants the lease to the next waiter. Releases it if
    /// that fails.
    pub(super) async fn refill_and_grant(mut self) {
        if !self.refill_tokens().await {
            return self.discard();
        }
        if let Some(successor) = self.successor.clone()
            && let Err(unneeded) = successor.grant(self)
        {
            unneeded.discard();
        }
    }

    /// Releases a lease that no caller of this process can use.
    pub(super) fn discard(mut self) {
        self.stage = ReleaseStage::Unwanted;
    }

    /// Reserves tokens. While this owner holds the lock, no other client gets a
    /// token of it, so these are larger than all before.
    async fn reserve_tokens(&self, count: u64) -> Option<TokenBlock> {
        let LeaseState { kind, value, .. } = &*self.state;
        let call = kind.reserve_tokens(value, count, self.tokens.own)?;
        // After a lost reply the tokens are skipped, which is harmless: they
        // only have to rise. The lock then returns to the server.
        self.send_acknowledged(call).await.ok()?
    }

    /// Draws another token. Returns `false` if that failed, or the lock was
    /// lost.
    pub(super) async fn draw_token(&mut self) -> bool {
        let Some(raise) = self.state.kind.raise_token(self.tokens.own.as_u64() + 1) else {
            return true;
        };
        let Ok(token) = self.send_acknowledged(raise).await else {
            return false;
        };
        self.tokens.own = token;
        // Renewed afterwards: a caller that has lost the lock must not get a
        // larger token than its successor's.
        let Some(lease) = self.state.renewal_length() else {
            return false;
        };
        let renewed = self.request_lease(lease, self.brief_ack()).await;
        renewed.is_ok_and(|reply| reply != RenewReply::NotOwner) && self.is_valid()
    }

    /// Renews the lease for `lease`, and counts it if the server does.
    pub(super) async fn request_lease(
        &self,
        lease: Duration,
        replica_ack: Option<ReplicaAck>,
    ) -> Result<RenewReply, RequestError> {
        let state = &self.state;
        state.request(BootInstant::now(), lease);
        let renewal = self
            .context
            .renew(&*state.kind, &state.value, lease, replica_ack);
        match renewal.await {
            Ok((sent, reply)) => {
                if reply != RenewReply::NotOwner {
                    state.confirm(sent, lease);
                }
                Ok(reply)
            }
            Err(error) => {
                // Connecting took a while, and the request may be executed.
                state.request(BootInstant::now(), lease);
                Err(error)
            }
        }
    }

    /// Sends a call that draws tokens. A former master would draw tokens that
    /// the new one issues again (invariant 10).
    async fn send_acknowledged<R>(&self, call: Call<R>) -> Result<R, RequestError> {
        let (context, slot) = (&self.context, self.state.kind.slot());
        let sent = context.send_acknowledged(slot, call, self.brief_ack());
        sent.await
    }

    /// Returns the acknowledgement to ask for while no caller has the lock:
    /// slow replicas get less time.
    fn brief_ack(&self) -> Option<ReplicaAck> {
        let limit = self.context.limits.request / 2;
        self.state.replica_ack.map(|ack| ReplicaAck {
            timeout: ack.timeout.min(limit),
            ..ack
        })
    }

    /// Hands the lease off to the next local waiter. Returns `false` if it
    /// must be released to the server.
    fn hand_off(&mut self) -> bool {
        let Some(successor) = self.open_successor() else {
            return false;
        };
        let next = Self {
            state: self.state.clone(),
            context: self.context.clone(),
            slot: self.slot,
            // Ends this holder's views before another holder exists (invariant
            // 11).
            generation: self.state.advance(),
            tokens: self.tokens,
            successor: self.successor.clone(),
            stage: ReleaseStage::Holding,
            release: None,
            waited: None,
        };
        // Until the next holder claims the lock, no caller can report.
        self.state.progress.set_limit(None);
        // Taken before the offer: the next holder can start at once.
        let hold = self.state.take_hold();
        match successor.offer(next) {
            Ok(()) => {
                report_handoff(&self.state, hold, &self.context.observers);
                self.stage = ReleaseStage::Done;
                true
            }
            Err(mut unneeded) => {
                self.state.set_hold(hold);
                // The keeper may have found no hold meanwhile.
                report_if_lost(&self.state, &self.context.observers);
                // A second right to release the same lease; `self` keeps the
                // first.
                unneeded.stage = ReleaseStage::Done;
                false
            }
        }
    }

    /// Returns the successor while the lease is valid and the window open.
    fn open_successor(&self) -> Option<Arc<dyn Successor>> {
        // First, since most leases have none, and the rest reads the clock.
        let successor = self.successor.as_ref().filter(|next| next.is_open())?;
        // The tokens were reserved before a guard got a larger one.
        if self.state.largest_token(self.tokens.own) > self.tokens.own {
            return None;
        }
        // With limits of a caller that entered a reentrant handle.
        if !self.is_valid() || self.state.has_hold_limits() {
            return None;
        }
        // A holder that extended the lease did so for itself only. The server
        // may extend it later, if the holder no longer waits for that.
        let until = self.state.requested_until();
        let extended = until.since(BootInstant::now()) > self.state.lease;
        (!extended).then(|| successor.clone())
    }

    /// Releases the lock and returns the outcome.
    pub(super) async fn release(mut self) -> Result<(), Error> {
        self.context.check_process()?;
        if self.hand_off() {
            return Ok(());
        }
        if let Err(ended) = self.begin_release() {
            return ended.map_or(Ok(()), |loss| Err(self.lost(loss)));
        }
        let (reply, repeated) = send_twice(|| self.send_release()).await;
        let reply = reply.map_err(|error| error_of(error, self.state.kind.name()))?;
        match reply {
            ReleaseReply::Released { notified } => self.released(notified),
            // The first request released it, unless the key was tampered with.
            ReleaseReply::NotOwner if repeated => self.released(0),
            ReleaseReply::NotOwner => {
                let error = self.lost(Loss::Revoked);
                self.revoked();
                return Err(error);
            }
        }
        Ok(())
    }

    fn lost(&self, loss: Loss) -> Error {
        let name = self.state.kind.name().to_owned();
        Error::Lost { name, loss }
    }

    /// Returns how long the caller waited for another holder.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.waited
    }

    /// Records how long the caller waited for another holder.
    pub(super) fn set_waited(&mut self, waited: Duration) {
        self.waited = Some(waited);
    }

    /// Ends the lease in this process. From now on, dropping it releases the
    /// lock in the background.
    ///
    /// # Errors
    ///
    /// The loss, if the lease was lost before; `None` if it was released.
    pub(super) fn begin_release(&mut self) -> Result<(), Option<Loss>> {
        if self.end() {
            self.context.keeper.forget(self.slot);
            self.stage = ReleaseStage::Releasing;
            return Ok(());
        }
        self.stage = ReleaseStage::Done;
        match self.state.validity() {
            Validity::Ended(EndReason::Lost(loss)) => Err(Some(loss)),
            _ => Err(None),
        }
    }

    /// Ends a valid lease. A shutdown from now on waits for the release: the
    /// keeper no longer finds the lease, and could not release it.
    fn end(&mut self) -> bool {
        // Counted before the lease ends: a shutdown must find one of them.
        self.release = Some(self.context.keeper.begin_request());
        let has_ended = self.state.end(EndReason::Released);
        if let Some(successor) = self.successor.as_ref().filter(|_| has_ended) {
            successor.on_release(self.context.limits.request);
        }
        has_ended
    }

    /// Completes a release or a hand-over that the server has executed. It
    /// notified `notified` subscribers.
    pub(super) fn released(mut self, notified: u64) {
        self.stage = ReleaseStage::Done;
        report_release(&self.state, &self.context.observers);
        self.state.notify_released(notified);
    }

    /// Completes a release or a hand-over that found another owner, and returns
    /// the loss.
    pub(super) fn revoked(mut self) -> Loss {
        let loss = Loss::Revoked;
        self.stage = ReleaseStage::Done;
        report_loss(&self.state, loss, &self.context.observers);
        self.state.notify_released(0);
        loss
    }

    async fn send_release(&self) -> Result<ReleaseReply, RequestError> {
        let connection = self.context.connection(self.state.kind.slot()).await?;
        let call = self.state.release_call(connection.facts().capabilities);
        let sent = BootInstant::now();
        self.state.release_sending(sent)?;
        let reply = call.send(&*connection, self.context.limits.request).await;
        reply.inspect_err(|error| self.state.release_failed(sent, error))
    }
}

impl Drop for OwnedLease {
    fn drop(&mut self) {
        if self.stage == ReleaseStage::Done {
            return;
        }
        if !self.context.keeper.process().is_current() {
            // The parent holds the lock. What the copy refers to may be locked
            // by a thread that this process lacks, so we leave it alone.
            std::mem::forget(self.successor.take());
            return;
        }
        if self.stage == ReleaseStage::Holding && self.hand_off() {
            return;
        }
        let pending = match self.stage {
            ReleaseStage::Holding | ReleaseStage::Unwanted => self.end(),
            ReleaseStage::Releasing => true,
            ReleaseStage::Done => false,
        };
        if pending {
            report_release(&self.state, &self.context.observers);
            self.context.keeper.release(self.state.clone());
        }
    }
}

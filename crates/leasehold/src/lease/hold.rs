//! The right to give one acquisition back, or to leave it to another task of this process.
//!
//! A lock that is left to another goes on as it is on the server: same owner, same lease, same renewals. The next
//! holder has a token of its own, from a block that is taken while the lock is certainly ours, and views of the
//! one before say that it was given back.

use std::sync::Arc;

use super::guard::{Lease, ReleaseOutcome};
use super::held::{Ending, Held, State};
use super::inbox::NewLease;
use super::{Engine, error_of};
use crate::backend::RequestError;
use crate::error::{Error, Loss};
use crate::info::Holder;
use crate::options::AcquireOptions;
use crate::owner::Token;
use crate::protocol::{ReleaseReply, TokenBlock};

/// A client asks for at least this many tokens at once.
const SMALLEST_BLOCK: u64 = 16;

/// A client asks for at most this many tokens at once: what is left of them is lost when the lock goes back.
const LARGEST_BLOCK: u64 = 1024;

/// Shared by all guards of a reentrant handle.
pub(crate) struct Hold {
    pub(super) held: Arc<Held>,
    pub(super) engine: Arc<Engine>,
    /// Where the keeper finds it, until it has taken it up.
    new: NewLease,
    /// Which holder this is, of those who left it to each other.
    tenure: u64,
    tokens: Tokens,
    progress: Progress,
}

/// The holder's token, and those of the holders to come.
#[derive(Clone, Copy)]
struct Tokens {
    own: Token,
    /// How many that follow it are ours.
    spare: u64,
    /// How many the server gave at once when it was last asked.
    block: u64,
}

/// How far giving back has come; the drop of a [`Hold`] does the rest.
#[derive(PartialEq, Eq)]
enum Progress {
    Holding,
    /// Nobody of this process can use it.
    Unwanted,
    Releasing,
    Done,
}

impl Hold {
    /// Takes charge of `held` and has the keeper look after it.
    pub(super) fn new(held: Arc<Held>, engine: Arc<Engine>) -> Self {
        let new = engine.keeper.keep(held.clone());
        let tokens = Tokens {
            own: held.token,
            spare: 0,
            block: 0,
        };
        Self {
            held,
            engine,
            new,
            tenure: 0,
            tokens,
            progress: Progress::Holding,
        }
    }

    /// A view of this holder's lease.
    pub(super) fn lease<F>(&self) -> Lease<F> {
        Lease::new(self.held.clone(), self.tenure, self.tokens.own)
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Who holds it, where it may be left to other tasks of this process.
    pub(super) fn to_be_handed_on(&self, options: &AcquireOptions) -> Option<Holder> {
        let kind = self.held.kind.local_handoff()?;
        let holder = Holder {
            lease_remaining: Some(self.held.lease),
            ..kind.holder_info(&self.held.value)
        };
        options.allows_handoff().then_some(holder)
    }

    /// Makes it the own of one who asked for it on `options`; `Err` when it is of no use to that one.
    ///
    /// Dropping the future leaves it to the next.
    pub(super) async fn take_over(mut self, options: &AcquireOptions) -> Result<Self, Self> {
        let fits = self.held.suits(options) && self.next_token().await.is_some() && self.is_valid();
        if fits {
            self.held.set_unclaimed(false);
            return Ok(self);
        }
        self.progress = Progress::Unwanted;
        Err(self)
    }

    /// Gives this holder a token above all before; `None` when the server gives none.
    async fn next_token(&mut self) -> Option<()> {
        let Tokens { own, spare, block } = self.tokens;
        self.tokens = match spare {
            0 => {
                // As many as the last round used and a few more; ever more while that is too little.
                let used = self.held.last_round();
                let wanted = (used + used / 4).max(2 * block);
                let wanted = wanted.clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
                let taken = self.reserve_tokens(wanted).await?;
                // A server that does not know the holder's token must not repeat it (invariant 11).
                if taken.first <= own {
                    return None;
                }
                Tokens {
                    own: taken.first,
                    spare: taken.count - 1,
                    block: taken.count,
                }
            }
            _ => Tokens {
                own: Token::new(own.as_u64() + 1),
                spare: spare - 1,
                block,
            },
        };
        Some(())
    }

    /// While the lock is ours on the server nobody else gets tokens of it: these are larger than all before.
    async fn reserve_tokens(&self, count: u64) -> Option<TokenBlock> {
        let connection = self.engine.connection(self.held.kind.slot()).await.ok()?;
        let kind = self.held.kind.local_handoff()?;
        let call = kind.reserve_tokens(&self.held.value, count, self.tokens.own);
        let taken = call.send(&*connection, self.engine.limits.request).await;
        taken.ok()?
    }

    /// Leaves it to the next task of this process that waits; false when it must go back to the server.
    fn hand_on(&mut self) -> bool {
        let Some(gate) = self.held.way_on() else {
            return false;
        };
        let next = Self {
            held: self.held.clone(),
            engine: self.engine.clone(),
            new: self.new,
            tenure: self.held.pass(),
            tokens: self.tokens,
            progress: Progress::Holding,
        };
        // A task that is not polled must not keep the lock beyond its lease.
        self.held.set_unclaimed(true);
        match gate.hand_on(next) {
            Ok(()) => {
                self.progress = Progress::Done;
                true
            }
            Err(mut not_needed) => {
                self.held.set_unclaimed(false);
                not_needed.progress = Progress::Done;
                false
            }
        }
    }

    pub(super) async fn give_back(mut self) -> Result<ReleaseOutcome, Error> {
        if self.hand_on() {
            return Ok(ReleaseOutcome::Released);
        }
        if !self.held.end(Ending::Released) {
            self.progress = Progress::Done;
            return Ok(match self.held.state() {
                State::Ended(Ending::Lost(loss)) => ReleaseOutcome::AlreadyLost { loss },
                _ => ReleaseOutcome::Released,
            });
        }
        self.engine.keeper.forget(self.new);
        self.progress = Progress::Releasing;
        let (freed, repeated) = match self.send_release().await {
            // Releasing is idempotent, so a connection that broke unnoticed costs one more try.
            Err(failure) if failure.is_transient() => (self.send_release().await, true),
            freed => (freed, false),
        };
        let freed = freed.map_err(|failure| error_of(failure, self.held.kind.name()))?;
        self.progress = Progress::Done;
        let (release, told) = match freed {
            ReleaseReply::Released { notified } => (ReleaseOutcome::Released, notified),
            // It was the first try that freed it, unless the lease was tampered with.
            ReleaseReply::NotOwner if repeated => (ReleaseOutcome::Released, 0),
            ReleaseReply::NotOwner => (
                ReleaseOutcome::AlreadyLost {
                    loss: Loss::Revoked,
                },
                0,
            ),
        };
        self.held.is_gone(told);
        Ok(release)
    }

    async fn send_release(&self) -> Result<ReleaseReply, RequestError> {
        let slot = self.held.kind.slot();
        let connection = self.engine.connection(slot).await?;
        let call = self.held.release_call(connection.facts().capabilities);
        call.send(&*connection, self.engine.limits.request).await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.progress == Progress::Holding && self.hand_on() {
            return;
        }
        let pending = match self.progress {
            Progress::Holding | Progress::Unwanted => self.held.end(Ending::Released),
            Progress::Releasing => true,
            Progress::Done => false,
        };
        if pending {
            self.engine.keeper.give_back(self.held.clone());
        }
    }
}

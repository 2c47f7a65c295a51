//! The state of one lease, shared by its guard, its views and the keeper.
//!
//! It is one number: the deadline while the lease is valid, or how it ended. So the rule that lost is
//! absorbing (invariant 3) is a matter of compare-and-swap, and a check needs no lock and no task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::renewal::first_beat;
use super::waiting::{LockGate, Place, Round};
use crate::backend::Capabilities;
use crate::error::Loss;
use crate::options::{AcquireOptions, ReplicaAck, margin};
use crate::owner::Token;
use crate::protocol::{Call, Kind, LockValue, ReleaseReply};
use crate::time::BootInstant;

/// One acquisition, from the answer that granted it to its end.
pub(super) struct Held {
    pub(super) kind: Arc<dyn Kind>,
    pub(super) value: LockValue,
    pub(super) token: Token,
    pub(super) lease: Duration,
    /// How long any lease may be.
    pub(super) max_lease: Duration,
    /// Who must confirm a renewal besides the server.
    pub(super) replica_ack: Option<ReplicaAck>,
    /// Whether the keeper renews it again and again.
    pub(super) renewed: bool,
    /// When it is first renewed: also a fixed lease is, once, where only a part of it was granted.
    pub(super) first_renewal: BootInstant,
    /// When it must end at the latest, by `at_most`.
    limit: Option<BootInstant>,
    /// Until when others are kept out even after a release, by `at_least`.
    keep_until: Option<BootInstant>,
    /// How it came to this process; nothing when those who wait are not concerned with it.
    passage: Mutex<Option<Box<Passage>>>,
    /// Counts those who left it to each other.
    tenure: AtomicU64,
    /// The deadline in nanoseconds, or an [`Ending`] below [`FIRST_MOMENT`].
    state: AtomicU64,
    /// Whether `limit` is what set the deadline. Written before the deadline it belongs to.
    capped: AtomicBool,
    ended: Notify,
    /// How many guards of a reentrant handle there are.
    entries: AtomicU32,
    /// Whether the keeper is to show, or is showing, how many there are.
    is_recounting: AtomicBool,
    /// Whether it was handed to a task that has not taken it yet.
    is_unclaimed: AtomicBool,
}

/// How a lock came to a task that waited for it, for the sake of those who wait behind it.
pub(super) struct Passage {
    place: Place,
    since: BootInstant,
    note: Box<str>,
    /// How often tasks of this process left the lock to each other when the process last held it.
    last_round: u64,
}

/// A lock that goes from task to task of this process goes back to the server after this: others may wait, and
/// only the server knows. See `docs/decisions/`.
const ROUND: Duration = Duration::from_millis(10);

/// What a server granted, counted from a moment before it did so at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    start: BootInstant,
    lease: Duration,
}

impl Granted {
    pub(super) fn new(start: BootInstant, lease: Duration) -> Self {
        Self { start, lease }
    }
}

/// Whether a lease is valid, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Valid { deadline: BootInstant },
    Ended(Ending),
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Released,
    Lost(Loss),
}

/// Numbers below are endings; the clock was never so low.
const FIRST_MOMENT: u64 = 16;

impl Held {
    pub(super) fn new(
        kind: Arc<dyn Kind>,
        value: LockValue,
        token: Token,
        options: &AcquireOptions,
        granted: Granted,
    ) -> Self {
        let Granted { start, lease } = granted;
        // What was granted by a server that does not know of `at_most` may last longer.
        let lease = lease.min(first_lease(options));
        let next = if options.renewed {
            first_beat(start, lease)
        } else if lease < first_lease(options) {
            start
        } else {
            BootInstant::NEVER
        };
        Self {
            kind,
            value,
            token,
            lease: options.lease,
            max_lease: options.max_lease,
            replica_ack: options.replica_ack,
            renewed: options.renewed,
            first_renewal: next,
            limit: options.at_most.map(|at_most| start + at_most),
            keep_until: (!options.at_least.is_zero())
                .then(|| BootInstant::now() + options.at_least),
            passage: Mutex::default(),
            tenure: AtomicU64::new(0),
            state: AtomicU64::new(deadline(start, lease).as_nanos()),
            capped: AtomicBool::new(options.at_most.is_some_and(|at_most| at_most <= lease)),
            ended: Notify::new(),
            entries: AtomicU32::new(0),
            is_recounting: AtomicBool::new(false),
            is_unclaimed: AtomicBool::new(false),
        }
    }

    /// Counts one more guard; how many there are now.
    pub(super) fn enter(&self) -> u32 {
        self.entries.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts one guard less; how many are left.
    pub(super) fn leave(&self) -> u32 {
        self.entries.fetch_sub(1, Ordering::AcqRel) - 1
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries.load(Ordering::Acquire)
    }

    /// Returns whether the caller is to have the entries shown: nobody else is about to.
    pub(super) fn begin_recount(&self) -> bool {
        !self.is_recounting.swap(true, Ordering::AcqRel)
    }

    /// Ends what [`begin_recount`](Self::begin_recount) began. Entries that changed before that are the caller's to show.
    pub(super) fn end_recount(&self) {
        self.is_recounting.store(false, Ordering::Release);
    }

    /// Says that it is on its way to another task, or has arrived there.
    pub(super) fn set_unclaimed(&self, is_unclaimed: bool) {
        self.is_unclaimed.store(is_unclaimed, Ordering::Release);
    }

    pub(super) fn is_valid(&self) -> bool {
        matches!(self.state(), State::Valid { .. })
    }

    pub(super) fn is_unclaimed(&self) -> bool {
        self.is_unclaimed.load(Ordering::Acquire)
    }

    /// The state now. A deadline that has passed ends the lease, whoever looks first.
    pub(super) fn state(&self) -> State {
        loop {
            let seen = self.state.load(Ordering::Acquire);
            match decode(seen) {
                State::Valid { deadline } if BootInstant::now() >= deadline => {
                    self.swap(seen, encode(Ending::Lost(self.loss_by_time())));
                }
                state => return state,
            }
        }
    }

    /// The state now, for one of those who left it to each other (invariant 11).
    pub(super) fn state_of(&self, tenure: u64) -> State {
        match self.tenure.load(Ordering::Acquire) == tenure {
            true => self.state(),
            false => State::Ended(Ending::Released),
        }
    }

    /// Moves the deadline after a renewal for `lease`, sent at `sent`, was confirmed. No effect when
    /// the lease has ended meanwhile, or when the deadline is later already.
    pub(super) fn confirm(&self, sent: BootInstant, lease: Duration, capped: bool) {
        let later = deadline(sent, lease).as_nanos();
        loop {
            let seen = self.state.load(Ordering::Acquire);
            let State::Valid { deadline } = decode(seen) else {
                return;
            };
            if BootInstant::now() >= deadline || deadline.as_nanos() >= later {
                return;
            }
            self.capped.store(capped, Ordering::Release);
            if self.swap(seen, later) {
                return;
            }
        }
    }

    /// Ends a valid lease; false when it had ended before.
    pub(super) fn end(&self, ending: Ending) -> bool {
        loop {
            let State::Valid { deadline } = self.state() else {
                return false;
            };
            if self.swap(deadline.as_nanos(), encode(ending)) {
                return true;
            }
        }
    }

    /// Ends the lease because its deadline is here; false when it had ended before.
    pub(super) fn expire(&self) -> bool {
        self.end(Ending::Lost(self.loss_by_time()))
    }

    /// Waits until the lease has ended, for one of those who left it to each other.
    pub(super) async fn ended(&self, tenure: u64) -> Ending {
        loop {
            let mut notified = std::pin::pin!(self.ended.notified());
            notified.as_mut().enable();
            if let State::Ended(ending) = self.state_of(tenure) {
                return ending;
            }
            notified.await;
        }
    }

    /// What a renewal for `lease` may ask for, and whether `at_most` bounds it; `None` when there is
    /// nothing left to gain.
    pub(super) fn bounded(&self, lease: Duration) -> Option<(Duration, bool)> {
        if self.capped.load(Ordering::Acquire) {
            return None;
        }
        match self.limit.map(|limit| limit.since(BootInstant::now())) {
            Some(left) if left < Duration::from_millis(1) => None,
            Some(left) if left <= lease => Some((left, true)),
            _ => Some((lease, false)),
        }
    }

    /// The call that gives this lock back, with regard to `at_least`.
    pub(super) fn release_call(&self, server: Capabilities) -> Call<ReleaseReply> {
        let keep = self.keep_until.map(|until| until.since(BootInstant::now()));
        let keep = keep.filter(|keep| !keep.is_zero());
        self.kind.release(&self.value, keep, server)
    }

    /// Notes that others of this process wait behind `place`, where this one came from.
    pub(super) fn came_by(&self, place: Place, options: &AcquireOptions, last_round: u64) {
        let passage = Passage {
            place,
            since: BootInstant::now(),
            note: options.note.as_str().into(),
            last_round,
        };
        *self.passage.lock() = Some(Box::new(passage));
        // What was lost before this line could tell nobody.
        if let State::Ended(Ending::Lost(_)) = self.state() {
            self.is_gone(0);
        }
    }

    /// Whether it is what one would get who asks on `options`.
    pub(super) fn suits(&self, options: &AcquireOptions) -> bool {
        let passage = self.passage.lock();
        options.allows_handoff()
            && (options.lease, options.replica_ack) == (self.lease, self.replica_ack)
            && passage
                .as_ref()
                .is_some_and(|passage| *passage.note == *options.note)
    }

    /// Where it can be left to the next task of this process, if it may.
    pub(super) fn way_on(&self) -> Option<Arc<LockGate>> {
        let State::Valid { deadline } = self.state() else {
            return None;
        };
        let now = BootInstant::now();
        let passage = self.passage.lock();
        let passage = passage.as_ref()?;
        // Whoever has extended the lease has done so for itself.
        let usual = deadline.since(now) <= self.lease;
        (usual && now.since(passage.since) < ROUND).then(|| passage.place.gate().clone())
    }

    /// How often tasks of this process left the lock to each other when the process last held it.
    pub(super) fn last_round(&self) -> u64 {
        let passage = self.passage.lock();
        passage.as_ref().map_or(0, |passage| passage.last_round)
    }

    /// Ends one holder's time and begins the next one's.
    pub(super) fn pass(&self) -> u64 {
        let next = self.tenure.fetch_add(1, Ordering::AcqRel) + 1;
        self.ended.notify_waiters();
        next
    }

    /// Tells those who wait here that the lock is with this process no longer, and that the server has told so many of
    /// it. Only once is there anybody to tell.
    pub(super) fn is_gone(&self, told: u64) {
        let Some(passage) = self.passage.lock().take() else {
            return;
        };
        let whole_round = BootInstant::now().since(passage.since) >= ROUND;
        let round = Round {
            // One of the processes that were notified is this one.
            let_others: whole_round && told > 1,
            hand_ons: self.tenure.load(Ordering::Acquire),
        };
        passage.place.lock_is_gone(round);
    }

    fn loss_by_time(&self) -> Loss {
        if self.capped.load(Ordering::Acquire) {
            Loss::AtMost
        } else {
            Loss::Expired
        }
    }

    fn swap(&self, seen: u64, new: u64) -> bool {
        let swapped = self
            .state
            .compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if swapped && new < FIRST_MOMENT {
            self.ended.notify_waiters();
            // What was given back is gone only when the server has it.
            if let State::Ended(Ending::Lost(_)) = decode(new) {
                self.is_gone(0);
            }
        }
        swapped
    }
}

/// The lease to acquire with: `at_most` bounds the first one too.
pub(super) fn first_lease(options: &AcquireOptions) -> Duration {
    options
        .at_most
        .map_or(options.lease, |at_most| at_most.min(options.lease))
}

/// Invariant 1.
pub(super) fn deadline(sent: BootInstant, lease: Duration) -> BootInstant {
    sent + lease.saturating_sub(margin(lease))
}

fn encode(ending: Ending) -> u64 {
    match ending {
        Ending::Released => 0,
        Ending::Lost(Loss::Expired) => 1,
        Ending::Lost(Loss::Revoked) => 2,
        Ending::Lost(Loss::AtMost) => 3,
        Ending::Lost(Loss::ShutDown) => 4,
    }
}

fn decode(number: u64) -> State {
    State::Ended(match number {
        0 => Ending::Released,
        1 => Ending::Lost(Loss::Expired),
        2 => Ending::Lost(Loss::Revoked),
        3 => Ending::Lost(Loss::AtMost),
        4 => Ending::Lost(Loss::ShutDown),
        nanos => {
            let deadline = BootInstant::from_nanos(nanos);
            return State::Valid { deadline };
        }
    })
}

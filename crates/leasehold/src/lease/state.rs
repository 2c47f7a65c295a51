//! One lease's state, shared by the guard, the views and the keeper.
//!
//! The state is one atomic number: the deadline while the lease is valid, or
//! the reason why it ended. Loss is therefore permanent (invariant 3) by
//! compare-and-swap, and a check needs no lock and no task.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::progress_watch::ProgressWatch;
use super::schedule::{deadline, first_renewal_at, next_look_at};
use crate::backend::{Capabilities, RequestError};
use crate::error::Loss;
use crate::options::{AcquireOptions, ReplicaAck};
use crate::owner::Token;
use crate::protocol::{Call, Kind, LockValue, ReleaseReply};
use crate::sync::Mutex;
use crate::time::BootInstant;

/// One acquisition, from the reply that granted it until it ends.
pub(crate) struct LeaseState {
    pub(super) kind: Arc<dyn Kind>,
    pub(super) value: LockValue,
    pub(super) token: Token,
    /// The longest lease that the keeper requests: `at_most` limits it.
    pub(super) lease: Duration,
    pub(super) max_lease: Duration,
    /// The replicas that must acknowledge a renewal.
    pub(super) replica_ack: Option<ReplicaAck>,
    /// Whether the keeper renews the lease periodically.
    pub(super) renewed: bool,
    /// When the lease is first renewed. A fixed lease is renewed once if the
    /// server granted only a part of it.
    pub(super) first_renewal: BootInstant,
    /// When the request was sent that began the lease: the acquire, or a
    /// renewal.
    pub(super) start: BootInstant,
    /// After which time a hold is reported as slow.
    pub(super) slow_hold: Option<Duration>,
    /// When the lease must end, by `at_most`.
    max_hold_until: Option<BootInstant>,
    /// Until when other clients are kept out, even after a release; zero while
    /// no caller that asked for it has the lock.
    keep_until: AtomicU64,
    /// When the first release was sent that the server may have executed; zero
    /// if there is none.
    uncertain_release: AtomicU64,
    /// Whether the holder reports progress, by `progress_within`.
    pub(super) progress: ProgressWatch,
    /// Called once the lock has left this process.
    end_hook: Mutex<Option<Arc<dyn EndHook>>>,
    /// The larger token of another server that a guard has; zero if none has.
    recorded_token: AtomicU64,
    /// Counts the holders that received the lock by local hand-off.
    generation: AtomicU64,
    /// The deadline in nanoseconds, or an [`EndReason`] below
    /// [`FIRST_INSTANT`].
    validity: AtomicU64,
    /// When the server can first expire the lease, by what it confirmed, in
    /// nanoseconds. Written before the deadline that it belongs to.
    confirmed_until: AtomicU64,
    /// The same by every request that was sent: one without a reply may have
    /// been executed.
    requested_until: AtomicU64,
    ended: Notify,
    /// The number of guards of a reentrant handle.
    entries: AtomicU32,
    /// Whether a job of the keeper writes the hold count to the server.
    writes_hold_count: AtomicBool,
    /// The holder, between the reports of acquisition and end.
    hold: Mutex<Option<Hold>>,
}

/// One holder of a lease. A lease has several in a row by local hand-off.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    pub(super) since: BootInstant,
    pub(super) token: Token,
    /// Where the holder asked for the lock.
    pub(super) caller: &'static Location<'static>,
}

impl Hold {
    pub(super) fn age(&self) -> Duration {
        BootInstant::now().since(self.since)
    }
}

/// A listener for the end of a lease in this process.
pub(super) trait EndHook: Send + Sync {
    /// Called once, when the lease is lost or the release was sent. The server
    /// notified `notified` subscribers; the lock was handed off `handoffs`
    /// times.
    fn on_end(&self, notified: u64, handoffs: u64);
}

/// A lease as the server granted it, counted from an instant no later than the
/// grant.
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
pub(super) enum Validity {
    Valid { deadline: BootInstant },
    Ended(EndReason),
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    Released,
    Lost(Loss),
}

impl EndReason {
    /// Returns the loss of a lease that ran out. The server may still hold the
    /// lock.
    pub(super) fn by_time(self) -> Option<Loss> {
        match self {
            Self::Lost(loss @ (Loss::Expired | Loss::AtMost | Loss::Stuck)) => Some(loss),
            Self::Lost(Loss::Revoked | Loss::ShutDown) | Self::Released => None,
        }
    }
}

/// Smaller numbers encode an [`EndReason`]; the clock never reads that low.
const FIRST_INSTANT: u64 = 16;

impl LeaseState {
    pub(super) fn new(
        kind: Arc<dyn Kind>,
        value: LockValue,
        token: Token,
        options: &AcquireOptions,
        granted: Granted,
    ) -> Self {
        let Granted { start, lease } = granted;
        // A server that does not know `at_most` can grant a longer lease.
        let longest = options.first_lease();
        let lease = lease.min(longest);
        let granted_until = (start + lease).as_nanos();
        let first_renewal = if options.renewed {
            first_renewal_at(start, lease)
        } else if lease < longest {
            start
        } else {
            BootInstant::NEVER
        };
        Self {
            kind,
            value,
            token,
            lease: longest,
            max_lease: options.max_lease,
            replica_ack: options.replica_ack,
            renewed: options.renewed,
            first_renewal,
            start,
            slow_hold: options.slow_hold,
            // From before the lease begins, which is the safe side.
            max_hold_until: options.at_most.map(|at_most| start + at_most),
            keep_until: AtomicU64::new(0),
            uncertain_release: AtomicU64::new(0),
            progress: ProgressWatch::new(options.progress_within),
            end_hook: Mutex::default(),
            recorded_token: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            validity: AtomicU64::new(deadline(start, lease).as_nanos()),
            confirmed_until: AtomicU64::new(granted_until),
            requested_until: AtomicU64::new(granted_until),
            ended: Notify::new(),
            entries: AtomicU32::new(0),
            writes_hold_count: AtomicBool::new(false),
            hold: Mutex::default(),
        }
    }

    /// Records that a guard has the larger token of another server.
    pub(super) fn record_token(&self, token: Token) {
        self.recorded_token
            .fetch_max(token.as_u64(), Ordering::AcqRel);
    }

    /// Returns the largest token that a guard of the holder with the token
    /// `own` has.
    pub(super) fn largest_token(&self, own: Token) -> Token {
        own.max(Token::new(self.recorded_token.load(Ordering::Acquire)))
    }

    /// Counts one more guard and returns their number.
    pub(super) fn enter(&self) -> u32 {
        self.entries.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts one guard less and returns their number.
    pub(super) fn leave(&self) -> u32 {
        self.entries.fetch_sub(1, Ordering::AcqRel) - 1
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries.load(Ordering::Acquire)
    }

    /// Returns whether the caller must write the hold count: no job does.
    pub(super) fn begin_hold_count(&self) -> bool {
        !self.writes_hold_count.swap(true, Ordering::AcqRel)
    }

    /// Ends what [`begin_hold_count`](Self::begin_hold_count) began. The
    /// caller must still write entries that changed before this call.
    pub(super) fn end_hold_count(&self) {
        // Not a store: the entries are read after it, and must not move ahead.
        self.writes_hold_count.swap(false, Ordering::AcqRel);
    }

    /// Sets the holder, or returns it after an offer that was not accepted.
    pub(super) fn set_hold(&self, hold: Option<Hold>) {
        *self.hold.lock() = hold;
    }

    /// Takes the holder out, to report that the hold ended.
    pub(super) fn take_hold(&self) -> Option<Hold> {
        self.hold.lock().take()
    }

    pub(super) fn hold(&self) -> Option<Hold> {
        *self.hold.lock()
    }

    pub(super) fn is_valid(&self) -> bool {
        matches!(self.validity(), Validity::Valid { .. })
    }

    /// Returns the current validity. The first caller after the deadline ends
    /// the lease.
    pub(super) fn validity(&self) -> Validity {
        loop {
            let seen = self.validity.load(Ordering::Acquire);
            match decode(seen) {
                // By the clock alone: a check must be right even if the keeper
                // does not run.
                Validity::Valid { deadline } if BootInstant::now() >= deadline => {
                    self.swap(seen, encode(EndReason::Lost(self.loss_by_time())));
                }
                validity => return validity,
            }
        }
    }

    /// Returns the deadline, which may be over; an instant long ago if the
    /// lease has ended.
    pub(super) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.validity.load(Ordering::Acquire))
    }

    /// Returns the current validity for the holder of one generation. An
    /// earlier generation has released the lock (invariant 11).
    pub(super) fn validity_of(&self, generation: u64) -> Validity {
        match self.is_held_by(generation) {
            true => self.validity(),
            false => Validity::Ended(EndReason::Released),
        }
    }

    /// Returns whether no later holder has received the lock.
    pub(super) fn is_held_by(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }

    /// Moves the deadline after a confirmed renewal for `lease` that was sent
    /// at `sent`. Has no effect if the lease has ended, or the deadline is
    /// already later.
    pub(super) fn confirm(&self, sent: BootInstant, lease: Duration) {
        // The request may be sent some time after its length was limited.
        let later = deadline(sent, lease).min(self.max_hold_until.unwrap_or(BootInstant::NEVER));
        let later = later.as_nanos();
        loop {
            let seen = self.validity.load(Ordering::Acquire);
            let Validity::Valid { deadline } = decode(seen) else {
                return;
            };
            // A reply after the deadline is too late, even if no check has
            // noticed the loss yet (invariant 3).
            if BootInstant::now() >= deadline || deadline.as_nanos() >= later {
                return;
            }
            let until = (sent + lease).as_nanos();
            // Before the swap: a thread that sees the new deadline must see
            // this. A maximum, since `extend` and a renewal can be confirmed in
            // any order.
            self.confirmed_until.fetch_max(until, Ordering::AcqRel);
            if self.swap(seen, later) {
                return;
            }
        }
    }

    /// Ends a valid lease. Returns `false` if it has already ended.
    pub(super) fn end(&self, reason: EndReason) -> bool {
        loop {
            let Validity::Valid { deadline } = self.validity() else {
                return false;
            };
            if self.swap(deadline.as_nanos(), encode(reason)) {
                return true;
            }
        }
    }

    /// Ends the lease at `deadline`. Returns `false` if it has ended before, or
    /// a confirmed request has moved the deadline.
    pub(super) fn expire(&self, deadline: BootInstant) -> bool {
        let lost = encode(EndReason::Lost(self.loss_by_time()));
        self.swap(deadline.as_nanos(), lost)
    }

    /// Waits until the lease has ended for the holder of one generation.
    pub(super) async fn ended(&self, generation: u64) -> EndReason {
        loop {
            // Registered before the check, or an end in between would be
            // missed.
            let mut notified = std::pin::pin!(self.ended.notified());
            notified.as_mut().enable();
            if let Validity::Ended(reason) = self.validity_of(generation) {
                return reason;
            }
            notified.await;
        }
    }

    /// Returns the lease that a renewal requests now; `None` if `at_most` is
    /// over.
    ///
    /// A lease that must not last longer is still renewed, for the remaining
    /// time: the reply shows whether this owner holds the lock.
    pub(super) fn renewal_length(&self) -> Option<Duration> {
        let confirmed_until = self.confirmed_until();
        // The server may have granted only a part of a fixed lease.
        let wanted = match self.renewed || confirmed_until < self.start + self.lease {
            true => self.lease,
            false => confirmed_until.since(BootInstant::now()),
        };
        self.clamp_to_max_hold(wanted)
    }

    /// Returns `due`, or the next look at the holder's progress if that is
    /// earlier.
    pub(super) fn or_next_look(&self, due: BootInstant) -> BootInstant {
        match self.progress.is_limited() {
            true => due.min(next_look_at(BootInstant::now(), self.lease)),
            false => due,
        }
    }

    /// Returns how much of `lease` can be requested; `None` if `at_most` is
    /// over.
    pub(super) fn clamp_to_max_hold(&self, lease: Duration) -> Option<Duration> {
        let length = match self.max_hold_until {
            Some(until) => until.since(BootInstant::now()).min(lease),
            None => lease,
        };
        // The server counts in milliseconds.
        (length >= Duration::from_millis(1)).then_some(length)
    }

    /// Records a request for `lease` that is sent at `sent`, before the outcome
    /// is known.
    pub(super) fn request(&self, sent: BootInstant, lease: Duration) {
        let until = (sent + lease).as_nanos();
        self.requested_until.fetch_max(until, Ordering::AcqRel);
    }

    /// Returns when the server can first expire the lease.
    pub(super) fn confirmed_until(&self) -> BootInstant {
        BootInstant::from_nanos(self.confirmed_until.load(Ordering::Acquire))
    }

    /// Returns when the server expires the lease if it executed every request
    /// as it was sent.
    pub(super) fn requested_until(&self) -> BootInstant {
        BootInstant::from_nanos(self.requested_until.load(Ordering::Acquire))
    }

    /// Lets a caller's `at_least` begin: it has the lock. A lock that no caller
    /// got is free for others at once.
    pub(super) fn begin_at_least(&self, at_least: Duration) {
        if !at_least.is_zero() {
            let until = BootInstant::now() + at_least;
            self.keep_until
                .fetch_max(until.as_nanos(), Ordering::AcqRel);
        }
    }

    /// Returns the call that releases the lock and honours `at_least`.
    pub(super) fn release_call(&self, server: Capabilities) -> Call<ReleaseReply> {
        let keep_until = BootInstant::from_nanos(self.keep_until.load(Ordering::Acquire));
        let hold_for = Some(keep_until.since(BootInstant::now()));
        let hold_for = hold_for.filter(|hold_for| !hold_for.is_zero());
        self.kind.release(&self.value, hold_for, server)
    }

    /// Records that a release is sent at `sent`, before it is: the caller may
    /// drop the future before the reply. Fails if it is too late to repeat an
    /// earlier one: connecting may have taken long, or the machine was asleep.
    pub(super) fn release_sending(&self, sent: BootInstant) -> Result<(), RequestError> {
        if !self.can_repeat_release() {
            return Err(RequestError::Unknown("it is too late to repeat it".into()));
        }
        self.swap_uncertain_release(0, sent.as_nanos());
        Ok(())
    }

    /// Records that the release that was sent at `sent` failed.
    pub(super) fn release_failed(&self, sent: BootInstant, error: &RequestError) {
        if !error.may_be_executed() {
            self.swap_uncertain_release(sent.as_nanos(), 0);
        }
    }

    /// Has no effect if an earlier release is uncertain.
    fn swap_uncertain_release(&self, seen: u64, new: u64) {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let uncertain = &self.uncertain_release;
        let _ = uncertain.compare_exchange(seen, new, success, failure);
    }

    /// Returns whether a release can be repeated now. Later, the server may
    /// have forgotten that it executed one, and would release again.
    pub(super) fn can_repeat_release(&self) -> bool {
        let first = self.uncertain_release.load(Ordering::Acquire);
        match self.kind.repeat_release_within() {
            Some(within) if first > 0 => {
                BootInstant::now() < BootInstant::from_nanos(first) + within
            }
            _ => true,
        }
    }

    /// Returns whether `at_least` or `at_most` applies. Both belong to one
    /// holder.
    pub(super) fn has_hold_limits(&self) -> bool {
        self.keep_until.load(Ordering::Acquire) > 0 || self.max_hold_until.is_some()
    }

    /// Sets the hook. It fires at once if the lease is already lost.
    pub(super) fn set_end_hook(&self, hook: Arc<dyn EndHook>) {
        // Stored before the check: a loss in between finds the hook. It fires
        // once, because the first call takes it out.
        *self.end_hook.lock() = Some(hook);
        if let Validity::Ended(EndReason::Lost(_)) = self.validity() {
            self.notify_released(0);
        }
    }

    /// Calls the end hook, the first time only.
    pub(super) fn notify_released(&self, notified: u64) {
        let hook = self.end_hook.lock().take();
        if let Some(hook) = hook {
            hook.on_end(notified, self.generation.load(Ordering::Acquire));
        }
    }

    /// Ends the current generation and returns the next one.
    pub(super) fn advance(&self) -> u64 {
        let next = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        // Views of the last generation can no longer report.
        self.progress.report();
        self.ended.notify_waiters();
        next
    }

    fn loss_by_time(&self) -> Loss {
        match self.max_hold_until {
            Some(until) if self.confirmed_until() >= until => Loss::AtMost,
            _ if self.progress.is_stuck() => Loss::Stuck,
            _ => Loss::Expired,
        }
    }

    fn swap(&self, seen: u64, new: u64) -> bool {
        let swapped = self
            .validity
            .compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if swapped && new < FIRST_INSTANT {
            self.ended.notify_waiters();
            // A released lock leaves this process once the server has it.
            if let Validity::Ended(EndReason::Lost(_)) = decode(new) {
                self.notify_released(0);
            }
        }
        swapped
    }
}

fn encode(reason: EndReason) -> u64 {
    match reason {
        EndReason::Released => 0,
        EndReason::Lost(Loss::Expired) => 1,
        EndReason::Lost(Loss::Revoked) => 2,
        EndReason::Lost(Loss::AtMost) => 3,
        EndReason::Lost(Loss::ShutDown) => 4,
        EndReason::Lost(Loss::Stuck) => 5,
    }
}

fn decode(number: u64) -> Validity {
    Validity::Ended(match number {
        0 => EndReason::Released,
        1 => EndReason::Lost(Loss::Expired),
        2 => EndReason::Lost(Loss::Revoked),
        3 => EndReason::Lost(Loss::AtMost),
        4 => EndReason::Lost(Loss::ShutDown),
        5 => EndReason::Lost(Loss::Stuck),
        nanos => {
            let deadline = BootInstant::from_nanos(nanos);
            return Validity::Valid { deadline };
        }
    })
}

//! The keeper's timers: when each held lease is renewed and when it expires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::schedule::quantize;
use crate::lease::state::{EndReason, LeaseState, Validity};
use crate::time::BootInstant;

/// The keeper reads the clock at least this often while leases are held:
/// timers stop during suspend, and a lease that expired meanwhile must be
/// reported soon after resume.
const TICK: Duration = Duration::from_millis(250);

/// A lease is ended this long before the deadline, since timers fire up to a
/// millisecond late.
pub(super) const EXPIRY_SLACK: Duration = Duration::from_millis(1);

/// Fewer timers are never swept.
const MIN_SWEEP: usize = 1024;

/// Timers of all held leases: one for renewal and one for expiry each, and one
/// for a slow hold if the client reports those.
///
/// Timers of leases that have ended are dropped when they fire, or when the
/// number of timers has doubled.
#[derive(Default)]
pub(super) struct Timers {
    due: BTreeMap<BootInstant, Vec<(Arc<LeaseState>, TimerKind)>>,
    count: usize,
    /// The number of timers after the last sweep.
    swept: usize,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerKind {
    /// Renew the lease, which failed `failures` times in a row. It fires before
    /// `due` to look at the holder's progress.
    Renew { due: BootInstant, failures: u32 },
    /// Renew the lease even if the holder is stuck: the lock may be revoked.
    Verify { failures: u32 },
    /// Check whether the deadline has passed.
    Expire,
    /// Check whether the lock is held for too long.
    SlowHold,
}

/// The outcome of [`Timers::expedite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expedited {
    /// The renewal is due now, or the lease has ended.
    Done,
    /// An earlier renewal is in flight: the caller must try again.
    InFlight,
    /// No lease has this value.
    NoLease,
}

impl Timers {
    /// Adds the timers of a new lease, unless it was already released. A lost
    /// lease is due at once.
    pub(super) fn add(&mut self, state: Arc<LeaseState>) {
        let deadline = match state.validity() {
            Validity::Valid { deadline } => deadline,
            Validity::Ended(EndReason::Lost(_)) => {
                return self.push(BootInstant::now(), state, TimerKind::Expire);
            }
            Validity::Ended(EndReason::Released) => return,
        };
        if state.first_renewal < BootInstant::NEVER {
            self.schedule_renewal(state.first_renewal, state.clone(), 0);
        }
        if let Some(limit) = state.slow_hold {
            self.push(state.start + limit, state.clone(), TimerKind::SlowHold);
        }
        self.schedule_expiry(deadline, state);
    }

    /// Adds a renewal timer, which fires earlier if the holder's progress is
    /// watched.
    pub(super) fn schedule_renewal(
        &mut self,
        due: BootInstant,
        state: Arc<LeaseState>,
        failures: u32,
    ) {
        let at = state.or_next_look(due);
        self.push(at, state, TimerKind::Renew { due, failures });
    }

    /// Adds an expiry timer: at a shared instant before the deadline, when most
    /// deadlines have moved, and then at the deadline itself.
    pub(super) fn schedule_expiry(&mut self, deadline: BootInstant, state: Arc<LeaseState>) {
        let exact = deadline.saturating_sub(EXPIRY_SLACK);
        let shared = quantize(exact, state.lease);
        let due = if shared > BootInstant::now() {
            shared
        } else {
            exact
        };
        self.push(due, state, TimerKind::Expire);
    }

    pub(super) fn push(&mut self, due: BootInstant, state: Arc<LeaseState>, kind: TimerKind) {
        self.due.entry(due).or_default().push((state, kind));
        self.count += 1;
        if self.count > MIN_SWEEP.max(2 * self.swept) {
            self.sweep();
        }
    }

    /// Drops the timers of released leases. A lost lease still needs the timer:
    /// the keeper releases it.
    fn sweep(&mut self) {
        self.due.retain(|_, timers| {
            let released = Validity::Ended(EndReason::Released);
            timers.retain(|(state, _)| state.validity() != released);
            !timers.is_empty()
        });
        self.count = self.due.values().map(Vec::len).sum();
        self.swept = self.count;
    }

    /// Removes and returns the timers that are due.
    pub(super) fn take_due(&mut self, now: BootInstant) -> Vec<(Arc<LeaseState>, TimerKind)> {
        let mut due = Vec::new();
        while let Some(first) = self.due.first_entry()
            && *first.key() <= now
        {
            due.append(&mut first.remove());
        }
        self.count -= due.len();
        due
    }

    /// Renews the lease with this lock value at `now`.
    pub(super) fn expedite(&mut self, value: &[u8], now: BootInstant) -> Expedited {
        let matches = |state: &LeaseState| *state.value == *value;
        let renewal = self.due.iter().find_map(|(due, timers)| {
            timers
                .iter()
                .enumerate()
                .find_map(|(at, (state, kind))| match *kind {
                    TimerKind::Renew { failures, .. } | TimerKind::Verify { failures }
                        if matches(state) =>
                    {
                        Some((*due, at, failures))
                    }
                    _ => None,
                })
        });
        if let Some((due, at, failures)) = renewal
            && let Some(timers) = self.due.get_mut(&due)
        {
            let (state, _) = timers.swap_remove(at);
            self.count -= 1;
            self.push(now, state, TimerKind::Verify { failures });
            return Expedited::Done;
        }
        let mut all = self.due.values().flatten();
        match all.find(|(state, _)| matches(state)) {
            Some((state, _)) if !state.is_valid() => Expedited::Done,
            Some((state, _)) if state.renewed => Expedited::InFlight,
            // A fixed lease has an expiry timer only.
            Some((state, _)) => {
                self.push(now, state.clone(), TimerKind::Verify { failures: 0 });
                Expedited::Done
            }
            None => Expedited::NoLease,
        }
    }

    /// Returns when the next timer is due, at most one [`TICK`] from now.
    pub(super) fn next(&self) -> BootInstant {
        match self.due.first_key_value() {
            Some((due, _)) => (*due).min(BootInstant::now() + TICK),
            None => BootInstant::NEVER,
        }
    }

    /// Removes all timers and returns every lease once.
    pub(super) fn clear(&mut self) -> Vec<Arc<LeaseState>> {
        (self.count, self.swept) = (0, 0);
        let all = std::mem::take(&mut self.due).into_values().flatten();
        all.filter(|(_, kind)| *kind == TimerKind::Expire)
            .map(|(state, _)| state)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::state::Granted;
    use crate::lease::tests::scripted::kind;
    use crate::options::AcquireOptions;
    use crate::owner::{Owner, Token};
    use crate::protocol::Description;

    /// A lease of a year that was released stayed in memory for a year.
    #[test]
    fn timers_of_released_leases_are_swept() {
        let mut timers = Timers::default();
        for _ in 0..10_000 {
            let mut options = AcquireOptions::new(Duration::from_secs(366 * 86_400));
            options.renewed = false;
            let value = kind().value(&Owner::random(), Description::default());
            let granted = Granted::new(BootInstant::now(), options.lease);
            let state = Arc::new(LeaseState::new(
                kind(),
                value,
                Token::new(1),
                &options,
                granted,
            ));
            timers.add(state.clone());
            state.end(EndReason::Released);
        }
        assert!(timers.clear().len() < 2_000);
    }
}

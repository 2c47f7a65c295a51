//! What the keeper has to do when: one structure for all leases that are held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::held::{Ending, Held, State};
use crate::time::BootInstant;

/// While leases are held the keeper looks at the clock this often: timers stop while the machine
/// sleeps, and a lease that ended meanwhile must be told soon after waking.
const TICK: Duration = Duration::from_millis(250);

/// A lease is ended this much before its deadline, since timers fire up to a millisecond late.
pub(super) const EARLY: Duration = Duration::from_millis(1);

/// Things are due at moments of which there are so many in a third of a lease: those of many leases are then due
/// together, and there are few moments to keep in order.
pub(super) const BEATS: u32 = 256;

/// What is to be done when, for all leases held: one entry each for renewing and for expiring.
///
/// Entries of leases that have ended are dropped when their time comes, or when the number of entries has doubled.
#[derive(Default)]
pub(super) struct Agenda {
    entries: BTreeMap<BootInstant, Vec<(Arc<Held>, What)>>,
    /// How many entries there are, and how many were left when ended leases were last dropped.
    count: usize,
    swept: usize,
}

/// Below this many entries nothing is swept.
const FEW: usize = 1024;

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Renewing; how often it has failed since it last succeeded.
    Renew { failures: u32 },
    /// Looking whether the deadline is here.
    Expire,
}

/// The last moment up to `moment` that is shared by leases of this length.
pub(super) fn shared(moment: BootInstant, lease: Duration) -> BootInstant {
    floor(moment, lease / 3 / BEATS)
}

/// The last whole multiple of `step` up to `moment`.
pub(super) fn floor(moment: BootInstant, step: Duration) -> BootInstant {
    let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
    let nanos = moment.as_nanos();
    BootInstant::from_nanos(nanos - nanos % step.max(1))
}

impl Agenda {
    /// Notes a new lease, unless it has ended already.
    pub(super) fn add(&mut self, held: Arc<Held>) {
        let State::Valid { deadline } = held.state() else {
            return;
        };
        if held.first_renewal < BootInstant::NEVER {
            let first = What::Renew { failures: 0 };
            self.push(held.first_renewal, held.clone(), first);
        }
        self.watch(deadline, held);
    }

    /// Has a deadline looked at: shortly before it, when most have moved on, and then when it is here.
    pub(super) fn watch(&mut self, deadline: BootInstant, held: Arc<Held>) {
        let here = deadline.saturating_sub(EARLY);
        let before = shared(here, held.lease);
        let due = if before > BootInstant::now() {
            before
        } else {
            here
        };
        self.push(due, held, What::Expire);
    }

    pub(super) fn push(&mut self, due: BootInstant, held: Arc<Held>, what: What) {
        self.entries.entry(due).or_default().push((held, what));
        self.count += 1;
        if self.count > FEW.max(2 * self.swept) {
            self.sweep();
        }
    }

    /// Drops the entries of leases that were released. Those that were lost are still to be looked after.
    fn sweep(&mut self) {
        self.entries.retain(|_, entries| {
            entries.retain(|(held, _)| held.state() != State::Ended(Ending::Released));
            !entries.is_empty()
        });
        self.count = self.entries.values().map(Vec::len).sum();
        self.swept = self.count;
    }

    /// Takes out all that is due.
    pub(super) fn take_due(&mut self, now: BootInstant) -> Vec<(Arc<Held>, What)> {
        let mut due = Vec::new();
        while let Some(first) = self.entries.first_entry()
            && *first.key() <= now
        {
            due.append(&mut first.remove());
        }
        self.count -= due.len();
        due
    }

    /// Has the lease renewed now that stands on the server as `value`; false when that cannot be said yet because it is
    /// being renewed.
    pub(super) fn hurry(&mut self, value: &[u8], now: BootInstant) -> bool {
        let its = |held: &Held| *held.value == *value;
        let found = self.entries.iter().find_map(|(due, entries)| {
            let is_its = |(held, what): &(Arc<Held>, What)| *what != What::Expire && its(held);
            Some((*due, entries.iter().position(is_its)?))
        });
        if let Some((due, at)) = found
            && let Some(entries) = self.entries.get_mut(&due)
        {
            let (held, what) = entries.swap_remove(at);
            self.count -= 1;
            self.push(now, held, what);
            return true;
        }
        let mut all = self.entries.values().flatten();
        match all.find(|(held, _)| its(held)) {
            Some((held, _)) if matches!(held.state(), State::Ended(_)) => true,
            Some((held, _)) if held.renewed => false,
            // Of a fixed lease only the end is noted.
            Some((held, _)) => {
                self.push(now, held.clone(), What::Renew { failures: 0 });
                true
            }
            None => true,
        }
    }

    /// When to look again: when the first entry is due, and every [`TICK`] while there is any.
    pub(super) fn next(&self) -> BootInstant {
        match self.entries.first_key_value() {
            Some((due, _)) => (*due).min(BootInstant::now() + TICK),
            None => BootInstant::NEVER,
        }
    }

    /// Forgets everything; every lease once.
    pub(super) fn clear(&mut self) -> Vec<Arc<Held>> {
        (self.count, self.swept) = (0, 0);
        let all = std::mem::take(&mut self.entries).into_values().flatten();
        all.filter(|(_, what)| *what == What::Expire)
            .map(|(held, _)| held)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::held::Granted;
    use super::super::tests::kind;
    use super::*;
    use crate::options::AcquireOptions;
    use crate::owner::{Owner, Token};

    /// A lease of a year that was released stayed in memory for a year.
    #[test]
    fn agenda_forgets_leases_that_were_released() {
        let mut agenda = Agenda::default();
        for _ in 0..10_000 {
            let mut options = AcquireOptions::new(Duration::from_secs(366 * 86_400));
            options.renewed = false;
            let value = kind().value(&Owner::random(), 0, "");
            let granted = Granted::new(BootInstant::now(), options.lease);
            let held = Arc::new(Held::new(kind(), value, Token::new(1), &options, granted));
            agenda.add(held.clone());
            held.end(Ending::Released);
        }
        assert!(agenda.clear().len() < 2_000);
    }
}

//! What the keeper has to do when: one structure for all leases that are held.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use super::held::{Held, State};
use crate::clock::Moment;

/// While leases are held the keeper looks at the clock this often: timers stop while the machine
/// sleeps, and a lease that ended meanwhile must be told soon after waking.
const TICK: Duration = Duration::from_millis(250);

/// A lease is ended this much before its deadline, since timers fire up to a millisecond late.
pub(super) const EARLY: Duration = Duration::from_millis(1);

/// What is to be done when, for all leases held: one entry each for renewing and for expiring.
///
/// Entries of leases that have ended are dropped when their time comes.
#[derive(Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    /// Breaks ties, so that entries need no order of their own.
    number: u64,
}

struct Entry {
    due: Moment,
    number: u64,
    held: Arc<Held>,
    what: What,
}

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Renewing; how often it has failed since it last succeeded.
    Renew { failures: u32 },
    /// Looking whether the deadline is here.
    Expire,
}

impl Agenda {
    /// Notes a new lease, unless it has ended already.
    pub(super) fn add(&mut self, held: Arc<Held>) {
        let State::Valid { deadline } = held.state() else {
            return;
        };
        if held.first_renewal < Moment::NEVER {
            let first = What::Renew { failures: 0 };
            self.push(held.first_renewal, held.clone(), first);
        }
        self.push(deadline.before(EARLY), held, What::Expire);
    }

    pub(super) fn push(&mut self, due: Moment, held: Arc<Held>, what: What) {
        self.number += 1;
        let number = self.number;
        self.entries.push(Reverse(Entry {
            due,
            number,
            held,
            what,
        }));
    }

    pub(super) fn pop_due(&mut self, now: Moment) -> Option<(Arc<Held>, What)> {
        if self.entries.peek()?.0.due > now {
            return None;
        }
        let Reverse(entry) = self.entries.pop()?;
        Some((entry.held, entry.what))
    }

    /// When to look again: when the first entry is due, and every [`TICK`] while there is any.
    pub(super) fn next(&self) -> Moment {
        match self.entries.peek() {
            Some(Reverse(entry)) => entry.due.min(Moment::now() + TICK),
            None => Moment::NEVER,
        }
    }

    /// Forgets everything; every lease once.
    pub(super) fn clear(&mut self) -> Vec<Arc<Held>> {
        self.entries
            .drain()
            .filter(|Reverse(entry)| entry.what == What::Expire)
            .map(|Reverse(entry)| entry.held)
            .collect()
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

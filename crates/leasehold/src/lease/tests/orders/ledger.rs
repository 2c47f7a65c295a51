//! The specification of the queue: a lock that hands itself off, and what each
//! caller must see.

use std::hash::{DefaultHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::RequestError;
use crate::lease::attempt::PATIENCE;
use crate::lease::wait::slots::SlotQueue;
use crate::sync::Mutex;
use crate::time::BootInstant;

pub(super) const CALLERS: usize = 3;

/// The number of hand-offs before a lock returns to the server.
const MAX_HANDOFFS: u64 = 2;

pub(super) type Queue = SlotQueue<Wish, Lock>;

/// What a caller wants.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) caller: usize,
    /// Whether a lock that was acquired for it can be handed off.
    pub(super) handoff: bool,
}

/// What a caller must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seat {
    Absent,
    Waiting,
    Granted(LockId),
    Dormant,
    Failed,
    Holding,
    Done,
}

/// A lease, and the number of hand-offs before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockId {
    pub(super) lease: usize,
    pub(super) handoffs: u64,
}

/// One lease on the server, shared by the locks that are handed off.
pub(super) struct LeaseRecord {
    pub(super) is_valid: bool,
    pub(super) handoffs: u64,
    /// Where holders hand it off.
    pub(super) queue: Option<Arc<Queue>>,
}

/// What is true.
pub(super) struct Ledger {
    pub(super) seats: [Seat; CALLERS],
    pub(super) arrived: [BootInstant; CALLERS],
    pub(super) granted: [BootInstant; CALLERS],
    pub(super) patience: [Duration; CALLERS],
    pub(super) wishes: [bool; CALLERS],
    pub(super) leases: Vec<LeaseRecord>,
    /// The lease that the server has granted.
    pub(super) server: Option<usize>,
    /// The number of locks that exist.
    pub(super) locks: usize,
    pub(super) registry: Option<Arc<Queue>>,
    /// Where the waiting task is.
    pub(super) task_at: &'static str,
    pub(super) reply: Option<Result<Lock, RequestError>>,
    /// The kinds of events since the waiting task last waited.
    pub(super) since_wait: u32,
    pub(super) now: u32,
}

/// A lock that hands itself off when it is dropped.
pub(super) struct Lock {
    pub(super) id: LockId,
    pub(super) handoff: bool,
    pub(super) is_wanted: bool,
    pub(super) ledger: Arc<Mutex<Ledger>>,
}

impl Ledger {
    pub(super) fn new(wishes: [bool; CALLERS]) -> Self {
        Self {
            seats: [Seat::Absent; CALLERS],
            arrived: [BootInstant::NEVER; CALLERS],
            granted: [BootInstant::NEVER; CALLERS],
            patience: [PATIENCE; CALLERS],
            wishes,
            leases: Vec::new(),
            server: None,
            locks: 0,
            registry: None,
            task_at: "none",
            reply: None,
            since_wait: 0,
            now: 0,
        }
    }

    pub(super) fn is_valid(&self, id: LockId) -> bool {
        let lease = &self.leases[id.lease];
        lease.is_valid && lease.handoffs == id.handoffs
    }

    /// Callers arrive in the order of their numbers.
    pub(super) fn first_waiting(&self) -> Option<usize> {
        self.seats.iter().position(|seat| *seat == Seat::Waiting)
    }

    /// Asserts that a lock may be granted to this caller, and returns whether
    /// it fits.
    pub(super) fn may_grant(&self, wish: Wish, handoff: bool) -> bool {
        assert_eq!(Some(wish.caller), self.first_waiting(), "not FIFO");
        wish.handoff == handoff
    }

    pub(super) fn on_granted(&mut self, id: LockId) {
        let caller = self.first_waiting().expect("a caller waits");
        self.seats[caller] = Seat::Granted(id);
        self.granted[caller] = BootInstant::now();
    }

    /// Ends a lease, and returns the queue that must know.
    pub(super) fn end(&mut self, lease: usize) -> Option<Arc<Queue>> {
        let record = &mut self.leases[lease];
        if !std::mem::take(&mut record.is_valid) {
            return None;
        }
        self.server = None;
        record.queue.take()
    }

    pub(super) fn is_live(seat: &Seat) -> bool {
        matches!(seat, Seat::Waiting | Seat::Granted(_) | Seat::Dormant)
    }

    pub(super) fn hash(&self, hasher: &mut DefaultHasher) {
        for caller in 0..CALLERS {
            let seat = self.seats[caller];
            match seat {
                // Leases are numbered as they come.
                Seat::Granted(id) => {
                    (10, id.handoffs, self.is_valid(id)).hash(hasher);
                    let age = BootInstant::now().since(self.granted[caller]);
                    (age.as_millis() / PATIENCE.as_millis()).hash(hasher);
                }
                seat => seat.hash(hasher),
            }
            self.patience[caller].hash(hasher);
            if Self::is_live(&seat) {
                let age = BootInstant::now().since(self.arrived[caller]);
                (age > PATIENCE).hash(hasher);
            }
        }
        let lease = self.server.map(|lease| &self.leases[lease]);
        let lease = lease.map(|lease| (lease.handoffs, lease.queue.is_some()));
        (lease, self.locks, self.task_at, self.since_wait).hash(hasher);
        let reply = self.reply.as_ref().map(Result::is_ok);
        (reply, self.registry.is_some()).hash(hasher);
    }
}

impl Lock {
    /// Returns a lock that the server has just granted.
    pub(super) fn acquire(ledger: &Arc<Mutex<Ledger>>) -> Self {
        let mut inner = ledger.lock();
        assert!(inner.server.is_none());
        let lease = inner.leases.len();
        inner.leases.push(LeaseRecord {
            is_valid: true,
            handoffs: 0,
            queue: None,
        });
        inner.server = Some(lease);
        inner.locks += 1;
        Self {
            id: LockId { lease, handoffs: 0 },
            handoff: false,
            is_wanted: false,
            ledger: ledger.clone(),
        }
    }

    pub(super) fn grant(self, queue: &Queue) -> Result<(), Self> {
        let (id, handoff, ledger) = (self.id, self.handoff, self.ledger.clone());
        queue.grant(self, |wish| ledger.lock().may_grant(*wish, handoff))?;
        ledger.lock().on_granted(id);
        Ok(())
    }

    pub(super) fn hand_off(&self) -> bool {
        let mut ledger = self.ledger.lock();
        let is_valid = ledger.is_valid(self.id);
        let record = &mut ledger.leases[self.id.lease];
        if !is_valid || self.id.handoffs >= MAX_HANDOFFS {
            return false;
        }
        let Some(queue) = record.queue.clone() else {
            return false;
        };
        record.handoffs += 1;
        let next = Self {
            id: LockId {
                handoffs: record.handoffs,
                ..self.id
            },
            handoff: true,
            is_wanted: true,
            ledger: self.ledger.clone(),
        };
        ledger.locks += 1;
        drop(ledger);
        let offered = match next.id.handoffs % 2 {
            0 => next.grant(&queue),
            _ => queue.park(next, |wish| self.ledger.lock().may_grant(*wish, true)),
        };
        match offered {
            Ok(()) => true,
            Err(mut unneeded) => {
                unneeded.is_wanted = false;
                false
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The test has failed.
        if std::thread::panicking() {
            return;
        }
        let mut ledger = self.ledger.lock();
        ledger.locks -= 1;
        let granted = Seat::Granted(self.id);
        // Not dropped by its caller, so it was taken back.
        if let Some(caller) = ledger.seats.iter().position(|seat| *seat == granted) {
            let due = ledger.granted[caller] + ledger.patience[caller];
            assert!(due <= BootInstant::now(), "taken back too early");
            ledger.seats[caller] = Seat::Dormant;
            ledger.patience[caller] *= 2;
        }
        drop(ledger);
        if self.is_wanted && self.hand_off() {
            return;
        }
        let ended = self.ledger.lock().end(self.id.lease);
        if let Some(queue) = ended {
            queue.set_here(false);
        }
    }
}

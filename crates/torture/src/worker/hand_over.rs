//! Hand-over of locks between the workers. Tickets travel through the store,
//! which has no faults: some are lost with their process, some are passed on
//! twice, and some expire.

use std::time::Duration;

use testkit::{Reply, SeededRng};

use super::locks::Held;
use super::session::Session;
use crate::history::{EventKind, Failure};

/// The list of tickets in the store: `ID TOKEN LOCK TICKET` each.
const TICKETS: &str = "tickets";

/// Older tickets are dropped: they have expired.
const MAX_TICKETS: &str = "-200";

impl Session {
    /// Returns whether this hold is handed over instead of released.
    pub(super) fn hands_over(&self, lock: u32, rng: &mut SeededRng) -> bool {
        let plan = &self.job.plan;
        let every = plan.hand_over_every;
        every > 0 && plan.kind(lock).can_be_handed_over() && rng.below(every) == 0
    }

    /// Hands a lock over, and passes the ticket on.
    pub(super) async fn hand_over(&self, lock: u32, hold: u64, held: Held, rng: &mut SeededRng) {
        let token = held.token();
        let lease = self.job.plan.lease();
        let within = [lease / 10, lease / 2, lease][usize::try_from(rng.below(3)).unwrap_or(0)];
        let handing = held.hand_over(within);
        // Some are cancelled.
        let limit = match rng.below(30) {
            0 => Duration::from_micros(rng.below(3000)),
            _ => Duration::from_secs(60),
        };
        let Ok(Some(text)) = tokio::time::timeout(limit, handing).await else {
            return;
        };
        let ticket = (self.job.number as u64) << 40 | hold;
        self.record(lock, hold, EventKind::HandedOver { ticket });
        let line = format!("{ticket} {token} {lock} {text}");
        let copies = 1 + u64::from(rng.below(4) == 0);
        self.with_store(|store| {
            for _ in 0..copies {
                let _ = store.ask(&["RPUSH", TICKETS, &line]);
            }
            let _ = store.ask(&["LTRIM", TICKETS, MAX_TICKETS, "-1"]);
        });
    }

    /// Adopts a lock, if a ticket is available and the plan has hand-overs.
    /// Returns `false` otherwise.
    pub(super) async fn adopt(&self, rng: &mut SeededRng) -> bool {
        if self.job.plan.hand_over_every == 0 || rng.below(2) == 0 {
            return false;
        }
        let popped = self.with_store(|store| store.ask(&["RPOP", TICKETS]));
        let Ok(Reply::Text(line)) = popped else {
            return false;
        };
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (Some(ticket), Some(given), Some(lock)) = (number(), number(), number()) else {
            return false;
        };
        let lock = u32::try_from(lock).unwrap_or_default();
        let hold = self.next_hold();
        let (weight, waits) = (1, false);
        self.record(lock, hold, EventKind::Requested { weight, waits });
        let adopting = self.locks.adopt(words.next().unwrap_or_default());
        let limit = match rng.below(30) {
            0 => Duration::from_micros(rng.below(3000)),
            _ => Duration::from_secs(60),
        };
        match tokio::time::timeout(limit, adopting).await {
            Ok(Ok(held)) => {
                let token = held.token();
                let adopted = EventKind::Adopted {
                    ticket,
                    token,
                    given,
                };
                self.record(lock, hold, adopted);
                self.hold(lock, hold, held, rng).await;
            }
            Ok(Err(failure)) => self.record(lock, hold, EventKind::Failed(failure)),
            Err(_) => self.record(lock, hold, EventKind::Failed(Failure::Cancelled)),
        }
        true
    }
}

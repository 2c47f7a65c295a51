//! Attempts to acquire a lock, assembled from the events of a history.

use std::collections::HashMap;

use crate::history::{Event, EventKind, Failure, Timestamp};

/// One attempt to acquire a lock, from the request to the release or failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) process: usize,
    pub(crate) lock: u32,
    pub(crate) weight: u32,
    pub(crate) waits: bool,
    pub(crate) requested: Timestamp,
    pub(crate) outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held(Hold),
    Failed {
        at: Timestamp,
        reason: Failure,
    },
    /// The process was killed before the request completed.
    Unknown,
}

/// A period during which the lock was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) acquired: Timestamp,
    /// When the holder stopped relying on the lock: its release, its loss, or
    /// the last known deadline of a killed process.
    pub(crate) until: Timestamp,
    /// When the release was confirmed. `None` for a killed process and for a
    /// release without a reply.
    pub(crate) released: Option<Timestamp>,
    /// 0 for an unfenced lock.
    pub(crate) token: u64,
    pub(crate) lost: bool,
}

impl Attempt {
    pub(crate) fn hold(&self) -> Option<&Hold> {
        match &self.outcome {
            Outcome::Held(hold) => Some(hold),
            _ => None,
        }
    }
}

/// Assembles all attempts of one process.
pub(crate) fn attempts(process: usize, events: &[Event]) -> Vec<Attempt> {
    let mut open: HashMap<(u32, u64), Attempt> = HashMap::new();
    let mut all = Vec::new();
    for event in events {
        let key = (event.lock, event.hold);
        if let EventKind::Requested { weight, waits } = event.kind {
            let attempt = Attempt {
                process,
                lock: event.lock,
                weight,
                waits,
                requested: event.at,
                outcome: Outcome::Unknown,
            };
            open.insert(key, attempt);
            continue;
        }
        let Some(attempt) = open.get_mut(&key) else {
            continue;
        };
        match (event.kind, &mut attempt.outcome) {
            (EventKind::Acquired { token, deadline }, outcome) => {
                *outcome = Outcome::Held(Hold {
                    acquired: event.at,
                    until: deadline,
                    released: None,
                    token,
                    lost: false,
                });
            }
            (EventKind::Valid { deadline }, Outcome::Held(hold)) => {
                hold.until = hold.until.max(deadline);
            }
            (EventKind::Lost, Outcome::Held(hold)) => {
                hold.until = hold.until.min(event.at);
                hold.lost = true;
            }
            (EventKind::Releasing, Outcome::Held(hold)) => {
                hold.until = hold.until.min(event.at);
            }
            (EventKind::Released, Outcome::Held(hold)) => hold.released = Some(event.at),
            (EventKind::Failed(reason), outcome) => {
                *outcome = Outcome::Failed {
                    at: event.at,
                    reason,
                };
            }
            _ => {}
        }
        if matches!(event.kind, EventKind::Released | EventKind::Failed(_)) {
            all.extend(open.remove(&key));
        }
    }
    all.extend(open.into_values());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ends_at_release_loss_or_deadline() {
        let until = |lines: &str| {
            let events: Vec<Event> = lines.split(';').map(|line| line.parse().unwrap()).collect();
            attempts(0, &events)[0].hold().unwrap().until
        };
        let acquired = "requested 1 1 5 1 1;acquired 1 1 10 5 100";
        let ends = [
            ("valid 1 1 20 200", 200),
            ("releasing 1 1 30;released 1 1 40", 30),
            ("lost 1 1 150;releasing 1 1 151", 100),
            ("lost 1 1 50;releasing 1 1 151", 50),
        ];
        for (rest, end) in ends {
            assert_eq!(until(&format!("{acquired};{rest}")), end, "{rest}");
        }
    }

    #[test]
    fn failed_or_interrupted_attempt_holds_nothing() {
        let failed: Vec<Event> = ["requested 1 1 5 1 1", "failed 1 1 9 0"]
            .map(|line| line.parse().unwrap())
            .into();
        let reason = Failure::Busy;
        assert_eq!(
            attempts(0, &failed)[0].outcome,
            Outcome::Failed { at: 9, reason }
        );
        assert_eq!(attempts(0, &failed[..1])[0].outcome, Outcome::Unknown);
    }
}

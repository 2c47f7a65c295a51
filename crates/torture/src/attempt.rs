//! One attempt to have a lock and what came of it, put together from its events.

use std::collections::HashMap;

use crate::history::{Event, Failure, Moment, What};

/// An attempt, from when the lock was wanted until it was given back or not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) process: usize,
    pub(crate) lock: u32,
    pub(crate) weight: u32,
    pub(crate) patient: bool,
    pub(crate) wanted: Moment,
    pub(crate) end: End,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Held(Holding),
    Failed {
        at: Moment,
        why: Failure,
    },
    /// Its process was killed before it was answered.
    Unanswered,
}

/// What was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) got: Moment,
    /// Until when it was relied upon: given back, lost, or the deadline of one that was killed.
    pub(crate) until: Moment,
    /// When it had been given back; not known of one that was killed, or of a release without an answer.
    pub(crate) gave: Option<Moment>,
    /// 0 where there is none.
    pub(crate) token: u64,
    pub(crate) lost: bool,
}

impl Attempt {
    pub(crate) fn holding(&self) -> Option<&Holding> {
        match &self.end {
            End::Held(holding) => Some(holding),
            _ => None,
        }
    }
}

/// All attempts of one process.
pub(crate) fn attempts(process: usize, events: &[Event]) -> Vec<Attempt> {
    let mut open: HashMap<(u32, u64), Attempt> = HashMap::new();
    let mut all = Vec::new();
    for event in events {
        let key = (event.lock, event.holding);
        if let What::Want { weight, patient } = event.what {
            let attempt = Attempt {
                process,
                lock: event.lock,
                weight,
                patient,
                wanted: event.at,
                end: End::Unanswered,
            };
            open.insert(key, attempt);
            continue;
        }
        let Some(attempt) = open.get_mut(&key) else {
            continue;
        };
        match (event.what, &mut attempt.end) {
            (What::Got { token, deadline }, end) => {
                *end = End::Held(Holding {
                    got: event.at,
                    until: deadline,
                    gave: None,
                    token,
                    lost: false,
                });
            }
            (What::Valid { deadline }, End::Held(holding)) => {
                holding.until = holding.until.max(deadline);
            }
            (What::Lost, End::Held(holding)) => {
                holding.until = holding.until.min(event.at);
                holding.lost = true;
            }
            (What::End, End::Held(holding)) => holding.until = holding.until.min(event.at),
            (What::Gave, End::Held(holding)) => holding.gave = Some(event.at),
            (What::Failed(why), end) => *end = End::Failed { at: event.at, why },
            _ => {}
        }
        if matches!(event.what, What::Gave | What::Failed(_)) {
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
    fn a_holding_lasts_until_it_is_given_back_lost_or_over() {
        let until = |lines: &str| {
            let events: Vec<Event> = lines.split(';').map(|line| line.parse().unwrap()).collect();
            attempts(0, &events)[0].holding().unwrap().until
        };
        let got = "want 1 1 5 1 1;got 1 1 10 5 100";
        assert_eq!(until(&format!("{got};valid 1 1 20 200")), 200, "killed");
        assert_eq!(until(&format!("{got};end 1 1 30;gave 1 1 40")), 30);
        assert_eq!(until(&format!("{got};lost 1 1 150;end 1 1 151")), 100);
        assert_eq!(until(&format!("{got};lost 1 1 50;end 1 1 151")), 50);
    }

    #[test]
    fn an_attempt_that_failed_or_was_cut_short_holds_nothing() {
        let failed: Vec<Event> = ["want 1 1 5 1 1", "failed 1 1 9 0"]
            .map(|line| line.parse().unwrap())
            .into();
        let why = Failure::Busy;
        assert_eq!(attempts(0, &failed)[0].end, End::Failed { at: 9, why });
        assert_eq!(attempts(0, &failed[..1])[0].end, End::Unanswered);
    }
}

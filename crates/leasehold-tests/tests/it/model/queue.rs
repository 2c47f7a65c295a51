//! A plain model of the queue: lists instead of sorted sets, sums instead of counters.

use proptest::prelude::*;

/// One step that a client can take, with the owner as a number.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Enter {
        owner: usize,
        weight: i64,
        shared: bool,
        most: i64,
        lease: i64,
        wait: i64,
        /// Whether it shows the ticket of the place it had last.
        again: bool,
    },
    Renew {
        owner: usize,
        length: i64,
    },
    Release {
        owner: usize,
        keep: i64,
    },
    Shrink {
        owner: usize,
        weight: i64,
    },
    Capacity {
        most: i64,
    },
    Look,
    Sleep {
        micros: u64,
    },
}

const OWNERS: usize = 6;

/// A minute, and times so short that they pass between two steps or while one sleeps.
fn length() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(60_000_000), 1 => 1..400i64, 1 => 400..3_000i64]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let owner = 0..OWNERS;
    let wait = prop_oneof![1 => Just(0), 4 => length()];
    let keep = prop_oneof![4 => Just(0), 1 => length()];
    prop_oneof![
        8 => (owner.clone(), 1..4i64, any::<bool>(), 2..4i64, length(), wait, any::<bool>()).prop_map(
            |(owner, weight, shared, most, lease, wait, again)| Step::Enter {
                owner, weight, shared, most, lease, wait, again
            }
        ),
        3 => (owner.clone(), length()).prop_map(|(owner, length)| Step::Renew { owner, length }),
        5 => (owner.clone(), keep).prop_map(|(owner, keep)| Step::Release { owner, keep }),
        1 => (owner, 1..4i64).prop_map(|(owner, weight)| Step::Shrink { owner, weight }),
        1 => (1..5i64).prop_map(|most| Step::Capacity { most }),
        1 => Just(Step::Look),
        2 => (0..900u64).prop_map(|micros| Step::Sleep { micros }),
    ]
}

/// What the server must do.
#[derive(Default)]
pub(super) struct Model {
    holders: Vec<Holding>,
    line: Vec<Waiting>,
    capacity: Option<i64>,
    kept: bool,
    token: i64,
    counter: i64,
    ticket: i64,
    /// The ticket each owner had last.
    tickets: [i64; OWNERS],
}

#[derive(Clone)]
struct Share {
    owner: usize,
    weight: i64,
    shared: bool,
    first: i64,
}

struct Holding {
    share: Share,
    token: i64,
    since: i64,
    end: i64,
    /// Whether its owner has released it, so that it only keeps others out.
    released: bool,
}

struct Waiting {
    share: Share,
    ticket: i64,
    end: i64,
}

fn name(owner: usize) -> String {
    format!("{owner:032x}")
}

impl Model {
    /// The script of a step and its arguments.
    pub(super) fn call(&self, step: &Step) -> (&'static str, Vec<String>) {
        let words = |words: &[&dyn ToString]| words.iter().map(|word| word.to_string()).collect();
        match step {
            Step::Enter {
                owner,
                weight,
                shared,
                most,
                lease,
                wait,
                again,
            } => {
                let ticket = if *again { self.tickets[*owner] } else { 0 };
                let shared = i64::from(*shared);
                let (kind, record, channel) = ("fair", "lh1 who", "c");
                let owner = name(*owner);
                let args = words(&[
                    &kind, &owner, &record, &channel, weight, &shared, most, lease, wait, &ticket,
                ]);
                ("enter", args)
            }
            Step::Renew { owner, length } => ("renew", words(&[&name(*owner), length])),
            Step::Release { owner, keep } => ("release", words(&[&name(*owner), keep])),
            Step::Shrink { owner, weight } => ("shrink", words(&[&name(*owner), weight])),
            Step::Capacity { most } => ("capacity", words(&[&"fair", most, &60_000_000])),
            Step::Look => ("look", Vec::new()),
            Step::Sleep { .. } => unreachable!("not a call"),
        }
    }

    /// Takes a step at `now`; the answer it must have, and the grants it must push.
    pub(super) fn take(&mut self, step: &Step, now: i64) -> (String, Vec<String>) {
        let mut grants = Vec::new();
        if let Step::Look = step {
            return (self.look(now), grants);
        }
        if let Step::Enter { most, .. } = step {
            self.capacity.get_or_insert(*most);
        }
        if let Step::Capacity { most } = step {
            self.capacity = Some(*most);
            self.kept = true;
        }
        self.holders.retain(|holding| holding.end > now);
        self.line.retain(|waiting| waiting.end > now);
        self.promote(now, &mut grants);
        let answer = match step {
            Step::Enter { .. } => self.enter(step, now, &mut grants),
            Step::Renew { owner, length } => {
                let holding = self
                    .holders
                    .iter_mut()
                    .find(|held| held.share.owner == *owner);
                let waiting = self
                    .line
                    .iter_mut()
                    .find(|waits| waits.share.owner == *owner);
                let end = match holding {
                    Some(held) => (!held.released).then_some(&mut held.end),
                    None => waiting.map(|waits| &mut waits.end),
                };
                if let Some(end) = end {
                    *end = (*end).max(now + length);
                }
                self.standing(*owner, now)
            }
            Step::Release { owner, keep } => self.release(*owner, *keep, now, &mut grants),
            Step::Shrink { owner, weight } => {
                let holding = self
                    .holders
                    .iter_mut()
                    .find(|held| held.share.owner == *owner);
                if let Some(holding) = holding
                    && *weight <= holding.share.weight
                {
                    holding.share.weight = *weight;
                    holding.share.shared = true;
                    self.promote(now, &mut grants);
                }
                self.standing(*owner, now)
            }
            Step::Capacity { .. } => format!("{}|{now}", self.used()),
            Step::Look | Step::Sleep { .. } => unreachable!("not a change"),
        };
        if self.holders.is_empty() && self.line.is_empty() && !self.kept {
            *self = Self {
                counter: self.counter,
                tickets: self.tickets,
                ..Self::default()
            };
        }
        (answer, grants)
    }

    fn used(&self) -> i64 {
        self.holders.iter().map(|held| held.share.weight).sum()
    }

    fn capacity(&self) -> i64 {
        self.capacity.unwrap_or(0)
    }

    fn enter(&mut self, step: &Step, now: i64, grants: &mut Vec<String>) -> String {
        let Step::Enter {
            owner,
            weight,
            shared,
            lease,
            wait,
            again,
            ..
        } = step
        else {
            unreachable!("not an enter")
        };
        let known = self.standing(*owner, now);
        if !known.starts_with('0') {
            return known;
        }
        if *weight > self.capacity() {
            return format!("3|{}|{now}", self.capacity());
        }
        let share = Share {
            owner: *owner,
            weight: *weight,
            shared: *shared,
            first: *lease.min(wait),
        };
        if self.line.is_empty() && self.used() + weight <= self.capacity() {
            self.grant(share, *lease, now);
        } else if *wait > 0 {
            let ticket = match self.tickets[*owner] {
                old if *again && old > 0 => old,
                _ => now.max(self.ticket + 1),
            };
            self.ticket = self.ticket.max(ticket);
            self.tickets[*owner] = ticket;
            self.line.push(Waiting {
                share,
                ticket,
                end: now + wait,
            });
            self.line
                .sort_by_key(|waiting| (waiting.ticket, waiting.share.owner));
            self.promote(now, grants);
        }
        self.standing(*owner, now)
    }

    fn release(&mut self, owner: usize, keep: i64, now: i64, grants: &mut Vec<String>) -> String {
        let holding = self
            .holders
            .iter()
            .position(|held| held.share.owner == owner);
        let waiting = self
            .line
            .iter()
            .position(|waits| waits.share.owner == owner);
        let stood = match (holding, waiting) {
            (Some(at), _) if keep > 0 => {
                let held = &mut self.holders[at];
                if !held.released {
                    held.end = now + keep;
                    held.released = true;
                }
                1
            }
            (Some(at), _) => {
                self.holders.remove(at);
                1
            }
            (None, Some(at)) => {
                self.line.remove(at);
                2
            }
            (None, None) => 0,
        };
        self.promote(now, grants);
        format!("{stood}|{now}")
    }

    fn grant(&mut self, share: Share, lease: i64, now: i64) -> i64 {
        if !share.shared || self.holders.is_empty() {
            self.counter = now.max(self.counter + 1);
            self.token = self.counter;
        }
        self.holders.push(Holding {
            share,
            token: self.token,
            since: now,
            end: now + lease,
            released: false,
        });
        self.token
    }

    fn promote(&mut self, now: i64, grants: &mut Vec<String>) {
        while let Some(head) = self.line.first() {
            let weight = head.share.weight;
            if weight > self.capacity() {
                self.line.remove(0);
            } else if self.used() + weight > self.capacity() {
                return;
            } else {
                let share = self.line.remove(0).share;
                let (owner, first) = (name(share.owner), share.first);
                let token = self.grant(share, first, now);
                grants.push(format!("{owner} {token} {}", now + first));
            }
        }
    }

    fn standing(&self, owner: usize, now: i64) -> String {
        if let Some(held) = self.holders.iter().find(|held| held.share.owner == owner) {
            return format!("1|{}|{now}|{}", held.token, held.end);
        }
        let shown = self.first_holder(0);
        match self
            .line
            .iter()
            .position(|waits| waits.share.owner == owner)
        {
            Some(ahead) => format!("2|{ahead}|{now}|{}|{shown}", self.line[ahead].ticket),
            None => format!("0|{}|{now}|0|{shown}", self.line.len()),
        }
    }

    /// The holder whose lease ends first, of those that end after `moment`.
    fn first_holder(&self, moment: i64) -> String {
        let live = self.holders.iter().filter(|held| held.end > moment);
        let first = live.min_by_key(|held| (held.end, held.share.owner));
        first.map_or_else(
            || "|0".to_owned(),
            |held| {
                let Share {
                    weight,
                    shared,
                    first,
                    ..
                } = held.share;
                let (token, since, end) = (held.token, held.since, held.end);
                let shared = i64::from(shared);
                let channel = if held.released { "-" } else { "c" };
                format!("{weight} {shared} {first} {token} {since} {channel} lh1 who|{end}")
            },
        )
    }

    fn look(&self, now: i64) -> String {
        let live = self.holders.iter().filter(|held| held.end > now);
        let used: i64 = live.map(|held| held.share.weight).sum();
        let waiting = self.line.iter().filter(|waits| waits.end > now).count();
        let capacity = self.capacity();
        format!(
            "{used}|{capacity}|{now}|{waiting}|{}",
            self.first_holder(now)
        )
    }
}

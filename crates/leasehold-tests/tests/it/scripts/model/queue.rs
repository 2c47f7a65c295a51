//! A plain model of the queue: lists instead of sorted sets, sums instead of counters.

use super::step::{OWNERS, Step};

/// What stands at the lock's own key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    Free,
    /// The mark of the only holder.
    Alone,
    /// The summary of a queue.
    Queue,
}

/// What the server must do.
#[derive(Default)]
pub(super) struct Model {
    pub(super) form: Form,
    holders: Vec<Holding>,
    line: Vec<Waiting>,
    capacity: i64,
    kept: bool,
    counter: i64,
    /// The ticket each owner had last.
    tickets: [i64; OWNERS],
    /// What the server may still have for two milliseconds after its lease: it expires keys in whole ones.
    over: Option<(Holding, i64)>,
}

#[derive(Clone)]
struct Share {
    owner: usize,
    weight: i64,
    first: i64,
    mark: String,
}

struct Holding {
    share: Share,
    /// Zero where the owner has it from the counter.
    token: i64,
    since: i64,
    end: i64,
    /// Where it hears of grants; `-` when its owner has released it, so that it only keeps others out.
    channel: char,
}

struct Waiting {
    share: Share,
    ticket: i64,
    end: i64,
}

fn name(owner: usize) -> String {
    format!("{owner:032x}")
}

/// Since one millisecond.
fn mark(owner: usize, weight: i64, most: i64) -> String {
    format!("lh1:fair:{most}:{weight} {} 1 77 host note", name(owner))
}

/// The server expires keys at whole milliseconds.
fn whole_millis(moment: i64) -> i64 {
    (moment + 999) / 1000 * 1000
}

impl Model {
    /// The mark that `owner` writes or compares.
    pub(super) fn mark(&self, step: &Step) -> String {
        if let Some((owner, weight, most)) = step.acquires() {
            return mark(owner, weight, most);
        }
        match step {
            Step::Extend { owner, .. } | Step::Drop { owner } => {
                let held = self.holders.iter().find(|held| held.share.owner == *owner);
                held.map_or_else(|| mark(*owner, 1, 2), |held| held.share.mark.clone())
            }
            _ => unreachable!("no mark"),
        }
    }

    /// The script of a step and its arguments.
    pub(super) fn call(&self, step: &Step) -> (&'static str, Vec<String>) {
        let words = |words: &[&dyn ToString]| words.iter().map(|word| word.to_string()).collect();
        match step {
            Step::Enter {
                owner,
                lease,
                wait,
                again,
                ..
            } => {
                let ticket = if *again { self.tickets[*owner] } else { 0 };
                let args = words(&[&self.mark(step), &"c", lease, wait, &ticket]);
                ("enter", args)
            }
            Step::Renew { owner, length } => ("renew", words(&[&name(*owner), length])),
            Step::Release { owner, keep } => ("release", words(&[&name(*owner), keep])),
            Step::Shrink { owner, weight } => ("shrink", words(&[&name(*owner), weight])),
            Step::Capacity { most } => ("capacity", words(&[&"fair", most, &60_000_000])),
            Step::Look => ("look", Vec::new()),
            _ => unreachable!("not a script of the queue"),
        }
    }

    /// Takes note of an `INCR`.
    pub(super) fn count(&mut self) {
        self.counter += 1;
    }

    /// Whether `owner` holds a plain string; `None` where its lease may have ended by `now`.
    pub(super) fn is_alone(&self, owner: usize, now: i64) -> Option<bool> {
        match (self.form, self.holders.first()) {
            (Form::Alone, Some(held)) if held.share.owner == owner => {
                (held.end > now).then_some(true)
            }
            _ => self
                .over
                .as_ref()
                .is_none_or(|(held, _)| now > held.end + 2_000)
                .then_some(false),
        }
    }

    /// Whether `SET NX` may succeed at `now`.
    pub(super) fn may_be_free(&self, now: i64) -> bool {
        match self.form {
            Form::Free => true,
            Form::Alone => self.holders[0].end <= now,
            Form::Queue => false,
        }
    }

    /// The lock is a plain string from now on.
    pub(super) fn set_alone(&mut self, step: &Step, end: i64) {
        let (owner, weight, most) = step.acquires().expect("an acquire");
        let share = Share {
            owner,
            weight,
            first: 0,
            mark: mark(owner, weight, most),
        };
        (self.form, self.capacity) = (Form::Alone, most);
        self.line.clear();
        self.holders = vec![Holding {
            share,
            token: 0,
            since: 1000,
            end,
            channel: '+',
        }];
    }

    /// Moves the end of the plain string. The server renews a string that scripts already count as ended.
    pub(super) fn extend(&mut self, end: i64) {
        if let (Form::Free, Some((held, capacity))) = (self.form, self.over.take()) {
            (self.form, self.capacity) = (Form::Alone, capacity);
            self.holders = vec![held];
        }
        self.holders[0].end = end;
    }

    /// The lock is free from now on.
    pub(super) fn set_free(&mut self) {
        *self = Self {
            counter: self.counter,
            tickets: self.tickets,
            ..Self::default()
        };
    }

    /// Takes a step at `now`; the reply it must have, and the grants it must push.
    pub(super) fn take(&mut self, step: &Step, now: i64) -> (String, Vec<String>) {
        let mut grants = Vec::new();
        if self.form == Form::Alone && self.holders[0].end <= now {
            let over = self.holders.pop().map(|held| (held, self.capacity));
            self.set_free();
            self.over = over;
        }
        if let Step::Look = step {
            return (self.look(now), grants);
        }
        if let (Form::Free, Step::Renew { owner, .. } | Step::Shrink { owner, .. }) =
            (self.form, step)
        {
            return (self.standing(*owner, now), grants);
        }
        if let (Form::Free, Step::Release { .. }) = (self.form, step) {
            return (format!("0|{now}"), grants);
        }
        if self.form == Form::Queue {
            self.holders.retain(|holding| holding.end > now);
            self.line.retain(|waiting| waiting.end > now);
            self.promote(now, &mut grants);
        }
        let reply = match step {
            Step::Enter { .. } => self.enter(step, now, &mut grants),
            Step::Renew { owner, length } => self.renew(*owner, *length, now),
            Step::Release { owner, keep } => self.release(*owner, *keep, now, &mut grants),
            Step::Shrink { owner, weight } => {
                let holding = self
                    .holders
                    .iter_mut()
                    .find(|held| held.share.owner == *owner);
                if let Some(holding) = holding {
                    self.form = Form::Queue;
                    if *weight <= holding.share.weight {
                        holding.share.weight = *weight;
                        self.promote(now, &mut grants);
                    }
                }
                self.standing(*owner, now)
            }
            Step::Capacity { most } => {
                (self.form, self.capacity, self.kept) = (Form::Queue, *most, true);
                self.line.retain(|waits| waits.share.weight <= *most);
                self.promote(now, &mut grants);
                format!("{}|{now}", self.used())
            }
            _ => unreachable!("not a script of the queue"),
        };
        // A free lock that was asked for too much is left as it is.
        if self.form == Form::Queue
            && self.holders.is_empty()
            && !self.kept
            && !reply.starts_with('3')
        {
            self.set_free();
        }
        (reply, grants)
    }

    fn used(&self) -> i64 {
        self.holders.iter().map(|held| held.share.weight).sum()
    }

    fn enter(&mut self, step: &Step, now: i64, grants: &mut Vec<String>) -> String {
        let Step::Enter {
            owner,
            weight,
            most,
            lease,
            wait,
            again,
        } = step
        else {
            unreachable!("not an enter")
        };
        if self.holders.is_empty() && !self.kept {
            if weight > most {
                return format!("3|{most}|{now}");
            }
            self.set_alone(step, whole_millis(now + lease));
            return format!("1|{}|{now}|{}|1", self.next_token(now), now + lease);
        }
        let is_known = self.holders.iter().any(|held| held.share.owner == *owner)
            || self.line.iter().any(|waits| waits.share.owner == *owner);
        if is_known {
            return self.standing(*owner, now);
        }
        if *weight > self.capacity {
            return format!("3|{}|{now}", self.capacity);
        }
        let has_room = self.line.is_empty() && self.used() + weight <= self.capacity;
        if self.form == Form::Alone && !has_room && *wait == 0 {
            return self.standing(*owner, now);
        }
        self.form = Form::Queue;
        let share = Share {
            owner: *owner,
            weight: *weight,
            first: *lease.min(wait),
            mark: mark(*owner, *weight, *most),
        };
        if has_room {
            self.grant(share, *lease, now);
        } else if *wait > 0 {
            let newest = self.line.last().map_or(0, |waits| waits.ticket);
            let ticket = match self.tickets[*owner] {
                old if *again && old > 0 => old,
                _ => now.max(newest + 1),
            };
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

    fn renew(&mut self, owner: usize, length: i64, now: i64) -> String {
        let alone = self.form == Form::Alone;
        if let Some(held) = self
            .holders
            .iter_mut()
            .find(|held| held.share.owner == owner)
        {
            if alone {
                held.end = held.end.max(whole_millis(now + length));
            } else if held.channel != '-' {
                held.end = held.end.max(now + length);
            }
        }
        let waiting = self
            .line
            .iter_mut()
            .find(|waits| waits.share.owner == owner);
        if let Some(waits) = waiting
            && waits.end < now + length
        {
            // The reply to a heartbeat has no ticket.
            waits.end = now + length;
            let standing = self.standing(owner, now);
            let mut parts: Vec<_> = standing.split('|').collect();
            parts[3] = "0";
            return parts.join("|");
        }
        self.standing(owner, now)
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
                self.form = Form::Queue;
                let held = &mut self.holders[at];
                if held.channel != '-' {
                    held.end = now + keep;
                    held.channel = '-';
                }
                1
            }
            (Some(at), _) => {
                self.holders.remove(at);
                if self.form == Form::Alone {
                    self.set_free();
                }
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

    fn next_token(&mut self, now: i64) -> i64 {
        self.counter = now.max(self.counter + 1);
        self.counter
    }

    fn grant(&mut self, share: Share, lease: i64, now: i64) -> i64 {
        let token = self.next_token(now);
        let (since, end) = (now, now + lease);
        self.holders.push(Holding {
            share,
            token,
            since,
            end,
            channel: 'c',
        });
        token
    }

    fn promote(&mut self, now: i64, grants: &mut Vec<String>) {
        while let Some(head) = self.line.first()
            && self.used() + head.share.weight <= self.capacity
        {
            let share = self.line.remove(0).share;
            let (owner, first) = (name(share.owner), share.first);
            let token = self.grant(share, first, now);
            grants.push(format!("{owner} {token} {}", now + first));
        }
    }

    fn standing(&mut self, owner: usize, now: i64) -> String {
        let alone = self.form == Form::Alone;
        if let Some(at) = self
            .holders
            .iter()
            .position(|held| held.share.owner == owner)
        {
            let end = self.holders[at].end;
            if alone {
                return format!("1|{}|{now}|{end}|1", self.next_token(now));
            }
            if self.holders[at].token == 0 {
                self.holders[at].token = self.next_token(now);
            }
            return format!("1|{}|{now}|{end}|0", self.holders[at].token);
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
                    first,
                    ref mark,
                    ..
                } = held.share;
                let Holding {
                    token,
                    since,
                    end,
                    channel,
                    ..
                } = held;
                format!("{weight} {first} {token} {since} {channel} {mark}|{end}")
            },
        )
    }

    fn look(&self, now: i64) -> String {
        let live = self.holders.iter().filter(|held| held.end > now);
        let used: i64 = live.map(|held| held.share.weight).sum();
        let waiting = self.line.iter().filter(|waits| waits.end > now).count();
        let capacity = self.capacity;
        format!(
            "{used}|{capacity}|{now}|{waiting}|{}",
            self.first_holder(now)
        )
    }
}

//! A plain model of the queue: lists instead of sorted sets, sums instead of
//! counters.

use super::step::{OWNERS, Step};

/// The form of the lock's own key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    Free,
    /// The value of the only holder.
    Alone,
    /// The summary of a queue.
    Queue,
}

/// The expected state of the server.
#[derive(Default)]
pub(super) struct Model {
    pub(super) form: Form,
    pub(super) holders: Vec<Hold>,
    pub(super) queue: Vec<Waiter>,
    capacity: i64,
    kept: bool,
    pub(super) counter: i64,
    /// The last ticket of each owner.
    tickets: [i64; OWNERS],
    /// A hold that the server may still have for two milliseconds after its
    /// lease, since it expires keys at whole milliseconds.
    expired: Option<(Hold, i64)>,
}

#[derive(Clone)]
pub(super) struct Request {
    pub(super) owner: usize,
    weight: i64,
    first: i64,
    pub(super) lock_value: String,
}

pub(super) struct Hold {
    pub(super) request: Request,
    /// Zero if the owner drew its token from the counter.
    pub(super) token: i64,
    pub(super) since: i64,
    pub(super) end: i64,
    /// Where the owner receives grants. `-` after its release, when the hold
    /// only excludes others, and `>` before its adoption.
    pub(super) channel: char,
}

pub(super) struct Waiter {
    pub(super) request: Request,
    ticket: i64,
    end: i64,
}

pub(super) fn name(owner: usize) -> String {
    format!("{owner:032x}")
}

/// Acquired one millisecond after the epoch.
pub(super) fn lock_value(owner: usize, weight: i64, limit: i64) -> String {
    format!("lh1:fair:{limit}:{weight} {} 1 77 host - note", name(owner))
}

/// Rounds as the server does, which expires keys at whole milliseconds.
fn whole_millis(moment: i64) -> i64 {
    (moment + 999) / 1000 * 1000
}

impl Model {
    /// Returns the value that `owner` writes or compares.
    pub(super) fn lock_value(&self, step: &Step) -> String {
        if let Some((owner, weight, limit)) = step.acquires() {
            return lock_value(owner, weight, limit);
        }
        match step {
            Step::Extend { owner, .. } | Step::Drop { owner } => {
                let held = self
                    .holders
                    .iter()
                    .find(|held| held.request.owner == *owner);
                held.map_or_else(
                    || lock_value(*owner, 1, 2),
                    |held| held.request.lock_value.clone(),
                )
            }
            _ => unreachable!("no mark"),
        }
    }

    /// Returns the script of a step and its arguments.
    pub(super) fn call(&self, step: &Step) -> (&'static str, Vec<String>) {
        let words = |words: &[&dyn ToString]| words.iter().map(|word| word.to_string()).collect();
        match step {
            Step::Enqueue {
                owner,
                lease,
                wait,
                again,
                ..
            } => {
                let ticket = if *again { self.tickets[*owner] } else { 0 };
                let args = words(&[&self.lock_value(step), &"c", lease, wait, &ticket]);
                ("enter", args)
            }
            Step::Renew { owner, length } => ("renew", words(&[&name(*owner), length])),
            Step::Release { owner, keep } => ("release", words(&[&name(*owner), keep])),
            Step::Downgrade { owner, weight } => ("shrink", words(&[&name(*owner), weight])),
            Step::HandOver {
                owner,
                token,
                within,
            } => ("hand-over", self.hand_over_args(*owner, *token, *within)),
            Step::Adopt { owner, lease } => ("adopt", Self::adopt_args(*owner, *lease)),
            Step::Capacity { limit } => ("capacity", words(&[&"fair", limit, &60_000_000])),
            Step::Stats => ("stats", Vec::new()),
            _ => unreachable!("not a script of the queue"),
        }
    }

    /// Records an `INCR`.
    pub(super) fn count(&mut self) {
        self.counter += 1;
    }

    /// Returns whether `owner` holds a plain string, or `None` if its lease may
    /// have ended by `now`.
    pub(super) fn is_alone(&self, owner: usize, now: i64) -> Option<bool> {
        match (self.form, self.holders.first()) {
            (Form::Alone, Some(held)) if held.request.owner == owner => {
                (held.end > now).then_some(true)
            }
            _ => self
                .expired
                .as_ref()
                .is_none_or(|(held, _)| now > held.end + 2_000)
                .then_some(false),
        }
    }

    /// Returns whether `SET NX` may succeed at `now`.
    pub(super) fn may_be_free(&self, now: i64) -> bool {
        match self.form {
            Form::Free => true,
            Form::Alone => self.holders[0].end <= now,
            Form::Queue => false,
        }
    }

    /// Makes the lock a plain string.
    pub(super) fn set_alone(&mut self, step: &Step, end: i64) {
        let (owner, weight, limit) = step.acquires().expect("an acquire");
        let request = Request {
            owner,
            weight,
            first: 0,
            lock_value: lock_value(owner, weight, limit),
        };
        (self.form, self.capacity) = (Form::Alone, limit);
        self.queue.clear();
        self.holders = vec![Hold {
            request,
            token: 0,
            since: 1000,
            end,
            channel: '+',
        }];
    }

    /// Moves the expiry of the plain string. The server renews a string that
    /// scripts already consider expired.
    pub(super) fn extend(&mut self, end: i64) {
        if let (Form::Free, Some((held, capacity))) = (self.form, self.expired.take()) {
            (self.form, self.capacity) = (Form::Alone, capacity);
            self.holders = vec![held];
        }
        self.holders[0].end = end;
    }

    /// Frees the lock.
    pub(super) fn set_free(&mut self) {
        *self = Self {
            counter: self.counter,
            tickets: self.tickets,
            ..Self::default()
        };
    }

    /// Takes a step at `now`. Returns the expected reply and the expected
    /// grants.
    pub(super) fn apply(&mut self, step: &Step, now: i64) -> (String, Vec<String>) {
        let mut grants = Vec::new();
        if self.form == Form::Alone && self.holders[0].end <= now {
            let expired = self.holders.pop().map(|held| (held, self.capacity));
            self.set_free();
            self.expired = expired;
        }
        if let Step::Stats = step {
            return (self.stats(now), grants);
        }
        if let (Form::Free, Step::Renew { owner, .. } | Step::Downgrade { owner, .. }) =
            (self.form, step)
        {
            return (self.status(*owner, now), grants);
        }
        if let (Form::Free | Form::Alone, Step::Adopt { owner, .. }) = (self.form, step) {
            return (self.status(*owner, now), grants);
        }
        if let (Form::Free, Step::Release { .. } | Step::HandOver { .. }) = (self.form, step) {
            return (format!("0|{now}"), grants);
        }
        if self.form == Form::Queue {
            self.holders.retain(|holder_at| holder_at.end > now);
            self.queue.retain(|waiter| waiter.end > now);
            self.promote(now, &mut grants);
        }
        let reply = match step {
            Step::Enqueue { .. } => self.enqueue(step, now, &mut grants),
            Step::Renew { owner, length } => self.renew(*owner, *length, now),
            Step::Release { owner, keep } => self.release(*owner, *keep, now, &mut grants),
            Step::Downgrade { owner, weight } => {
                let holder_at = self
                    .holders
                    .iter_mut()
                    .find(|held| held.request.owner == *owner);
                if let Some(holder_at) = holder_at {
                    self.form = Form::Queue;
                    if *weight <= holder_at.request.weight {
                        holder_at.request.weight = *weight;
                        self.promote(now, &mut grants);
                    }
                }
                self.status(*owner, now)
            }
            Step::HandOver {
                owner,
                token,
                within,
            } => self.hand_over(*owner, *token, *within, now),
            Step::Adopt { owner, lease } => self.adopt(*owner, *lease, now),
            Step::Capacity { limit } => {
                (self.form, self.capacity, self.kept) = (Form::Queue, *limit, true);
                self.queue.retain(|waiter| waiter.request.weight <= *limit);
                self.promote(now, &mut grants);
                format!("{}|{now}", self.used())
            }
            _ => unreachable!("not a script of the queue"),
        };
        // A rejected request leaves a free lock unchanged.
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
        self.holders.iter().map(|held| held.request.weight).sum()
    }

    fn enqueue(&mut self, step: &Step, now: i64, grants: &mut Vec<String>) -> String {
        let Step::Enqueue {
            owner,
            weight,
            limit,
            lease,
            wait,
            again,
        } = step
        else {
            unreachable!("not an enter")
        };
        if self.holders.is_empty() && !self.kept {
            if weight > limit {
                return format!("3|{limit}|{now}");
            }
            self.set_alone(step, whole_millis(now + lease));
            return format!("1|{}|{now}|{}|1", self.next_token(now), now + lease);
        }
        let is_known = self.holders.iter().any(|held| held.request.owner == *owner)
            || self
                .queue
                .iter()
                .any(|waiter| waiter.request.owner == *owner);
        if is_known {
            return self.status(*owner, now);
        }
        if *weight > self.capacity {
            return format!("3|{}|{now}", self.capacity);
        }
        let has_room = self.queue.is_empty() && self.used() + weight <= self.capacity;
        if self.form == Form::Alone && !has_room && *wait == 0 {
            return self.status(*owner, now);
        }
        self.form = Form::Queue;
        let request = Request {
            owner: *owner,
            weight: *weight,
            first: *lease.min(wait),
            lock_value: lock_value(*owner, *weight, *limit),
        };
        if has_room {
            self.grant(request, *lease, now);
        } else if *wait > 0 {
            let newest = self.queue.last().map_or(0, |waiter| waiter.ticket);
            let ticket = match self.tickets[*owner] {
                old if *again && old > 0 => old,
                _ => now.max(newest + 1),
            };
            self.tickets[*owner] = ticket;
            self.queue.push(Waiter {
                request,
                ticket,
                end: now + wait,
            });
            self.queue
                .sort_by_key(|waiter| (waiter.ticket, waiter.request.owner));
            self.promote(now, grants);
        }
        self.status(*owner, now)
    }

    fn renew(&mut self, owner: usize, length: i64, now: i64) -> String {
        let is_alone = self.form == Form::Alone;
        if let Some(held) = self
            .holders
            .iter_mut()
            .find(|held| held.request.owner == owner)
        {
            if is_alone {
                held.end = held.end.max(whole_millis(now + length));
            } else if held.channel != '-' {
                held.end = held.end.max(now + length);
            }
        }
        let waiter = self
            .queue
            .iter_mut()
            .find(|waiter| waiter.request.owner == owner);
        if let Some(waiter) = waiter
            && waiter.end < now + length
        {
            // The reply to a heartbeat contains no ticket.
            waiter.end = now + length;
            let status = self.status(owner, now);
            let mut parts: Vec<_> = status.split('|').collect();
            parts[3] = "0";
            return parts.join("|");
        }
        self.status(owner, now)
    }

    fn release(&mut self, owner: usize, keep: i64, now: i64, grants: &mut Vec<String>) -> String {
        let holder_at = self
            .holders
            .iter()
            .position(|held| held.request.owner == owner);
        let waiter = self
            .queue
            .iter()
            .position(|waiter| waiter.request.owner == owner);
        let outcome = match (holder_at, waiter) {
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
                self.queue.remove(at);
                2
            }
            (None, None) => 0,
        };
        self.promote(now, grants);
        format!("{outcome}|{now}")
    }

    pub(super) fn next_token(&mut self, now: i64) -> i64 {
        self.counter = now.max(self.counter + 1);
        self.counter
    }

    fn grant(&mut self, request: Request, lease: i64, now: i64) -> i64 {
        let token = self.next_token(now);
        let since = now;
        let end = now + lease;
        self.holders.push(Hold {
            request,
            token,
            since,
            end,
            channel: 'c',
        });
        token
    }

    fn promote(&mut self, now: i64, grants: &mut Vec<String>) {
        while let Some(head) = self.queue.first()
            && self.used() + head.request.weight <= self.capacity
        {
            let request = self.queue.remove(0).request;
            let owner = name(request.owner);
            let first = request.first;
            let token = self.grant(request, first, now);
            grants.push(format!("{owner} {token} {}", now + first));
        }
    }

    pub(super) fn status(&mut self, owner: usize, now: i64) -> String {
        let is_alone = self.form == Form::Alone;
        if let Some(at) = self
            .holders
            .iter()
            .position(|held| held.request.owner == owner)
        {
            let end = self.holders[at].end;
            if is_alone {
                return format!("1|{}|{now}|{end}|1", self.next_token(now));
            }
            if self.holders[at].token == 0 {
                self.holders[at].token = self.next_token(now);
            }
            return format!("1|{}|{now}|{end}|0", self.holders[at].token);
        }
        let shown = self.first_holder(0);
        match self
            .queue
            .iter()
            .position(|waiter| waiter.request.owner == owner)
        {
            Some(ahead) => format!("2|{ahead}|{now}|{}|{shown}", self.queue[ahead].ticket),
            None => format!("0|0|{now}|0|{shown}"),
        }
    }

    /// Returns the holder whose lease ends first after `moment`.
    fn first_holder(&self, moment: i64) -> String {
        let live = self.holders.iter().filter(|held| held.end > moment);
        let first = live.min_by_key(|held| (held.end, held.request.owner));
        first.map_or_else(
            || "|0".to_owned(),
            |held| {
                let Request {
                    weight,
                    first,
                    ref lock_value,
                    ..
                } = held.request;
                let Hold {
                    token,
                    since,
                    end,
                    channel,
                    ..
                } = held;
                format!("{weight} {first} {token} {since} {channel} {lock_value}|{end}")
            },
        )
    }

    fn stats(&self, now: i64) -> String {
        let live = self.holders.iter().filter(|held| held.end > now);
        let used: i64 = live.map(|held| held.request.weight).sum();
        let waiter = self.queue.iter().filter(|waiter| waiter.end > now).count();
        let capacity = self.capacity;
        format!(
            "{used}|{capacity}|{now}|{waiter}|{}",
            self.first_holder(now)
        )
    }
}

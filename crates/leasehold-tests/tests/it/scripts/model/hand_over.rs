//! The model of hand-over and adoption.

use super::queue::{Form, Hold, Model, Request, lock_value, name};
use super::step::{OWNERS, Step};

/// Returns the owner in the ticket of `owner`.
fn pending(owner: usize) -> usize {
    OWNERS + owner
}

impl Model {
    /// Returns whether no client sends a step. Each hand-over and each adoption
    /// has a new owner, and a waiter hands over only after it knows its grant.
    pub(super) fn is_impossible(&self, step: &Step) -> bool {
        let is_known = |owner| {
            let mut holders = self.holders.iter().map(|held| &held.request);
            let mut waiters = self.queue.iter().map(|waiter| &waiter.request);
            let is_owner = |request: &Request| request.owner == owner;
            holders.any(is_owner) || waiters.any(is_owner)
        };
        match step {
            Step::Adopt { owner, .. } => is_known(*owner),
            Step::HandOver { owner, .. } => {
                let waits = self
                    .queue
                    .iter()
                    .any(|waiter| waiter.request.owner == *owner);
                waits || is_known(pending(*owner))
            }
            _ => false,
        }
    }

    /// Returns the arguments of a hand-over.
    pub(super) fn hand_over_args(&self, owner: usize, token: i64, within: i64) -> Vec<String> {
        let held = self.holders.iter().find(|held| held.request.owner == owner);
        let value = held.map_or_else(
            || lock_value(owner, 1, 2),
            |held| held.request.lock_value.clone(),
        );
        let value = value.replace(&name(owner), &name(pending(owner)));
        vec![name(owner), value, token.to_string(), within.to_string()]
    }

    /// Returns the arguments of an adoption.
    pub(super) fn adopt_args(owner: usize, lease: i64) -> Vec<String> {
        vec![
            name(pending(owner)),
            lock_value(owner, 1, 2),
            "c".to_owned(),
            lease.to_string(),
        ]
    }

    pub(super) fn hand_over(&mut self, owner: usize, token: i64, within: i64, now: i64) -> String {
        let value = self.hand_over_args(owner, token, within).swap_remove(1);
        match self.hold_of(owner) {
            Some(held) => {
                held.request.owner = pending(owner);
                held.request.lock_value = value;
                (held.token, held.end, held.channel) = (token, now + within, '>');
                self.form = Form::Queue;
                format!("1|{now}")
            }
            None => format!("0|{now}"),
        }
    }

    pub(super) fn adopt(&mut self, owner: usize, lease: i64, now: i64) -> String {
        let given = match self.hold_of(pending(owner)) {
            Some(held) if held.channel == '>' => held.token,
            _ => return self.status(owner, now),
        };
        let token = self.next_token(now).max(given + 1);
        self.counter = token;
        if let Some(held) = self.hold_of(pending(owner)) {
            held.request.owner = owner;
            held.request.lock_value = lock_value(owner, 1, 2);
            (held.token, held.since) = (token, now);
            (held.end, held.channel) = (now + lease, 'c');
        }
        self.status(owner, now)
    }

    fn hold_of(&mut self, owner: usize) -> Option<&mut Hold> {
        let mut holders = self.holders.iter_mut();
        holders.find(|held| held.request.owner == owner)
    }
}

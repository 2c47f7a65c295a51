//! Subscriptions at several servers that are heard as one: a message counts when a majority has made it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backend::connection::NodeConnections;
use crate::backend::{
    Backoff, Channel, Listener, PubSubEvent, RequestError, Subscription, Unsubscribe,
};

/// How many announcements are remembered until a majority has made them.
const REMEMBERED: usize = 16;

/// How many of so many nodes decide: more than half.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns when a majority of `members` has confirmed; the others are heard when they do.
pub(crate) async fn subscribe(
    members: Vec<Arc<NodeConnections>>,
    channel: Channel,
    listener: Arc<dyn Listener>,
    keeper: Handle,
) -> Result<Subscription, RequestError> {
    let majority = majority(members.len());
    let gathering = Arc::new(Gathering {
        listener,
        majority,
        heard: Mutex::default(),
    });
    // One task per member, which ends its part of the subscription when it is ended itself.
    let mut parts = JoinSet::new();
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    for (number, member) in members.into_iter().enumerate() {
        let gathering = gathering.clone();
        let ear = Arc::new(Ear { gathering, number });
        let part = part(member, channel.clone(), ear, sender.clone());
        parts.spawn_on(part, &keeper);
    }
    drop(sender);
    let mut confirmed = 0;
    let mut failure = RequestError::ShutDown;
    while let Some(outcome) = outcomes.recv().await {
        match outcome {
            Ok(()) => confirmed += 1,
            Err(why) => failure = why,
        }
        if confirmed >= majority {
            return Ok(Subscription::new(Box::new(Parts(parts))));
        }
    }
    Err(failure)
}

/// Is subscribed at one member until it is cancelled. Reports the first outcome, and goes on trying where it failed.
async fn part(
    member: Arc<NodeConnections>,
    channel: Channel,
    ear: Arc<Ear>,
    outcomes: mpsc::UnboundedSender<Result<(), RequestError>>,
) {
    let mut outcomes = Some(outcomes);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    loop {
        let subscribed = member.subscribe(channel.clone(), ear.clone()).await;
        match (subscribed, outcomes.take()) {
            (Ok(_in_force), first) => {
                match first {
                    Some(outcomes) => drop(outcomes.send(Ok(()))),
                    // Something may have been missed until now.
                    None => ear.on_event(PubSubEvent::Resubscribed),
                }
                return std::future::pending().await;
            }
            (Err(failure), Some(outcomes)) => drop(outcomes.send(Err(failure))),
            (Err(_), None) => {}
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Ends a subscription at all members when dropped.
struct Parts(#[expect(dead_code, reason = "dropped with it")] JoinSet<()>);

impl Unsubscribe for Parts {}

/// Passes a message on when a majority of the members has said the same.
struct Gathering {
    listener: Arc<dyn Listener>,
    majority: usize,
    /// What was said lately, and by which members, one bit each.
    heard: Mutex<VecDeque<(Vec<u8>, u64)>>,
}

/// Hears one member.
struct Ear {
    gathering: Arc<Gathering>,
    number: usize,
}

impl Listener for Ear {
    fn on_event(&self, event: PubSubEvent<'_>) {
        let passed_on = match event {
            PubSubEvent::Message { text, .. } => self.gathering.completes(text, self.number),
            PubSubEvent::Resubscribed | PubSubEvent::Ended => true,
        };
        if passed_on {
            self.gathering.listener.on_event(event);
        }
    }
}

impl Gathering {
    /// Whether `text` has now been heard from just a majority.
    fn completes(&self, text: &[u8], member: usize) -> bool {
        let bit = 1 << (member % 64);
        let mut heard = self.heard.lock();
        let said = match heard.iter_mut().find(|(said, _)| said == text) {
            Some((_, members)) => members,
            None => {
                if heard.len() == REMEMBERED {
                    heard.pop_front();
                }
                heard.push_back((text.to_vec(), 0));
                match heard.back_mut() {
                    Some((_, members)) => members,
                    None => return true,
                }
            }
        };
        let before = *said;
        *said |= bit;
        before != *said && said.count_ones() as usize == self.majority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_passed_on_once_when_a_majority_has_said_it() {
        struct Deaf;
        impl Listener for Deaf {
            fn on_event(&self, _news: PubSubEvent<'_>) {}
        }
        let gathering = Gathering {
            listener: Arc::new(Deaf),
            majority: 3,
            heard: Mutex::default(),
        };
        let said = [
            (b"a", 0),
            (b"b", 1),
            (b"a", 1),
            (b"a", 1),
            (b"a", 4),
            (b"a", 2),
        ];
        let passed = said.map(|(text, member)| gathering.completes(text, member));
        assert_eq!(passed, [false, false, false, false, true, false]);
        for number in 0..100_u32 {
            gathering.completes(&number.to_be_bytes(), 0);
        }
        assert_eq!(gathering.heard.lock().len(), REMEMBERED);
    }
}

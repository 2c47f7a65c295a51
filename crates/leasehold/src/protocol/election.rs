//! The terms of an election: which leader was elected, and in which order.
//!
//! A term is `EPOCH SINCE PID HOST NOTE`, separated by single spaces. The
//! epoch is the fencing token of the leader, so terms are ordered by it.

use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, first};
use super::keys::QueueKeys;
use super::kind::{ChannelName, Keys, Notified};
use super::outcome::LockStatus;
use super::record;
use super::script::{digits, script};
use crate::backend::{Command, Reply, RequestError};
use crate::info::Term;
use crate::owner::Token;

script!(ANNOUNCE, "election/announce.lua");

/// The number of terms that the server keeps. A follower that misses more of
/// them skips the oldest.
const KEPT_TERMS: u64 = 64;

/// How long terms are kept after the last election: longer than a leader leads.
const TERMS_LIFE: Duration = Duration::from_secs(366 * 86_400);

/// The calls of one election, besides those of its lock.
#[derive(Debug)]
pub(crate) struct ElectionCalls {
    keys: Arc<QueueKeys>,
    terms: String,
    channel: String,
}

impl ElectionCalls {
    pub(crate) fn new(keys: Arc<QueueKeys>) -> Self {
        Self {
            terms: keys.terms(),
            channel: keys.election_channel(),
            keys,
        }
    }

    /// Records the term of a leader, and notifies followers. Returns false if
    /// a later term is recorded.
    pub(crate) fn announce(&self, epoch: Token, server_micros: u64, note: &str) -> Call<bool> {
        let epoch = epoch.as_u64();
        let term = write_term(epoch, server_micros, note);
        let life = u64::try_from(TERMS_LIFE.as_millis()).unwrap_or(u64::MAX);
        let args = [
            &digits(epoch)[..],
            term.as_bytes(),
            &digits(KEPT_TERMS),
            &digits(life),
            self.channel.as_bytes(),
        ];
        let keys = [self.terms.as_bytes()];
        Call::script(&ANNOUNCE, &keys, &args, |replies| {
            match first("an announcement", replies)?.int() {
                Some(recorded @ (0 | 1)) => Ok(recorded == 1),
                _ => Err(RequestError::malformed("an announcement", &[])),
            }
        })
    }

    /// Notifies followers that the leader resigned.
    pub(crate) fn notify(&self) -> Call<()> {
        let publish = Command::new("SPUBLISH").arg(&self.channel).arg("");
        Call::new(vec![publish], |_| Ok(()))
    }

    /// Reads the terms after the epoch `after`, oldest first.
    pub(crate) fn terms_after(&self, after: u64) -> Call<Vec<Term>> {
        let range = Command::new("ZRANGEBYSCORE")
            .arg(&self.terms)
            .arg(format!("({after}"))
            .arg("+inf");
        Call::new(vec![range], read_terms)
    }

    /// Reads the last term.
    pub(crate) fn last_term(&self) -> Call<Option<Term>> {
        let range = Command::new("ZRANGE").arg(&self.terms).arg("-1").arg("-1");
        Call::new(vec![range], |replies| Ok(read_terms(replies)?.pop()))
    }

    /// Returns what a follower waits for that knows the terms up to `after`.
    pub(crate) fn news(self: &Arc<Self>, after: u64, knows_vacancy: bool) -> ElectionNews {
        ElectionNews {
            election: self.clone(),
            after,
            knows_vacancy,
        }
    }
}

/// A change of the leader that a follower does not know yet.
pub(crate) struct ElectionNews {
    election: Arc<ElectionCalls>,
    after: u64,
    /// Whether the follower knows that there is no leader.
    knows_vacancy: bool,
}

impl Notified for ElectionNews {
    fn channel_name(&self) -> ChannelName<'_> {
        ChannelName::sharded(&self.election.channel)
    }

    /// Reports `Free` once there is a change.
    fn poll(&self) -> Call<LockStatus> {
        let terms = Command::new("ZCOUNT")
            .arg(&self.election.terms)
            .arg(format!("({}", self.after))
            .arg("+inf");
        let lock = Command::new("EXISTS").arg(self.election.keys.key());
        let knows_vacancy = self.knows_vacancy;
        Call::new(vec![terms, lock], move |replies| match &replies[..] {
            [Reply::Int(0), Reply::Int(held)] if *held == 1 || knows_vacancy => {
                Ok(LockStatus::Held { remaining: None })
            }
            [Reply::Int(_), Reply::Int(_)] => Ok(LockStatus::Free),
            [Reply::Refused(refusal), _] | [_, Reply::Refused(refusal)] => {
                Err(RequestError::Refused(refusal.clone()))
            }
            _ => Err(RequestError::malformed("an election", &replies)),
        })
    }
}

fn read_terms(replies: Vec<Reply>) -> Result<Vec<Term>, RequestError> {
    let reply = first("the terms of an election", replies)?;
    let read = |term: &Reply| read_term(term.text()?);
    let terms = reply.list().map(|terms| terms.iter().map(read).collect());
    match terms.flatten() {
        Some(terms) => Ok(terms),
        None => Err(RequestError::malformed(
            "the terms of an election",
            &[reply],
        )),
    }
}

fn write_term(epoch: u64, server_micros: u64, note: &str) -> String {
    format!("{epoch} {}", record::write_process(server_micros, note))
}

fn read_term(text: &str) -> Option<Term> {
    let (epoch, leader) = text.split_once(' ')?;
    let leader = record::read_process(leader)?;
    Some(Term {
        epoch: Some(Token::new(epoch.parse().ok()?)),
        host: Some(leader.host),
        pid: Some(leader.pid),
        since: leader.since,
        note: record::non_empty(&leader.note),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn term_is_read_as_it_was_written() {
        let written = write_term(42, 1_763_000_000_123_456, "10.0.0.7:8080 eu");
        let term = read_term(&written).unwrap();
        assert_eq!(term.epoch, Some(Token::new(42)));
        assert_eq!(term.pid, Some(std::process::id()));
        assert_eq!(term.note.as_deref(), Some("10.0.0.7:8080 eu"));
        let since = Duration::from_millis(1_763_000_000_123);
        assert_eq!(term.since, SystemTime::UNIX_EPOCH.checked_add(since));
        for text in ["", "42", "42 1 2", "x 1 2 host note"] {
            assert_eq!(read_term(text), None, "{text}");
        }
    }
}

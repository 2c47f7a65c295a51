//! The terms of an election: which leader was elected, and in which order.
//!
//! A term is `EPOCH OWNER SINCE PID HOST NOTE`, separated by single spaces. The
//! epoch is the leader's fencing token, so terms are ordered by it. The owner
//! tells whether the current holder of the lock announced the term.

use std::time::Duration;

use super::call::{Call, read_done};
use super::keys::QueueKeys;
use super::kind::ChannelName;
use super::script::{digits, millis, script};
use super::{queue_reply, queued, record};
use crate::backend::{Batch, Capabilities, Channel, Reply, RequestError};
use crate::info::Term;
use crate::owner::Token;

script!(ANNOUNCE, "election/announce.lua");

/// The number of terms that the server keeps. A follower that misses more of
/// them skips the oldest.
const KEPT_TERMS: u64 = 64;

/// How long terms are kept after the last election: longer than a leader leads.
const TERMS_LIFE: Duration = Duration::from_secs(366 * 86_400);

/// An election's calls, besides those of the lock.
#[derive(Debug)]
pub(crate) struct ElectionCalls {
    keys: QueueKeys,
    terms: String,
    channel: String,
}

impl ElectionCalls {
    pub(crate) fn new(keys: QueueKeys) -> Self {
        Self {
            terms: keys.terms(),
            channel: keys.election_channel(),
            keys,
        }
    }

    /// Records the term of the leader with this lock value, and notifies
    /// followers. Returns false if a later term is recorded.
    pub(crate) fn announce(
        &self,
        epoch: Token,
        value: &[u8],
        server_micros: u64,
        note: &str,
    ) -> Call<bool> {
        let epoch = epoch.as_u64();
        let term = write_term(epoch, record::owner(value), server_micros, note);
        let args = [
            &digits(epoch)[..],
            term.as_bytes(),
            &digits(KEPT_TERMS),
            &millis(TERMS_LIFE),
            self.channel.as_bytes(),
        ];
        let keys = [self.terms.as_bytes()];
        Call::script(&ANNOUNCE, &keys, &args, read_done)
    }

    /// Notifies followers that the leader resigned.
    pub(crate) fn notify(&self, server: Capabilities) -> Call<()> {
        let publish = Batch::new(server.publish()).arg(&self.channel).arg("");
        Call::new(publish, |_| Ok(()))
    }

    /// Reads the current leader.
    pub(crate) fn leader(&self) -> Call<LeaderReading> {
        // The term before the holder: if the leader changes in between, its
        // term is above the one that was read, and a follower still sees it.
        let terms = Batch::new("ZRANGE").arg(&self.terms).arg("-1").arg("-1");
        let commands = terms.and(queued::stats_command(&self.keys));
        Call::new(commands, |replies| match &replies[..] {
            [Reply::Refused(refusal), _] | [_, Reply::Refused(refusal)] => {
                Err(RequestError::Refused(refusal.clone()))
            }
            [terms, stats] => read_leader(terms, stats)
                .ok_or_else(|| RequestError::malformed("the leader of an election", &replies)),
            _ => Err(RequestError::malformed(
                "the leader of an election",
                &replies,
            )),
        })
    }

    /// Reads what a follower that knows the terms up to `after` does not know.
    pub(crate) fn news(&self, after: u64) -> Call<ElectionNews> {
        let terms = Batch::new("ZRANGEBYSCORE")
            .arg(&self.terms)
            // The parenthesis excludes `after` itself.
            .arg(format!("({after}"))
            .arg("+inf");
        let commands = terms.then("EXISTS").arg(self.keys.lock());
        Call::new(commands, |replies| match &replies[..] {
            [Reply::Refused(refusal), _] | [_, Reply::Refused(refusal)] => {
                Err(RequestError::Refused(refusal.clone()))
            }
            [Reply::List(terms), Reply::Int(held)] => Ok(ElectionNews {
                terms: read_terms(terms).map(|term| term.term).collect(),
                is_vacant: *held == 0,
            }),
            _ => Err(RequestError::malformed(
                "the terms of an election",
                &replies,
            )),
        })
    }

    /// Returns the channel of the followers.
    pub(crate) fn channel(&self) -> Channel {
        ChannelName::sharded(&self.channel).channel()
    }
}

/// An election's state.
pub(crate) struct LeaderReading {
    /// The current leader, with an epoch if the term is announced.
    pub(crate) leader: Option<Term>,
    /// The last recorded term, perhaps of an earlier leader.
    pub(crate) last: Option<Token>,
}

/// What changed since a follower last asked.
pub(crate) struct ElectionNews {
    /// The new terms, oldest first.
    pub(crate) terms: Vec<Term>,
    pub(crate) is_vacant: bool,
}

/// A term as the server stores it.
struct RecordedTerm<'a> {
    owner: &'a str,
    term: Term,
}

/// Reads the last term, and the usage of the lock; `None` if malformed.
fn read_leader(terms: &Reply, stats: &Reply) -> Option<LeaderReading> {
    let last = read_terms(terms.list()?).last();
    let holder = queue_reply::read_holder(stats)?;
    Some(LeaderReading {
        last: last.as_ref().and_then(|last| last.term.epoch),
        leader: holder.map(|(value, holder)| match last {
            // Otherwise the holder has not announced its term yet, and the last
            // one belongs to an earlier leader.
            Some(last) if last.owner.as_bytes() == record::owner(&value) => last.term,
            _ => Term {
                epoch: None,
                process: holder.process,
            },
        }),
    })
}

/// Reads recorded terms. What is not a term does not hide the others.
fn read_terms(terms: &[Reply]) -> impl Iterator<Item = RecordedTerm<'_>> {
    terms.iter().filter_map(|term| read_term(term.text()?))
}

fn write_term(epoch: u64, owner: &[u8], server_micros: u64, note: &str) -> String {
    let owner = String::from_utf8_lossy(owner);
    let leader = record::write_process(server_micros, note);
    format!("{epoch} {owner} {leader}")
}

fn read_term(text: &str) -> Option<RecordedTerm<'_>> {
    let (epoch, rest) = text.split_once(' ')?;
    let (owner, leader) = rest.split_once(' ')?;
    let term = Term {
        epoch: Some(Token::new(epoch.parse().ok()?)),
        process: record::read_process(leader)?,
    };
    Some(RecordedTerm { owner, term })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn term_is_read_as_it_was_written() {
        let written = write_term(42, b"0f1e", 1_763_000_000_123_456, "10.0.0.7:8080 eu");
        let RecordedTerm { owner, term } = read_term(&written).unwrap();
        assert_eq!(owner, "0f1e");
        assert_eq!(term.epoch, Some(Token::new(42)));
        assert_eq!(term.process.pid, Some(std::process::id()));
        assert_eq!(term.process.note.as_deref(), Some("10.0.0.7:8080 eu"));
        let since = Duration::from_millis(1_763_000_000_123);
        assert_eq!(
            term.process.since,
            SystemTime::UNIX_EPOCH.checked_add(since)
        );
        for text in ["", "42", "42 1 2", "x 0f1e 1 2 host note"] {
            assert!(read_term(text).is_none(), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_term_is_skipped() {
        let written = write_term(42, b"0f1e", 0, "");
        let replies = ["no term", &written].map(|text| Reply::Bytes(text.into()));
        let epochs: Vec<_> = read_terms(&replies).map(|read| read.term.epoch).collect();
        assert_eq!(epochs, [Some(Token::new(42))]);
    }
}

//! The voted family: one string key on each of several independent nodes, held by whoever has a majority.
//!
//! Every call is sent to all nodes at once and answered by a [`Reply::PerNode`]; what that comes to is decided in
//! [`tally`]. The token is proposed by the client, the same to all nodes, and a node grants only above what it
//! has granted before: any two majorities share a node, so tokens are unique and rise. Clocks only decide how
//! often a second round is needed, and when a node may forget: one that is days off does not vote.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::keys::LockKeys;
use super::script::{digest, digits, script};
use super::tally::{self, Ballot, RenewalTally, Verdict};
use super::{
    AcquireReply, Call, ChannelName, Keys, Kind, LockStatus, LockValue, Notified, ReleaseReply,
    RenewReply, WaitStrategy, record,
};
use crate::backend::{
    Capabilities, Command, Reply, RequestError, ServerError, ServerErrorKind, majority,
};
use crate::info::Holder;
use crate::options::millis_up;
use crate::owner::{Owner, Token};

script!(VOTE, "quorum/prelude.lua", "quorum/vote.lua");
script!(RENEW, "quorum/prelude.lua", "quorum/renew.lua");
script!(FILL, "quorum/prelude.lua", "quorum/repair.lua");
script!(RELEASE, "quorum/release.lua");
script!(KEEP, "single_key/release_after.lua");
script!(ADMIT, "quorum/prelude.lua", "quorum/rejoin.lua");

/// The calls of one lock of this family.
#[derive(Debug)]
pub(crate) struct QuorumLock {
    keys: LockKeys,
    votes: String,
    electorate: Arc<Electorate>,
}

impl QuorumLock {
    pub(crate) fn new(keys: LockKeys, electorate: &Arc<Electorate>) -> Self {
        Self {
            votes: keys.beside("votes"),
            electorate: electorate.clone(),
            keys,
        }
    }

    fn standing(&self) -> &[u8] {
        self.electorate.standing.as_bytes()
    }

    /// Leaves the lock to end by itself `left` from now, wherever it is ours.
    fn keep(&self, mark: &[u8], left: Duration) -> Call<ReleaseReply> {
        let args = [mark, &digits(millis_up(left)), &record::kept(mark)];
        Call::script(&KEEP, &[self.key()], &args, |replies| {
            read_release(&replies)
        })
    }

    /// The nodes' clock when the owner was made, told apart from others of the same millisecond by the
    /// owner itself; above whatever was seen before.
    fn proposal(&self, mark: &[u8]) -> u64 {
        let since = record::read(mark).since;
        let since = since.and_then(|since| since.duration_since(std::time::UNIX_EPOCH).ok());
        let since = since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        let owner = record::owner(mark).iter().take(8);
        let salt = owner.fold(0, |sum, byte| sum * 31 + u64::from(*byte)) % 1000;
        (since + salt).max(self.electorate.seen.load(Ordering::Relaxed) + 1)
    }
}

/// Every call goes to all nodes.
impl Kind for QuorumLock {
    fn keys(&self) -> &dyn Keys {
        &self.keys
    }

    fn value(&self, owner: &Owner, since_micros: u64, note: &str) -> LockValue {
        record::write(owner, since_micros, note).into()
    }

    fn acquire(&self, mark: &LockValue, lease: Duration, _look: bool) -> Call<AcquireReply> {
        let token = self.proposal(mark);
        let keys = [self.key(), self.votes.as_bytes(), self.standing()];
        let args = [mark, &digits(millis_up(lease))[..], &digits(token)];
        let (electorate, own) = (self.electorate.clone(), mark.clone());
        Call::script(&VOTE, &keys, &args, move |replies| {
            electorate.note(&replies);
            let ballots: Vec<_> = each("a vote", &replies)?.iter().map(ballot).collect();
            let verdict = tally::election(&ballots);
            Ok(match verdict {
                Verdict::Held => {
                    electorate.seen.fetch_max(token, Ordering::Relaxed);
                    let token = Token::new(token);
                    AcquireReply::Held { token }
                }
                Verdict::Busy { mark, .. } if *mark == *own => {
                    return Err(RequestError::malformed("a vote", &replies));
                }
                Verdict::Busy { mark, left } => AcquireReply::Busy {
                    holder: holder(&mark, left),
                },
                Verdict::Split { highest } => {
                    electorate.seen.fetch_max(highest, Ordering::Relaxed);
                    AcquireReply::Split
                }
                Verdict::TooFew { voting } => AcquireReply::Unusable {
                    refusal: refusal(&replies).unwrap_or_else(|| too_few(voting, ballots.len())),
                },
            })
        })
    }

    fn renew(&self, mark: &[u8], lease: Duration) -> Call<RenewReply> {
        let keys = [self.key(), self.standing()];
        let args = [mark, &digits(millis_up(lease))];
        let electorate = self.electorate.clone();
        Call::script(&RENEW, &keys, &args, move |replies| {
            electorate.note(&replies);
            match tally::hold(&numbers("a renewal", &replies)?) {
                RenewalTally::Kept { everywhere: true } => Ok(RenewReply::Renewed),
                RenewalTally::Kept { everywhere: false } => Ok(RenewReply::OnMajority),
                RenewalTally::Gone => Ok(RenewReply::NotOwner),
                RenewalTally::Unknown => {
                    Err(RequestError::Unknown("too few nodes have answered".into()))
                }
            }
        })
    }

    fn release(
        &self,
        mark: &[u8],
        keep: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        if let Some(left) = keep {
            return self.keep(mark, left);
        }
        // What is published must not tell the owner, which is a secret.
        let which = digest(&String::from_utf8_lossy(mark));
        let args = [mark, self.keys.channel().as_bytes(), which.as_bytes()];
        Call::script(&RELEASE, &[self.key()], &args, |replies| {
            read_release(&replies)
        })
    }

    fn repair(&self, mark: &[u8], left: Duration, token: Token) -> Option<Call<()>> {
        let keys = [self.key(), self.votes.as_bytes(), self.standing()];
        let left = digits(millis_up(left).max(1));
        let args = [mark, &left[..], &digits(token.as_u64())];
        Some(Call::script(&FILL, &keys, &args, |_| Ok(())))
    }

    fn holder(&self) -> Call<Option<Holder>> {
        let commands = vec![
            Command::new("GET").arg(self.key()),
            Command::new("PTTL").arg(self.key()),
        ];
        Call::new(commands, |replies| {
            let [Reply::PerNode(marks), Reply::PerNode(left)] = replies.as_slice() else {
                return Err(RequestError::malformed("GET", &replies));
            };
            let ballots = marks.iter().zip(left).map(|(mark, left)| match mark {
                Some(Reply::Bytes(mark)) => Ballot::Taken {
                    mark: mark.clone(),
                    left: left.as_ref().and_then(Reply::int).unwrap_or(0),
                },
                Some(Reply::Nil) => Ballot::Granted,
                _ => Ballot::Silent,
            });
            let ballots: Vec<_> = ballots.collect();
            match tally::election(&ballots) {
                Verdict::Held | Verdict::Split { .. } => Ok(None),
                Verdict::Busy { mark, left } => Ok(Some(holder(&mark, left))),
                Verdict::TooFew { voting } => {
                    Err(RequestError::Refused(too_few(voting, ballots.len())))
                }
            }
        })
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }
}

impl Notified for QuorumLock {
    fn channel_name(&self) -> ChannelName<'_> {
        ChannelName::sharded(self.keys.channel())
    }

    fn glance(&self) -> Call<LockStatus> {
        self.holder().map(|holder| match holder {
            None => LockStatus::Free,
            Some(holder) => LockStatus::Held {
                left: holder.lease_remaining,
            },
        })
    }
}

/// Which nodes may vote: the calls by which that is asked and granted, and what their voters share.
#[derive(Debug)]
pub(crate) struct Electorate {
    standing: String,
    /// The highest token that this client has seen, of any lock.
    seen: AtomicU64,
    /// Says that a node has refused to vote.
    barred: Notify,
}

/// What a node replies that may not vote, alone or first in a list.
const BARRED: i64 = 3;

/// Whether a node may vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeStatus {
    /// It votes, and knows of tokens up to this.
    Voting { highest: u64 },
    /// Its quarantine is over: it may be told from where on to vote.
    Ready,
    /// It was started again, and leases from before may not have ended.
    Quarantined { left: Duration },
    /// It has not answered.
    NoReply,
}

impl Electorate {
    pub(crate) fn new(standing: &str) -> Self {
        Self {
            standing: standing.to_owned(),
            seen: AtomicU64::new(0),
            barred: Notify::new(),
        }
    }

    /// Waits until a node has refused to vote.
    pub(crate) async fn barred(&self) {
        self.barred.notified().await;
    }

    /// Notes whether a node has refused to vote.
    pub(crate) fn note(&self, replies: &[Reply]) {
        let Some(Reply::PerNode(each)) = replies.first() else {
            return;
        };
        let first = |reply: &Reply| match reply {
            Reply::List(parts) => parts.first().and_then(Reply::int),
            reply => reply.int(),
        };
        if each
            .iter()
            .flatten()
            .any(|reply| first(reply) == Some(BARRED))
        {
            self.barred.notify_one();
        }
    }

    /// Asks every node whether it votes.
    pub(crate) fn survey(&self, longest: Duration) -> Call<Vec<NodeStatus>> {
        self.admit(longest, 0)
    }

    /// Lets every node vote whose quarantine of `longest` is over, above `floor`.
    pub(crate) fn admit(&self, longest: Duration, floor: u64) -> Call<Vec<NodeStatus>> {
        let args = [&digits(millis_up(longest))[..], &digits(floor)];
        Call::script(&ADMIT, &[self.standing.as_bytes()], &args, |replies| {
            let seats: Vec<_> = each("an admission", &replies)?.iter().map(seat).collect();
            match refusal(&replies) {
                Some(refusal) => Err(RequestError::Refused(refusal)),
                None => Ok(seats),
            }
        })
        .await_all_nodes()
    }
}

/// Why a node refuses for good, where one does: a wrong type, a missing right, a full memory.
fn refusal(replies: &[Reply]) -> Option<ServerError> {
    let Some(Reply::PerNode(each)) = replies.first() else {
        return None;
    };
    each.iter().flatten().find_map(|reply| match reply {
        Reply::Refused(refusal) if refusal.kind != ServerErrorKind::Temporary => {
            Some(refusal.clone())
        }
        _ => None,
    })
}

/// Too few nodes vote.
pub(crate) fn too_few(voting: usize, nodes: usize) -> ServerError {
    let needed = majority(nodes);
    ServerError {
        kind: ServerErrorKind::TooFewVote,
        message: format!("{voting} of {nodes} nodes can vote, {needed} are needed"),
    }
}

fn each<'a>(what: &str, replies: &'a [Reply]) -> Result<&'a [Option<Reply>], RequestError> {
    match replies {
        [Reply::PerNode(each), ..] => Ok(each),
        _ => Err(RequestError::malformed(what, replies)),
    }
}

fn numbers(what: &str, replies: &[Reply]) -> Result<Vec<Option<i64>>, RequestError> {
    let each = each(what, replies)?.iter();
    Ok(each.map(|reply| reply.as_ref()?.int()).collect())
}

fn ballot(reply: &Option<Reply>) -> Ballot {
    let read = || {
        let parts = reply.as_ref()?.list()?;
        let number = parts.get(1)?.int()?;
        Some(match parts.first()?.int()? {
            1 => Ballot::Granted,
            0 => match parts.get(2)? {
                Reply::Bytes(mark) => Ballot::Taken {
                    mark: mark.clone(),
                    left: number,
                },
                _ => Ballot::Silent,
            },
            2 => Ballot::Stale {
                highest: u64::try_from(number).ok()?,
            },
            _ => Ballot::Barred,
        })
    };
    read().unwrap_or(Ballot::Silent)
}

fn seat(reply: &Option<Reply>) -> NodeStatus {
    let read = || {
        let parts = reply.as_ref()?.list()?;
        let number = u64::try_from(parts.get(1)?.int()?).ok()?;
        Some(match parts.first()?.int()? {
            1 => NodeStatus::Voting { highest: number },
            2 => NodeStatus::Ready,
            _ => NodeStatus::Quarantined {
                left: Duration::from_millis(number),
            },
        })
    };
    read().unwrap_or(NodeStatus::NoReply)
}

fn read_release(replies: &[Reply]) -> Result<ReleaseReply, RequestError> {
    match tally::freed(&numbers("a release", replies)?) {
        Some(true) => Ok(ReleaseReply::Released { notified: 0 }),
        Some(false) => Ok(ReleaseReply::NotOwner),
        None => Err(RequestError::Unknown("too few nodes have answered".into())),
    }
}

fn holder(mark: &[u8], left: i64) -> Holder {
    Holder {
        lease_remaining: u64::try_from(left).ok().map(Duration::from_millis),
        ..record::read(mark)
    }
}

//! A lock on several independent nodes: one string key on each of them, held by
//! the owner that has a majority.
//!
//! Every call goes to all nodes at once and is answered by a
//! [`Reply::PerNode`]; [`tally`] decides what that means. The client proposes a
//! token, the same one to all nodes, and a node grants only tokens above those
//! it granted before. Any two majorities share a node, so tokens are unique and
//! rise. Clocks only affect how often a second round is needed, and when a node
//! may forget: a node whose clock is days off does not vote.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::call::Call;
use super::keys::{LockKeys, LockName};
use super::kind::{ChannelName, Kind, Notified, WaitStrategy};
use super::outcome::{AcquireReply, LockStatus, LockValue, ReleaseReply, RenewReply};
use super::pttl::remaining;
use super::record::{self, Description};
use super::script::{digest, digits, millis, script};
use super::single_key::release_after;
use super::tally::{self, Ballot, RenewalTally, Verdict};
use crate::backend::{
    Batch, Capabilities, NodeReply, Reply, RequestError, ServerError, ServerErrorKind, majority,
};
use crate::info::Holder;
use crate::options::millis_up;
use crate::owner::{Owner, Token};

script!(VOTE, "quorum/prelude.lua", "quorum/vote.lua");
script!(RENEW, "quorum/prelude.lua", "quorum/renew.lua");
script!(REPAIR, "quorum/prelude.lua", "quorum/repair.lua");
script!(
    RECORD_TOKEN,
    "quorum/prelude.lua",
    "quorum/record_token.lua"
);
script!(RELEASE, "quorum/release.lua");
script!(REJOIN, "quorum/prelude.lua", "quorum/rejoin.lua");

/// The calls of a lock on several independent nodes.
#[derive(Debug)]
pub(crate) struct QuorumLock {
    keys: LockKeys,
    votes: String,
    electorate: Arc<Electorate>,
}

impl QuorumLock {
    pub(crate) fn new(keys: LockKeys, electorate: &Arc<Electorate>) -> Self {
        Self {
            votes: keys.related("votes"),
            electorate: electorate.clone(),
            keys,
        }
    }

    fn voter(&self) -> &[u8] {
        self.electorate.voter.as_bytes()
    }

    /// Proposes a token: the nodes' clock when the owner was created, plus a
    /// salt that differs between owners of one millisecond. Always above every
    /// token this client has seen.
    fn propose_token(&self, value: &[u8]) -> u64 {
        let since = record::read(value).process.since;
        let since = since.and_then(|since| since.duration_since(std::time::UNIX_EPOCH).ok());
        let since = since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        let owner = record::owner(value).iter().take(8);
        // The value has milliseconds only. The salt spreads owners of one
        // millisecond over its microseconds.
        let salt = owner.fold(0, |sum, byte| sum * 31 + u64::from(*byte)) % 1000;
        (since + salt).max(self.electorate.highest_seen.load(Ordering::Relaxed) + 1)
    }
}

/// Sends every call to all nodes.
impl Kind for QuorumLock {
    fn label(&self) -> &'static str {
        "mutex"
    }

    fn lock(&self) -> &LockName {
        &self.keys.lock
    }

    fn value(&self, owner: &Owner, description: Description<'_>) -> LockValue {
        record::write(owner, description)
    }

    fn acquire(&self, value: &LockValue, lease: Duration, _want_ttl: bool) -> Call<AcquireReply> {
        let token = self.propose_token(value);
        let keys = [self.key(), self.votes.as_bytes(), self.voter()];
        let args = [value, &millis(lease)[..], &digits(token)];
        let (electorate, own) = (self.electorate.clone(), value.clone());
        Call::script(&VOTE, &keys, &args, move |replies| {
            electorate.record_refusals(&replies);
            let each = each("a vote", &replies)?;
            let ballots: Vec<_> = each.iter().map(read_ballot).collect();
            let verdict = tally::count_votes(&ballots);
            Ok(match verdict {
                Verdict::Held => {
                    // Later proposals of this client begin above it.
                    electorate.highest_seen.fetch_max(token, Ordering::Relaxed);
                    let token = Token::new(token);
                    AcquireReply::Held { token }
                }
                // A majority cannot refuse us in our own name: the replies make
                // no sense.
                Verdict::Busy { value, .. } if *value == *own => {
                    return Err(RequestError::malformed("a vote", &replies));
                }
                Verdict::Busy {
                    value,
                    remaining_ms,
                } => {
                    let holder = holder(&value, remaining_ms);
                    // A node without a reply may grant the lock, too.
                    let has_votes = |ballot| matches!(ballot, &Ballot::Granted | &Ballot::NoReply);
                    match ballots.iter().any(has_votes) {
                        true => AcquireReply::Outvoted { holder },
                        false => AcquireReply::Busy { holder },
                    }
                }
                Verdict::Split { highest } => {
                    electorate
                        .highest_seen
                        .fetch_max(highest, Ordering::Relaxed);
                    AcquireReply::Split
                }
                Verdict::TooFew { voting } => AcquireReply::Unusable {
                    refusal: refusal(&replies).unwrap_or_else(|| no_majority_votes(voting, each)),
                },
            })
        })
    }

    fn renew(&self, value: &[u8], lease: Duration) -> Call<RenewReply> {
        let keys = [self.key(), self.voter()];
        let args = [value, &millis(lease)];
        let electorate = self.electorate.clone();
        Call::script(&RENEW, &keys, &args, move |replies| {
            electorate.record_refusals(&replies);
            let each = each("a renewal", &replies)?;
            match tally::count_renewals(&numbers(each)) {
                RenewalTally::Renewed { everywhere: true } => Ok(RenewReply::Renewed),
                RenewalTally::Renewed { everywhere: false } => Ok(RenewReply::OnMajority),
                RenewalTally::NotOwner => Ok(RenewReply::NotOwner),
                RenewalTally::Unknown => Err(no_majority_replied(each)),
            }
        })
    }

    fn release(
        &self,
        value: &[u8],
        hold_for: Option<Duration>,
        _server: Capabilities,
    ) -> Call<ReleaseReply> {
        if let Some(hold_for) = hold_for {
            let command = release_after(self.key(), value, hold_for);
            return Call::new(command, |replies| read_release(&replies));
        }
        // The message must not contain the owner, which is a secret.
        let message = digest(&String::from_utf8_lossy(value));
        let args = [value, self.keys.channel().as_bytes(), message.as_bytes()];
        Call::script(&RELEASE, &[self.key()], &args, |replies| {
            read_release(&replies)
        })
    }

    fn holder(&self) -> Call<Option<Holder>> {
        let get = Batch::new("GET").arg(self.key());
        let commands = get.then("PTTL").arg(self.key());
        Call::new(commands, |replies| {
            let [Reply::PerNode(values), Reply::PerNode(pttls)] = replies.as_slice() else {
                return Err(RequestError::malformed("GET", &replies));
            };
            let ballots = values.iter().zip(pttls).map(|(value, pttl)| match value {
                Ok(Reply::Bytes(value)) => Ballot::Busy {
                    value: value.clone(),
                    remaining_ms: pttl.as_ref().ok().and_then(Reply::int).unwrap_or(0),
                },
                // Free there. If a majority says so, no owner holds the lock.
                Ok(Reply::Nil) => Ballot::Granted,
                _ => Ballot::NoReply,
            });
            let ballots: Vec<_> = ballots.collect();
            match tally::count_votes(&ballots) {
                Verdict::Held | Verdict::Split { .. } => Ok(None),
                Verdict::Busy {
                    value,
                    remaining_ms,
                } => Ok(Some(holder(&value, remaining_ms))),
                Verdict::TooFew { voting } => {
                    Err(RequestError::Refused(no_majority_votes(voting, values)))
                }
            }
        })
    }

    fn wait_strategy(&self) -> WaitStrategy<'_> {
        WaitStrategy::Notified(self)
    }

    fn record_token(&self, value: &[u8], token: Token) -> Option<Call<()>> {
        let keys = [self.key(), self.votes.as_bytes(), self.voter()];
        let args = [value, &digits(token.as_u64())[..]];
        Some(Call::script(&RECORD_TOKEN, &keys, &args, move |replies| {
            let each = each("a recorded token", &replies)?;
            let recorded = numbers(each).into_iter().filter(|reply| *reply == Some(1));
            // Any other majority has a node in common with this one, and that
            // node votes after the holder's release.
            match recorded.count() >= majority(each.len()) {
                true => Ok(()),
                false => Err(RequestError::Refused(not_recorded(token, each))),
            }
        }))
    }

    fn repair(&self, value: &[u8], remaining: Duration, token: Token) -> Option<Call<()>> {
        let keys = [self.key(), self.votes.as_bytes(), self.voter()];
        // At least one: the lease may end while the call is built.
        let remaining_ms = digits(millis_up(remaining).max(1));
        let args = [value, &remaining_ms[..], &digits(token.as_u64())];
        Some(Call::script(&REPAIR, &keys, &args, |_| Ok(())))
    }
}

impl Notified for QuorumLock {
    fn channel_name(&self) -> ChannelName<'_> {
        ChannelName::sharded(self.keys.channel())
    }

    fn poll(&self) -> Call<LockStatus> {
        self.holder().map(|holder| match holder {
            None => LockStatus::Free,
            Some(holder) => LockStatus::Held {
                remaining: holder.lease_remaining,
            },
        })
    }
}

/// The nodes of a quorum as voters: the calls that ask which of them vote and
/// let them rejoin, and the state that all locks of the quorum share.
#[derive(Debug)]
pub(crate) struct Electorate {
    voter: String,
    /// The highest token of any lock that this client has seen.
    highest_seen: AtomicU64,
    /// Notified when a node refuses to vote.
    refusals: Notify,
}

/// The reply of a node that does not vote, alone or first in a list.
const NOT_VOTING: i64 = 3;

/// Whether a node votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeStatus {
    /// The node votes, and knows of tokens up to `highest`.
    Voting { highest: u64 },
    /// The quarantine is over; the node rejoins when it is sent a floor.
    Ready {
        /// Whether the node knows that it voted before.
        voted: bool,
    },
    /// The node was restarted, and leases from before may not have ended.
    Quarantined { remaining: Duration, voted: bool },
    /// The node has not replied.
    NoReply,
}

impl NodeStatus {
    /// Returns whether the node can rejoin.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }

    /// Returns whether the node votes, or knows that it did.
    pub(crate) fn has_voted(&self) -> bool {
        match self {
            Self::Voting { .. } => true,
            Self::Ready { voted } | Self::Quarantined { voted, .. } => *voted,
            Self::NoReply => false,
        }
    }
}

impl Electorate {
    pub(crate) fn new(voter: &str) -> Self {
        Self {
            voter: voter.to_owned(),
            highest_seen: AtomicU64::new(0),
            refusals: Notify::new(),
        }
    }

    /// Waits until a node refuses to vote.
    pub(crate) async fn vote_refused(&self) {
        self.refusals.notified().await;
    }

    /// Records whether a node has refused to vote.
    pub(crate) fn record_refusals(&self, replies: &[Reply]) {
        let Some(Reply::PerNode(each)) = replies.first() else {
            return;
        };
        let code = |reply: &Reply| match reply {
            Reply::List(parts) => parts.first().and_then(Reply::int),
            reply => reply.int(),
        };
        if each
            .iter()
            .flatten()
            .any(|reply| code(reply) == Some(NOT_VOTING))
        {
            // Wakes the task that lets restarted nodes vote again.
            self.refusals.notify_one();
        }
    }

    /// Asks every node whether it votes.
    pub(crate) fn poll_nodes(&self, max_lease: Duration) -> Call<Vec<NodeStatus>> {
        self.rejoin(max_lease, 0)
    }

    /// Lets every node rejoin whose quarantine of `max_lease` is over. It then
    /// votes above `floor`.
    pub(crate) fn rejoin(&self, max_lease: Duration, floor: u64) -> Call<Vec<NodeStatus>> {
        let args = [&millis(max_lease)[..], &digits(floor)];
        Call::script(&REJOIN, &[self.voter.as_bytes()], &args, |replies| {
            let nodes = each("node statuses", &replies)?;
            let nodes: Vec<_> = nodes.iter().map(read_node).collect();
            match refusal(&replies) {
                Some(refusal) => Err(RequestError::Refused(refusal)),
                None => Ok(nodes),
            }
        })
        .await_all_nodes()
    }
}

/// Returns a node's permanent error, if one has any: a wrong type, a missing
/// permission, a full memory.
fn refusal(replies: &[Reply]) -> Option<ServerError> {
    let Some(Reply::PerNode(each)) = replies.first() else {
        return None;
    };
    each.iter().flatten().find_map(|reply| match reply {
        // A temporary error passes without the user; it counts as no reply.
        Reply::Refused(refusal) if refusal.kind != ServerErrorKind::Temporary => {
            Some(refusal.clone())
        }
        _ => None,
    })
}

/// Returns the error for a quorum in which fewer than `needed` nodes vote.
pub(crate) fn too_few(voting: usize, nodes: usize, needed: usize) -> ServerError {
    ServerError {
        kind: ServerErrorKind::NoMajority,
        message: format!("{voting} of {nodes} nodes can vote, {needed} are needed"),
    }
}

/// Returns the error for a quorum of which less than a majority votes, with
/// the first node's reason.
fn no_majority_votes(voting: usize, each: &[NodeReply]) -> ServerError {
    let mut error = too_few(voting, each.len(), majority(each.len()));
    error.message += &first_failure(each);
    error
}

/// Returns the error for a quorum of which less than a majority has replied,
/// with the first node's reason.
fn no_majority_replied(each: &[NodeReply]) -> RequestError {
    let replied = numbers(each).iter().flatten().count();
    let (nodes, needed) = (each.len(), majority(each.len()));
    let reason = first_failure(each);
    let message = format!("{replied} of {nodes} nodes have replied, {needed} are needed{reason}");
    RequestError::Unknown(message.into())
}

/// Returns the error for a token that less than a majority has recorded.
fn not_recorded(token: Token, each: &[NodeReply]) -> ServerError {
    let reason = first_failure(each);
    ServerError {
        kind: ServerErrorKind::NoMajority,
        message: format!(
            "no majority recorded token {token}: nodes do not vote, or their clocks are more \
             than a minute behind the other server's{reason}"
        ),
    }
}

/// Describes the first node without a usable reply, to follow another message.
fn first_failure(each: &[NodeReply]) -> String {
    let mut nodes = each.iter().zip(1..);
    let failure = nodes.find_map(|(reply, node)| match reply {
        Err(reason) => Some(format!("; node {node}: {reason}")),
        Ok(Reply::Refused(error)) => Some(format!("; node {node}: {error}")),
        Ok(_) => None,
    });
    failure.unwrap_or_default()
}

fn each<'a>(what: &str, replies: &'a [Reply]) -> Result<&'a [NodeReply], RequestError> {
    match replies {
        [Reply::PerNode(each), ..] => Ok(each),
        _ => Err(RequestError::malformed(what, replies)),
    }
}

fn numbers(each: &[NodeReply]) -> Vec<Option<i64>> {
    let number = |reply: &NodeReply| reply.as_ref().ok()?.int();
    each.iter().map(number).collect()
}

fn read_ballot(reply: &NodeReply) -> Ballot {
    let read = || {
        let parts = reply.as_ref().ok()?.list()?;
        let number = parts.get(1)?.int()?;
        Some(match parts.first()?.int()? {
            1 => Ballot::Granted,
            0 => match parts.get(2)? {
                Reply::Bytes(value) => Ballot::Busy {
                    value: value.clone(),
                    remaining_ms: number,
                },
                _ => Ballot::NoReply,
            },
            2 => Ballot::Stale {
                highest: u64::try_from(number).ok()?,
            },
            _ => Ballot::NotVoting,
        })
    };
    read().unwrap_or(Ballot::NoReply)
}

fn read_node(reply: &NodeReply) -> NodeStatus {
    let read = || {
        let parts = reply.as_ref().ok()?.list()?;
        let number = u64::try_from(parts.get(1)?.int()?).ok()?;
        let voted = parts.get(2).and_then(Reply::int) == Some(1);
        Some(match parts.first()?.int()? {
            1 => NodeStatus::Voting { highest: number },
            2 => NodeStatus::Ready { voted },
            _ => NodeStatus::Quarantined {
                remaining: Duration::from_millis(number),
                voted,
            },
        })
    };
    read().unwrap_or(NodeStatus::NoReply)
}

fn read_release(replies: &[Reply]) -> Result<ReleaseReply, RequestError> {
    let each = each("a release", replies)?;
    match tally::count_releases(&numbers(each)) {
        Some(true) => Ok(ReleaseReply::Released { notified: 0 }),
        Some(false) => Ok(ReleaseReply::NotOwner),
        None => Err(no_majority_replied(each)),
    }
}

fn holder(value: &[u8], remaining_ms: i64) -> Holder {
    Holder {
        lease_remaining: remaining(remaining_ms),
        ..record::read(value)
    }
}

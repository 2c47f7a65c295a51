//! Several independent servers that are asked as one.
//!
//! A request goes to all of them at once, and is answered when a majority has said the same, or all have
//! answered or are too late: one that is slow or dead delays nobody. What the answers come to is for others to
//! say; here they only stand side by side, as [`Reply::Each`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::gathering::{self, majority};
use super::lanes::Lanes;
use super::origin::Origin;
use super::reply::{Failure, Refusal, RefusalKind, Reply};
use super::subscriptions::OnLine;
use super::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Facts, Lane, Link, Listener, Slot,
    Subscription,
};
use crate::clock::Moment;
use crate::options::Acknowledgement;

/// What members are given at the first connection, at least, that are later than a majority.
const AS_LONG_AGAIN: Duration = Duration::from_millis(50);

/// See the module's documentation.
pub(crate) struct Assembly {
    members: Vec<Arc<Member>>,
    /// How long a majority is waited for that was never connected, and later on.
    first_patience: Duration,
    patience: Duration,
    /// Whether a majority was ever connected.
    met: AtomicBool,
    /// Where subscriptions live: they may be handed on to tasks of other runtimes.
    keeper: Handle,
    /// Says that a member was connected to, which may have been started anew.
    changes: Arc<Notify>,
}

struct Member {
    lanes: Arc<Lanes>,
    /// Whether somebody is connecting the callers' lane.
    dialing: AtomicBool,
    /// Why that failed when it was last tried.
    refused: Mutex<Option<Refusal>>,
}

/// Connects the callers' lane of one member; also when it is dropped half-way, another may try.
struct Dialing(Arc<Member>);

impl Dialing {
    async fn dial(self) {
        let dialed = self.0.lanes.link(Lane::Requests).await;
        let mut refused = self.0.refused.lock();
        match dialed {
            Ok(_) => *refused = None,
            Err(Failure::Refused(refusal)) => *refused = Some(refusal),
            // While a pause is kept, only the text of a refusal comes back.
            Err(failure) => {
                refused.get_or_insert_with(|| Refusal {
                    kind: RefusalKind::TooFewVote,
                    message: failure.to_string(),
                });
            }
        }
    }
}

impl Drop for Dialing {
    fn drop(&mut self) {
        self.0.dialing.store(false, Ordering::Release);
    }
}

impl Assembly {
    pub(super) fn new(
        origins: Vec<Origin>,
        first_patience: Duration,
        patience: Duration,
        keeper: &Handle,
    ) -> Self {
        let changes = Arc::new(Notify::new());
        let on_line: OnLine = {
            let changes = changes.clone();
            Arc::new(move |is_up| {
                if is_up {
                    changes.notify_one();
                }
            })
        };
        let member = |origin| {
            Arc::new(Member {
                lanes: Arc::new(Lanes::start(origin, keeper, on_line.clone())),
                dialing: AtomicBool::new(false),
                refused: Mutex::default(),
            })
        };
        Self {
            members: origins.into_iter().map(member).collect(),
            first_patience,
            patience,
            met: AtomicBool::new(false),
            keeper: keeper.clone(),
            changes,
        }
    }

    fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// The connections that are there, one per server: a second address of a server has no vote.
    fn open_links(&self, lane: Lane) -> Open {
        let link = |member: &Arc<Member>| Some(member.lanes.open_link(lane)? as Arc<dyn Link>);
        let mut links: Vec<_> = self.members.iter().map(link).collect();
        let mut known: Vec<(usize, Arc<Facts>)> = Vec::new();
        let mut twins = None;
        for (second, link) in links.iter_mut().enumerate() {
            let Some(own) = link.as_ref().map(|link| link.facts()) else {
                continue;
            };
            let is_same = |other: &Facts| own.run_id.is_some() && own.run_id == other.run_id;
            match known.iter().find(|(_, other)| is_same(other)) {
                Some((first, _)) => {
                    *link = None;
                    twins = twins.or(Some((*first, second)));
                }
                None => known.push((second, own)),
            }
        }
        Open { links, twins }
    }

    /// Whether every member is connected, or was found not to be there.
    fn is_complete(&self, lane: Lane) -> bool {
        self.members.iter().all(|member| {
            let is_open = member.lanes.open_link(lane).is_some();
            is_open || !member.dialing.load(Ordering::Acquire)
        })
    }

    /// Connects to members that are not connected, in the background.
    fn dial_missing(&self) {
        for member in &self.members {
            let missing = member.lanes.open_link(Lane::Requests).is_none();
            if missing && !member.dialing.swap(true, Ordering::AcqRel) {
                let dialing = Dialing(member.clone());
                Handle::current().spawn(dialing.dial());
            }
        }
    }

    /// Why there is no majority: what somebody can do something about first.
    fn absence(&self) -> Failure {
        let refused = self
            .members
            .iter()
            .filter_map(|member| member.refused.lock().clone());
        let mut refused: Vec<_> = refused.collect();
        refused.sort_by_key(|refusal| refusal.kind == RefusalKind::TooFewVote);
        let unknown = || Refusal {
            kind: RefusalKind::TooFewVote,
            message: "too few nodes could be connected to in time".to_owned(),
        };
        Failure::Refused(refused.into_iter().next().unwrap_or_else(unknown))
    }
}

/// The connections of one lane, in the order of the members.
struct Open {
    links: Vec<Option<Arc<dyn Link>>>,
    /// Two members that are one server.
    twins: Option<(usize, usize)>,
}

impl Open {
    /// Refuses new work where two members are one server. The keeper goes on: what is held must be kept and released.
    fn check(&self, lane: Lane) -> Result<(), Failure> {
        match (lane, self.twins) {
            (Lane::Keeper, _) | (_, None) => Ok(()),
            (Lane::Requests, Some((first, second))) => Err(Failure::Refused(Refusal {
                kind: RefusalKind::SameServer,
                message: format!(
                    "numbers {} and {} are the same server, and a quorum is of independent ones",
                    first + 1,
                    second + 1
                ),
            })),
        }
    }
}

impl Backend for Assembly {
    fn open_link(&self, lane: Lane, _slot: Slot) -> Option<Arc<dyn Link>> {
        let open = self.open_links(lane);
        let count = open.links.iter().flatten().count();
        if count < open.links.len() && lane == Lane::Requests {
            self.dial_missing();
        }
        let is_enough = count >= self.majority() && open.check(lane).is_ok();
        is_enough.then(|| Arc::new(Voices::new(open.links)) as Arc<dyn Link>)
    }

    /// Waits a little for a majority; then goes on with those that are there, be they few. Where there never
    /// was one, says why.
    fn link(&self, lane: Lane, slot: Slot) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        Box::pin(async move {
            let met = self.met.load(Ordering::Relaxed);
            let patience = if met {
                self.patience
            } else {
                self.first_patience
            };
            let start = Moment::now();
            let end = start + patience;
            // The first time the others are given as long again: two of all must not be one server.
            let mut met_by = met.then_some(start);
            loop {
                if let Some(link) = self.open_link(lane, slot) {
                    let now = Moment::now();
                    let met_by = *met_by.get_or_insert(now + now.since(start).max(AS_LONG_AGAIN));
                    if now >= met_by.min(end) || self.is_complete(lane) {
                        self.met.store(true, Ordering::Relaxed);
                        return Ok(link);
                    }
                }
                let open = self.open_links(lane);
                open.check(lane)?;
                if Moment::now() >= end && !met {
                    return Err(self.absence());
                }
                if Moment::now() >= end {
                    return Ok(Arc::new(Voices::new(open.links)) as Arc<dyn Link>);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    }

    fn acknowledged(
        &self,
        _lane: Lane,
        _slot: Slot,
        _wanted: Acknowledgement,
        _patience: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Link>, Failure>> {
        Box::pin(async { unreachable!("BUG: refused before anything is asked") })
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn changes(&self) -> Arc<Notify> {
        self.changes.clone()
    }

    /// Returns when a majority has confirmed; the others are heard when they do.
    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, Failure>> {
        let members = self.members.iter().map(|member| member.lanes.clone());
        let members = members.collect();
        Box::pin(gathering::subscribe(
            members,
            channel,
            listener,
            self.keeper.clone(),
        ))
    }
}

/// One connection to each member that has one.
struct Voices {
    links: Vec<Option<Arc<dyn Link>>>,
    facts: Arc<Facts>,
}

impl Voices {
    fn new(links: Vec<Option<Arc<dyn Link>>>) -> Self {
        let clocks = links.iter().flatten().map(|link| link.facts().server_now());
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        let facts = Arc::new(Facts {
            // The one in the middle: it is right as long as most of them are.
            server_time: clocks.get(clocks.len() / 2).copied().unwrap_or(0),
            read_at: Moment::now(),
            version: "several".to_owned(),
            run_id: None,
            capabilities: Capabilities::default(),
        });
        Self { links, facts }
    }

    async fn ask_all(&self, batch: &Batch, patience: Duration) -> Vec<Reply> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        for (number, link) in self.links.iter().enumerate() {
            if let Some(link) = link.clone() {
                let (batch, sender) = (batch.clone(), sender.clone());
                // On its own: what was asked of all must reach all, also when a majority has answered.
                Handle::current().spawn(async move {
                    let answer = link.ask(batch, patience).await;
                    let _ = sender.send((number, answer));
                });
            }
        }
        drop(sender);
        let mut said: Vec<Vec<Option<Reply>>> = vec![vec![None; self.links.len()]; batch.len()];
        while let Some((number, answer)) = answers.recv().await {
            for (command, reply) in said.iter_mut().zip(answer.unwrap_or_default()) {
                command[number] = Some(reply);
            }
            if !batch.of_all && said.iter().all(|each| is_agreed(each)) {
                break;
            }
        }
        said.into_iter().map(Reply::Each).collect()
    }
}

/// Whether more than half have said the same, as far as the first word goes.
fn is_agreed(each: &[Option<Reply>]) -> bool {
    let answered: Vec<_> = each.iter().flatten().map(gist).collect();
    let mut same = answered.iter().map(|gist| {
        let same = answered.iter().filter(|other| *other == gist);
        same.count()
    });
    same.any(|count| count >= majority(each.len()))
}

fn gist(reply: &Reply) -> &Reply {
    match reply {
        Reply::List(parts) => parts.first().unwrap_or(reply),
        _ => reply,
    }
}

impl Link for Voices {
    fn facts(&self) -> Arc<Facts> {
        self.facts.clone()
    }

    fn number(&self) -> u64 {
        let first = self.links.iter().flatten().next();
        first.map_or(0, |link| link.number())
    }

    fn ask(&self, batch: Batch, patience: Duration) -> BoxFuture<'_, Result<Vec<Reply>, Failure>> {
        Box::pin(async move { Ok(self.ask_all(&batch, patience).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_of_all_agrees_by_its_first_word() {
        let list = |first, second| Some(Reply::List(vec![Reply::Int(first), Reply::Int(second)]));
        assert!(is_agreed(&[list(1, 5), list(1, 6), None]));
        assert!(!is_agreed(&[list(1, 5), list(0, 5), None]));
        assert!(!is_agreed(&[list(1, 5), None, None]));
        assert!(is_agreed(&[
            Some(Reply::Nil),
            Some(Reply::Nil),
            Some(Reply::Int(1))
        ]));
    }
}

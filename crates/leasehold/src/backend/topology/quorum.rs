//! Several independent servers that are asked as one.
//!
//! A request goes to all of them at once, and is answered when a majority has said the same, or all have
//! answered or are too late: one that is slow or dead delays nobody. What the answers come to is for others to
//! say; here they only stand side by side, as [`Reply::PerNode`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::fan_out::{self, majority};
use super::master::Origin;
use crate::backend::connection::{NodeConnections, OnLine};
use crate::backend::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Connection, Listener, Purpose, Reply,
    RequestError, ServerError, ServerErrorKind, ServerFacts, Slot, Subscription,
};
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// What members are given at the first connection, at least, that are later than a majority.
const AS_LONG_AGAIN: Duration = Duration::from_millis(50);

/// See the module's documentation.
pub(crate) struct Assembly {
    members: Vec<Arc<Member>>,
    /// How long a majority is waited for that was never connected, and later on.
    first_timeout: Duration,
    timeout: Duration,
    /// Whether a majority was ever connected.
    met: AtomicBool,
    /// Where subscriptions live: they may be handed on to tasks of other runtimes.
    keeper: Handle,
    /// Says that a member was connected to, which may have been started anew.
    changes: Arc<Notify>,
}

struct Member {
    lanes: Arc<NodeConnections>,
    /// Whether somebody is connecting the callers' purpose.
    dialing: AtomicBool,
    /// Why that failed when it was last tried.
    refused: Mutex<Option<ServerError>>,
}

/// Connects the callers' purpose of one member; also when it is dropped half-way, another may try.
struct Dialing(Arc<Member>);

impl Dialing {
    async fn dial(self) {
        let dialed = self.0.lanes.connection(Purpose::Requests).await;
        let mut refused = self.0.refused.lock();
        match dialed {
            Ok(_) => *refused = None,
            Err(RequestError::Refused(refusal)) => *refused = Some(refusal),
            // While a pause is kept, only the text of a refusal comes back.
            Err(failure) => {
                refused.get_or_insert_with(|| ServerError {
                    kind: ServerErrorKind::TooFewVote,
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
    pub(crate) fn new(
        origins: Vec<Origin>,
        first_timeout: Duration,
        timeout: Duration,
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
                lanes: Arc::new(NodeConnections::start(origin, keeper, on_line.clone())),
                dialing: AtomicBool::new(false),
                refused: Mutex::default(),
            })
        };
        Self {
            members: origins.into_iter().map(member).collect(),
            first_timeout,
            timeout,
            met: AtomicBool::new(false),
            keeper: keeper.clone(),
            changes,
        }
    }

    fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// The connections that are there, one per server: a second address of a server has no vote.
    fn open_links(&self, purpose: Purpose) -> Open {
        let connection = |member: &Arc<Member>| {
            Some(member.lanes.open_connection(purpose)? as Arc<dyn Connection>)
        };
        let mut connections: Vec<_> = self.members.iter().map(connection).collect();
        let mut known: Vec<(usize, Arc<ServerFacts>)> = Vec::new();
        let mut twins = None;
        for (second, connection) in connections.iter_mut().enumerate() {
            let Some(own) = connection.as_ref().map(|connection| connection.facts()) else {
                continue;
            };
            let is_same = |other: &ServerFacts| own.run_id.is_some() && own.run_id == other.run_id;
            match known.iter().find(|(_, other)| is_same(other)) {
                Some((first, _)) => {
                    *connection = None;
                    twins = twins.or(Some((*first, second)));
                }
                None => known.push((second, own)),
            }
        }
        Open { connections, twins }
    }

    /// Whether every member is connected, or was found not to be there.
    fn is_complete(&self, purpose: Purpose) -> bool {
        self.members.iter().all(|member| {
            let is_open = member.lanes.open_connection(purpose).is_some();
            is_open || !member.dialing.load(Ordering::Acquire)
        })
    }

    /// Connects to members that are not connected, in the background.
    fn dial_missing(&self) {
        for member in &self.members {
            let missing = member.lanes.open_connection(Purpose::Requests).is_none();
            if missing && !member.dialing.swap(true, Ordering::AcqRel) {
                let dialing = Dialing(member.clone());
                Handle::current().spawn(dialing.dial());
            }
        }
    }

    /// Why there is no majority: what somebody can do something about first.
    fn absence(&self) -> RequestError {
        let refused = self
            .members
            .iter()
            .filter_map(|member| member.refused.lock().clone());
        let mut refused: Vec<_> = refused.collect();
        refused.sort_by_key(|refusal| refusal.kind == ServerErrorKind::TooFewVote);
        let unknown = || ServerError {
            kind: ServerErrorKind::TooFewVote,
            message: "too few nodes could be connected to in time".to_owned(),
        };
        RequestError::Refused(refused.into_iter().next().unwrap_or_else(unknown))
    }
}

/// The connections of one purpose, in the order of the members.
struct Open {
    connections: Vec<Option<Arc<dyn Connection>>>,
    /// Two members that are one server.
    twins: Option<(usize, usize)>,
}

impl Open {
    /// Refuses new work where two members are one server. The keeper goes on: what is held must be kept and released.
    fn check(&self, purpose: Purpose) -> Result<(), RequestError> {
        match (purpose, self.twins) {
            (Purpose::Keeper, _) | (_, None) => Ok(()),
            (Purpose::Requests, Some((first, second))) => Err(RequestError::Refused(ServerError {
                kind: ServerErrorKind::SameServer,
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
    fn open_connection(&self, purpose: Purpose, _slot: Slot) -> Option<Arc<dyn Connection>> {
        let open = self.open_links(purpose);
        let count = open.connections.iter().flatten().count();
        if count < open.connections.len() && purpose == Purpose::Requests {
            self.dial_missing();
        }
        let is_enough = count >= self.majority() && open.check(purpose).is_ok();
        is_enough.then(|| Arc::new(Voices::new(open.connections)) as Arc<dyn Connection>)
    }

    /// Waits a little for a majority; then goes on with those that are there, be they few. Where there never
    /// was one, says why.
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        Box::pin(async move {
            let met = self.met.load(Ordering::Relaxed);
            let timeout = if met {
                self.timeout
            } else {
                self.first_timeout
            };
            let start = BootInstant::now();
            let end = start + timeout;
            // The first time the others are given as long again: two of all must not be one server.
            let mut met_by = met.then_some(start);
            loop {
                if let Some(connection) = self.open_connection(purpose, slot) {
                    let now = BootInstant::now();
                    let met_by = *met_by.get_or_insert(now + now.since(start).max(AS_LONG_AGAIN));
                    if now >= met_by.min(end) || self.is_complete(purpose) {
                        self.met.store(true, Ordering::Relaxed);
                        return Ok(connection);
                    }
                }
                let open = self.open_links(purpose);
                open.check(purpose)?;
                if BootInstant::now() >= end && !met {
                    return Err(self.absence());
                }
                if BootInstant::now() >= end {
                    return Ok(Arc::new(Voices::new(open.connections)) as Arc<dyn Connection>);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    }

    fn acknowledged(
        &self,
        _lane: Purpose,
        _slot: Slot,
        _wanted: ReplicaAck,
        _patience: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
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
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        let members = self.members.iter().map(|member| member.lanes.clone());
        let members = members.collect();
        Box::pin(fan_out::subscribe(
            members,
            channel,
            listener,
            self.keeper.clone(),
        ))
    }
}

/// One connection to each member that has one.
struct Voices {
    connections: Vec<Option<Arc<dyn Connection>>>,
    facts: Arc<ServerFacts>,
}

impl Voices {
    fn new(connections: Vec<Option<Arc<dyn Connection>>>) -> Self {
        let clocks = connections
            .iter()
            .flatten()
            .map(|connection| connection.facts().server_now());
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        let facts = Arc::new(ServerFacts {
            // The one in the middle: it is right as long as most of them are.
            server_time: clocks.get(clocks.len() / 2).copied().unwrap_or(0),
            read_at: BootInstant::now(),
            version: "several".to_owned(),
            run_id: None,
            capabilities: Capabilities::default(),
        });
        Self { connections, facts }
    }

    async fn ask_all(&self, batch: &Batch, timeout: Duration) -> Vec<Reply> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        for (number, connection) in self.connections.iter().enumerate() {
            if let Some(connection) = connection.clone() {
                let (batch, sender) = (batch.clone(), sender.clone());
                // On its own: what was asked of all must reach all, also when a majority has answered.
                Handle::current().spawn(async move {
                    let answer = connection.ask(batch, timeout).await;
                    let _ = sender.send((number, answer));
                });
            }
        }
        drop(sender);
        let mut said: Vec<Vec<Option<Reply>>> =
            vec![vec![None; self.connections.len()]; batch.len()];
        while let Some((number, answer)) = answers.recv().await {
            for (command, reply) in said.iter_mut().zip(answer.unwrap_or_default()) {
                command[number] = Some(reply);
            }
            if !batch.await_all_nodes && said.iter().all(|each| is_agreed(each)) {
                break;
            }
        }
        said.into_iter().map(Reply::PerNode).collect()
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

impl Connection for Voices {
    fn facts(&self) -> Arc<ServerFacts> {
        self.facts.clone()
    }

    fn id(&self) -> u64 {
        let first = self.connections.iter().flatten().next();
        first.map_or(0, |connection| connection.id())
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(async move { Ok(self.ask_all(&batch, timeout).await) })
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

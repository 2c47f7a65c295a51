//! Readmission of quorum nodes after a restart.
//!
//! A restarted node does not vote until every lease from before the restart has
//! expired, and then only above the tokens that a majority of the others knows.
//! Any client readmits it; the nodes decide by their own clocks. If fewer than
//! a majority still vote, no node is readmitted.
//!
//! No guarantee depends on how often the nodes are polled. Each node compares
//! the run id in every script, and does not vote from the first instant after a
//! restart. A late poll only delays the readmission. The client therefore polls
//! after a new connection or a refused vote, and rarely otherwise.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::context::{Context, error_of};
use crate::backend::{Backend, Backoff, Purpose, RequestError, ServerError, majority};
use crate::error::Error;
use crate::protocol::{Electorate, NodeStatus, too_few};
use crate::rng;
use crate::time::BootInstant;

/// The shortest interval between polls without an event. The interval is
/// random, up to three times as long.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// A node is readmitted up to this much late, at random: one of many clients
/// does it, and the others find it done.
const JITTER: Duration = Duration::from_secs(1);

/// The pause between polls while nodes are being connected to.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Polls the nodes of a quorum and readmits those whose quarantine is over.
pub(crate) struct Readmission {
    electorate: Arc<Electorate>,
    max_lease: Duration,
    timeout: Duration,
}

impl Readmission {
    pub(crate) fn new(electorate: Arc<Electorate>, max_lease: Duration, timeout: Duration) -> Self {
        Self {
            electorate,
            max_lease,
            timeout,
        }
    }

    /// Runs until the client is dropped.
    pub(super) async fn run(self, context: Weak<Context>) {
        let backend = || context.upgrade().map(|context| context.backend.clone());
        let Some(changes) = backend().map(|backend| backend.changes()) else {
            return;
        };
        let mut backoff = Backoff::new(JITTER, IDLE_INTERVAL);
        let mut nodes = Ok(Vec::new());
        loop {
            self.wait_for_event(&changes, &nodes, &mut backoff).await;
            let Some(backend) = backend() else {
                return;
            };
            nodes = self.readmit_ready(&*backend, Purpose::Keeper).await;
            if let Err(error) = &nodes {
                tracing::debug!(%error, "polling the nodes of the quorum failed");
            }
        }
    }

    /// Waits until it is worth polling the nodes, which last replied `nodes`.
    async fn wait_for_event(
        &self,
        changes: &Notify,
        nodes: &Result<Vec<NodeStatus>, RequestError>,
        backoff: &mut Backoff,
    ) {
        let (delay, all_vote) = match nodes {
            Ok(nodes) => {
                backoff.reset();
                (poll_delay(nodes), voting(nodes) == nodes.len())
            }
            Err(_) => (backoff.pause(), false),
        };
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = changes.notified() => {
                // Other nodes connect at about the same time.
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            // A node that is known not to vote is no event.
            () = self.electorate.vote_refused(), if all_vote => {}
        }
    }

    /// Waits until a majority votes; nodes have `timeout` to be connected to.
    pub(super) async fn check(&self, context: &Context, timeout: Duration) -> Result<(), Error> {
        let poll = || self.readmit_ready(&*context.backend, Purpose::Requests);
        until_voting(poll, majority, timeout).await
    }

    /// Makes every node vote, above the clock, if no lease from before can be
    /// held. Nodes have `timeout` to be connected to.
    ///
    /// If no node has ever voted, nothing can be held. Otherwise a node that
    /// does not vote may have forgotten what it granted, and rejoins only after
    /// the quarantine, by the node's own clock. A lease that is still valid
    /// then was granted by nodes that have voted ever since.
    pub(super) async fn bootstrap(
        &self,
        context: &Context,
        timeout: Duration,
    ) -> Result<(), Error> {
        until_voting(|| self.admit_all(&*context.backend), |nodes| nodes, timeout).await
    }

    /// Lets all nodes vote that may, if all have replied.
    async fn admit_all(&self, backend: &dyn Backend) -> Result<Vec<NodeStatus>, RequestError> {
        let nodes = self.poll_nodes(backend, Purpose::Requests).await?;
        // A node that we cannot ask may have voted. And all of them must be
        // admitted together: a majority that votes makes the rest restarted
        // nodes.
        if nodes.contains(&NodeStatus::NoReply) {
            return Ok(nodes);
        }
        let quarantine = match nodes.iter().any(NodeStatus::has_voted) {
            true => self.max_lease,
            false => Duration::ZERO,
        };
        let connection = backend.connection(Purpose::Requests, 0).await?;
        let floor = connection.facts().server_now().max(highest(&nodes));
        let call = self.electorate.rejoin(quarantine, floor);
        call.send(&*connection, self.timeout).await
    }

    /// Polls the nodes, and readmits those whose quarantine is over.
    async fn readmit_ready(
        &self,
        backend: &dyn Backend,
        purpose: Purpose,
    ) -> Result<Vec<NodeStatus>, RequestError> {
        let nodes = self.poll_nodes(backend, purpose).await?;
        if !nodes.iter().any(NodeStatus::is_ready) || voting(&nodes) < majority(nodes.len()) {
            return Ok(nodes);
        }
        // Polled again: the floor is what a majority knows after the
        // quarantine, when every holder from before the restart is done.
        let nodes = self.poll_nodes(backend, purpose).await?;
        if voting(&nodes) < majority(nodes.len()) {
            return Ok(nodes);
        }
        let floor = highest(&nodes).max(1);
        let connection = backend.connection(purpose, 0).await?;
        let call = self.electorate.rejoin(self.max_lease, floor);
        let nodes = call.send(&*connection, self.timeout).await?;
        tracing::info!(voting = voting(&nodes), "a node of the quorum votes again");
        Ok(nodes)
    }

    async fn poll_nodes(
        &self,
        backend: &dyn Backend,
        purpose: Purpose,
    ) -> Result<Vec<NodeStatus>, RequestError> {
        let connection = backend.connection(purpose, 0).await?;
        let call = self.electorate.poll_nodes(self.max_lease);
        call.send(&*connection, self.timeout).await
    }
}

/// Repeats `poll` until `needed` of the nodes vote.
async fn until_voting<F>(
    poll: impl Fn() -> F,
    needed: fn(usize) -> usize,
    timeout: Duration,
) -> Result<(), Error>
where
    F: Future<Output = Result<Vec<NodeStatus>, RequestError>>,
{
    let end = BootInstant::now() + timeout;
    loop {
        let error = match poll().await {
            Ok(nodes) => {
                let needed = needed(nodes.len());
                if voting(&nodes) >= needed {
                    return Ok(());
                }
                RequestError::Refused(shortfall(&nodes, needed))
            }
            Err(error) => error,
        };
        if !error.is_transient() || BootInstant::now() >= end {
            return Err(error_of(error, ""));
        }
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

/// Returns the delay until the next poll: until the first node can be
/// readmitted, if any can.
fn poll_delay(nodes: &[NodeStatus]) -> Duration {
    let idle = IDLE_INTERVAL + IDLE_INTERVAL.mul_f64(2.0 * rng::jitter());
    let jitter = JITTER.mul_f64(rng::jitter());
    let due = nodes.iter().filter_map(|node| match node {
        NodeStatus::Ready { .. } if voting(nodes) >= majority(nodes.len()) => Some(jitter),
        NodeStatus::Quarantined { remaining, .. } => Some(*remaining + jitter),
        _ => None,
    });
    due.min().map_or(idle, |due| due.min(idle))
}

fn voting(nodes: &[NodeStatus]) -> usize {
    let votes = |node: &&NodeStatus| matches!(node, NodeStatus::Voting { .. });
    nodes.iter().filter(votes).count()
}

/// Returns the highest token that a voting node knows.
fn highest(nodes: &[NodeStatus]) -> u64 {
    let known = nodes.iter().filter_map(|node| match node {
        NodeStatus::Voting { highest } => Some(*highest),
        _ => None,
    });
    known.max().unwrap_or(0)
}

/// Returns the error for nodes of which fewer than `needed` vote.
fn shortfall(nodes: &[NodeStatus], needed: usize) -> ServerError {
    let mut error = too_few(voting(nodes), nodes.len(), needed);
    let quarantines = nodes.iter().filter_map(|node| match node {
        NodeStatus::Quarantined { remaining, .. } => Some(*remaining),
        _ => None,
    });
    let has_voted = nodes.iter().any(NodeStatus::has_voted);
    error.message += &match quarantines.max() {
        _ if nodes.contains(&NodeStatus::NoReply) => String::new(),
        _ if !has_voted => {
            "; none has ever voted, or all have lost their data: bootstrap the quorum".to_owned()
        }
        Some(longest) => format!(
            "; restarted nodes are in quarantine for another {:.0} s",
            longest.as_secs_f64().ceil()
        ),
        None => "; the quarantine of restarted nodes is over: bootstrap the quorum".to_owned(),
    };
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::scripted::Scripted;
    use crate::backend::{NodeReply, Reply};
    use crate::lease::{Keeper, Limits};
    use crate::observe::Observers;
    use crate::sync::Mutex;

    const MAX_LEASE: Duration = Duration::from_secs(60);
    const TIMEOUT: Duration = Duration::from_secs(1);
    const AT_ONCE: Duration = Duration::from_millis(1);
    const READY: NodeStatus = NodeStatus::Ready { voted: true };
    const NEW: NodeStatus = NodeStatus::Quarantined {
        remaining: MAX_LEASE,
        voted: false,
    };

    /// The arguments of each poll: the longest lease, and the floor.
    type Polls = Arc<Mutex<Vec<(u64, u64)>>>;

    fn knows(highest: u64) -> NodeStatus {
        NodeStatus::Voting { highest }
    }

    fn restarted(remaining: Duration) -> NodeStatus {
        let voted = true;
        NodeStatus::Quarantined { remaining, voted }
    }

    /// Returns nodes that send one of `replies` after the other, and the last
    /// one without end.
    fn quorum(replies: &[&[NodeStatus]]) -> (Readmission, Context, Polls) {
        let mut replies: Vec<Vec<NodeStatus>> =
            replies.iter().rev().map(|nodes| nodes.to_vec()).collect();
        let polls = Polls::default();
        let noted = polls.clone();
        let backend = Scripted::new(move |sent| {
            let args: Vec<_> = sent.batch.args(0).map(<[u8]>::to_vec).collect();
            let number = |arg: &[u8]| String::from_utf8_lossy(arg).parse().unwrap();
            noted.lock().push((number(&args[4]), number(&args[5])));
            let nodes = match replies.as_slice() {
                [last] => last.clone(),
                _ => replies.pop().unwrap(),
            };
            (
                AT_ONCE,
                Ok(vec![Reply::PerNode(nodes.iter().map(reply).collect())]),
            )
        });
        let limits = Limits {
            request: TIMEOUT,
            outage: TIMEOUT,
        };
        let context = Context::new(backend, Keeper::default(), limits, Observers::default());
        let readmission = Readmission::new(Arc::new(Electorate::new("voter")), MAX_LEASE, TIMEOUT);
        (readmission, context, polls)
    }

    fn reply(node: &NodeStatus) -> NodeReply {
        let (status, number) = match node {
            NodeStatus::Voting { highest } => (1, i64::try_from(*highest).unwrap()),
            NodeStatus::Ready { .. } => (2, 0),
            NodeStatus::Quarantined { remaining, .. } => {
                (0, i64::try_from(remaining.as_millis()).unwrap())
            }
            NodeStatus::NoReply => return Err("no reply".into()),
        };
        let numbers = [status, number, i64::from(node.has_voted())];
        Ok(Reply::List(numbers.map(Reply::Int).to_vec()))
    }

    fn floors(polls: &Polls) -> Vec<u64> {
        polls.lock().iter().map(|(_, floor)| *floor).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn readmitted_node_votes_above_majority_floor() {
        let (readmission, context, polls) = quorum(&[
            &[knows(10), knows(20), READY],
            &[knows(30), knows(25), READY],
            &[knows(30), knows(25), knows(30)],
        ]);
        readmission.check(&context, TIMEOUT).await.unwrap();
        let longest = u64::try_from(MAX_LEASE.as_millis()).unwrap();
        assert_eq!(*polls.lock(), [(longest, 0), (longest, 0), (longest, 30)]);
    }

    #[tokio::test(start_paused = true)]
    async fn readmission_without_tokens_uses_floor_one() {
        let (readmission, context, polls) = quorum(&[&[knows(0), knows(0), READY]]);
        readmission.check(&context, TIMEOUT).await.unwrap();
        assert_eq!(floors(&polls), [0, 0, 1], "a floor of 0 only polls");
    }

    #[tokio::test(start_paused = true)]
    async fn last_of_five_nodes_is_readmitted() {
        let one = knows(1);
        let (readmission, context, polls) = quorum(&[&[one, one, one, one, READY]]);
        readmission.check(&context, TIMEOUT).await.unwrap();
        assert_eq!(floors(&polls), [0, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn minority_readmits_no_node() {
        let some: [&[&[NodeStatus]]; 3] = [
            &[&[knows(10), READY, READY]],
            &[&[knows(10), READY, NodeStatus::NoReply]],
            // The second voting node disappears before the second poll.
            &[
                &[knows(10), knows(20), READY],
                &[knows(10), NodeStatus::NoReply, READY],
            ],
        ];
        for replies in some {
            let (readmission, context, polls) = quorum(replies);
            let start = BootInstant::now();
            let checked = readmission.check(&context, TIMEOUT).await;
            assert!(matches!(checked, Err(Error::NoQuorum(_))), "{checked:?}");
            assert!(BootInstant::now().since(start) >= TIMEOUT);
            assert!(floors(&polls).iter().all(|floor| *floor == 0), "{polls:?}");
        }
    }

    #[test]
    fn poll_delay_ends_when_a_node_can_be_readmitted() {
        let remaining = Duration::from_secs(5);
        let quarantined = restarted(remaining);
        for _ in 0..100 {
            let calm = [
                &[knows(1), knows(1)][..],
                &[knows(1), READY, NodeStatus::NoReply],
            ];
            for nodes in calm {
                assert!(
                    (IDLE_INTERVAL..=IDLE_INTERVAL * 3).contains(&poll_delay(nodes)),
                    "{nodes:?}"
                );
            }
            assert!(poll_delay(&[knows(1), knows(1), READY]) <= JITTER);
            let due = poll_delay(&[knows(1), knows(1), quarantined]);
            assert!((remaining..=remaining + JITTER).contains(&due), "{due:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_vote_triggers_a_poll() {
        let barred = vec![Reply::PerNode(vec![Ok(Reply::List(vec![Reply::Int(3)]))])];
        let (readmission, context, polls) = quorum(&[&[knows(1), knows(1), knows(1)]]);
        let (context, electorate) = (Arc::new(context), readmission.electorate.clone());
        let watching = tokio::spawn(readmission.run(Arc::downgrade(&context)));
        tokio::time::sleep(IDLE_INTERVAL * 3 + AT_ONCE * 2).await;
        let calm = polls.lock().len();
        assert!((1..=3).contains(&calm), "{calm}");
        electorate.record_refusals(&barred);
        tokio::time::sleep(AT_ONCE * 2).await;
        assert_eq!(polls.lock().len(), calm + 1);
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn quarantined_node_is_not_readmitted() {
        let remaining = Duration::from_secs(9);
        let (readmission, context, polls) =
            quorum(&[&[knows(10), knows(20), restarted(remaining)]]);
        readmission.check(&context, TIMEOUT).await.unwrap();
        assert_eq!(floors(&polls), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn bootstrap_needs_every_node() {
        let (readmission, context, polls) = quorum(&[&[knows(1), knows(1), NodeStatus::NoReply]]);
        let start = BootInstant::now();
        let bootstrapped = readmission.bootstrap(&context, TIMEOUT).await;
        let Err(Error::NoQuorum(cause)) = bootstrapped else {
            panic!("{bootstrapped:?}");
        };
        let expected = "2 of 3 nodes can vote, 3 are needed";
        assert_eq!(cause.to_string(), expected);
        let took = BootInstant::now().since(start);
        assert!((TIMEOUT..TIMEOUT * 2).contains(&took), "{took:?}");
        assert_eq!(floors(&polls), vec![0; polls.lock().len()], "only polls");

        let (readmission, context, _) = quorum(&[
            &[knows(1), knows(1), NodeStatus::NoReply],
            &[knows(1), knows(1), knows(1)],
        ]);
        readmission.bootstrap(&context, TIMEOUT).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn bootstrap_of_new_nodes_skips_quarantine() {
        let (readmission, context, polls) = quorum(&[&[NEW, NEW, NEW], &[knows(1); 3]]);
        readmission.bootstrap(&context, TIMEOUT).await.unwrap();
        let quarantines: Vec<_> = polls.lock().iter().map(|(longest, _)| *longest).collect();
        assert_eq!(quarantines, [60_000, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn bootstrap_keeps_quarantine_after_a_vote() {
        for voted in [knows(10), READY, restarted(Duration::from_secs(9))] {
            let (readmission, context, polls) = quorum(&[&[voted, NEW, NEW]]);
            let bootstrapped = readmission.bootstrap(&context, TIMEOUT).await;
            let Err(Error::NoQuorum(cause)) = bootstrapped else {
                panic!("{bootstrapped:?}");
            };
            let text = cause.to_string();
            assert!(text.contains("in quarantine for another 60 s"), "{text}");
            let longest = u64::try_from(MAX_LEASE.as_millis()).unwrap();
            assert!(polls.lock().iter().all(|(lease, _)| *lease == longest));
        }
    }
}

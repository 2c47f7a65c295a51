//! Letting nodes vote again that were started anew: after every lease from before has ended, and not below
//! the tokens that a majority of the others knows of.
//!
//! Any client does it, the first that comes; the nodes decide by their own clocks. Where fewer than a majority
//! still vote, nobody knows enough, and nobody is let in.
//!
//! No promise depends on how often the nodes are asked: each of them compares its run id in every step, and does not
//! vote from the first moment after a restart. Asking late only makes a node vote again later. So they are asked when there
//! is event, which is a new connection or a vote that a node refused, and now and then.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Engine, error_of};
use crate::backend::{Backend, Backoff, Purpose, RequestError, majority};
use crate::error::Error;
use crate::protocol::{Electorate, NodeStatus, too_few};
use crate::rng;
use crate::time::BootInstant;

/// How often the nodes are asked where there is no event: from this to three times as long, at random.
const CALM: Duration = Duration::from_secs(10);

/// Up to this much later than a node can be let in, at random: one of many clients does it, and the others find it done.
const JITTER: Duration = Duration::from_secs(1);

/// Between two questions to nodes that are just being connected to.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks the nodes who votes, and lets in who may.
pub(crate) struct Admission {
    electorate: Arc<Electorate>,
    longest: Duration,
    timeout: Duration,
}

impl Admission {
    pub(crate) fn new(electorate: Arc<Electorate>, longest: Duration, timeout: Duration) -> Self {
        Self {
            electorate,
            longest,
            timeout,
        }
    }

    /// Goes on until the engine is gone.
    pub(crate) async fn watch(self, engine: Weak<Engine>) {
        let backend = || engine.upgrade().map(|engine| engine.backend.clone());
        let Some(changes) = backend().map(|backend| backend.changes()) else {
            return;
        };
        let mut pauses = Backoff::new(JITTER, CALM);
        let mut seats = Ok(Vec::new());
        loop {
            self.until_news(&changes, &seats, &mut pauses).await;
            let Some(backend) = backend() else {
                return;
            };
            seats = self.look(&*backend, Purpose::Keeper).await;
            if let Err(failure) = &seats {
                tracing::debug!(%failure, "nodes could not be asked who votes");
            }
        }
    }

    /// Waits until it is worth asking the nodes, which last said `seats`.
    async fn until_news(
        &self,
        changes: &Notify,
        seats: &Result<Vec<NodeStatus>, RequestError>,
        pauses: &mut Backoff,
    ) {
        let (pause, all_vote) = match seats {
            Ok(seats) => {
                pauses.reset();
                (pause(seats), voting(seats) == seats.len())
            }
            Err(_) => (pauses.pause(), false),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changes.notified() => {
                // Others are connected to at about the same time.
                tokio::time::sleep(PAUSE).await;
            }
            // That one of them does not vote is no event where it is known.
            () = self.electorate.vote_refused(), if all_vote => {}
        }
    }

    /// Makes sure that a majority votes; nodes have `limit` to be connected to.
    pub(crate) async fn check(&self, engine: &Engine, limit: Duration) -> Result<(), Error> {
        let look = || self.look(&*engine.backend, Purpose::Requests);
        until(look, majority, limit).await
    }

    /// Declares that nothing from before matters: every node votes from now on, above its clock. Nodes have
    /// `limit` to be connected to.
    pub(crate) async fn found(&self, engine: &Engine, limit: Duration) -> Result<(), Error> {
        let admit = || async {
            let connection = engine.backend.connection(Purpose::Requests, 0).await?;
            let floor = connection.facts().server_now();
            let admitting = self.electorate.rejoin(Duration::ZERO, floor);
            admitting.send(&*connection, self.timeout).await
        };
        until(admit, |nodes| nodes, limit).await
    }

    async fn look(
        &self,
        backend: &dyn Backend,
        purpose: Purpose,
    ) -> Result<Vec<NodeStatus>, RequestError> {
        let seats = self.survey(backend, purpose).await?;
        if !seats.contains(&NodeStatus::Ready) || voting(&seats) < majority(seats.len()) {
            return Ok(seats);
        }
        // Asked again: what counts is what a majority knows after the quarantine was over, when all who
        // were granted something before the node forgot it are done.
        let seats = self.survey(backend, purpose).await?;
        if voting(&seats) < majority(seats.len()) {
            return Ok(seats);
        }
        let highest = seats.iter().filter_map(|seat| match seat {
            NodeStatus::Voting { highest } => Some(*highest),
            _ => None,
        });
        let floor = highest.max().unwrap_or(0).max(1);
        let connection = backend.connection(purpose, 0).await?;
        let admitting = self.electorate.rejoin(self.longest, floor);
        let admitted = admitting.send(&*connection, self.timeout).await?;
        tracing::info!(votes = voting(&admitted), "a node votes again");
        Ok(admitted)
    }

    async fn survey(
        &self,
        backend: &dyn Backend,
        purpose: Purpose,
    ) -> Result<Vec<NodeStatus>, RequestError> {
        let connection = backend.connection(purpose, 0).await?;
        self.electorate
            .poll_nodes(self.longest)
            .send(&*connection, self.timeout)
            .await
    }
}

/// Repeats `ask` until as many vote as are `needed` of so many.
async fn until<F>(
    ask: impl Fn() -> F,
    needed: fn(usize) -> usize,
    limit: Duration,
) -> Result<(), Error>
where
    F: Future<Output = Result<Vec<NodeStatus>, RequestError>>,
{
    let end = BootInstant::now() + limit;
    loop {
        let failure = match ask().await {
            Ok(seats) if voting(&seats) >= needed(seats.len()) => return Ok(()),
            Ok(seats) => RequestError::Refused(too_few(voting(&seats), seats.len())),
            Err(failure) => failure,
        };
        if !failure.is_transient() || BootInstant::now() >= end {
            return Err(error_of(failure, ""));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// How long the nodes need not be asked that have said this: until the first of them can be let in, where they can be.
fn pause(seats: &[NodeStatus]) -> Duration {
    let calm = CALM + CALM.mul_f64(2.0 * rng::next_f64());
    let jitter = JITTER.mul_f64(rng::next_f64());
    let due = seats.iter().filter_map(|seat| match seat {
        NodeStatus::Ready if voting(seats) >= majority(seats.len()) => Some(jitter),
        NodeStatus::Quarantined { remaining } => Some(*remaining + jitter),
        _ => None,
    });
    due.min().map_or(calm, |due| due.min(calm))
}

fn voting(seats: &[NodeStatus]) -> usize {
    let votes = |seat: &&NodeStatus| matches!(seat, NodeStatus::Voting { .. });
    seats.iter().filter(votes).count()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::backend::Reply;
    use crate::backend::scripted::Scripted;
    use crate::lease::{Keeper, Limits};

    const LONGEST: Duration = Duration::from_secs(60);
    const LIMIT: Duration = Duration::from_secs(1);
    const AT_ONCE: Duration = Duration::from_millis(1);
    const READY: NodeStatus = NodeStatus::Ready;

    /// What the nodes were asked: the longest lease, and the floor.
    type Asked = Arc<Mutex<Vec<(u64, u64)>>>;

    fn knows(highest: u64) -> NodeStatus {
        NodeStatus::Voting { highest }
    }

    /// Nodes that say one of `answers` after the other, and the last one for ever.
    fn nodes(answers: &[&[NodeStatus]]) -> (Admission, Engine, Asked) {
        let mut answers: Vec<Vec<NodeStatus>> =
            answers.iter().rev().map(|seats| seats.to_vec()).collect();
        let asked = Asked::default();
        let noted = asked.clone();
        let backend = Scripted::new(move |sent| {
            let args: Vec<_> = sent.batch.args(0).map(<[u8]>::to_vec).collect();
            let number = |arg: &[u8]| String::from_utf8_lossy(arg).parse().unwrap();
            noted.lock().push((number(&args[4]), number(&args[5])));
            let seats = match answers.as_slice() {
                [last] => last.clone(),
                _ => answers.pop().unwrap(),
            };
            (
                AT_ONCE,
                Ok(vec![Reply::PerNode(seats.iter().map(reply).collect())]),
            )
        });
        let limits = Limits {
            request: LIMIT,
            outage: LIMIT,
        };
        let engine = Engine::new(backend, Keeper::default(), limits);
        let admission = Admission::new(Arc::new(Electorate::new("standing")), LONGEST, LIMIT);
        (admission, engine, asked)
    }

    fn reply(seat: &NodeStatus) -> Option<Reply> {
        let (answer, number) = match seat {
            NodeStatus::Voting { highest } => (1, i64::try_from(*highest).unwrap()),
            NodeStatus::Ready => (2, 0),
            NodeStatus::Quarantined { remaining } => {
                (0, i64::try_from(remaining.as_millis()).unwrap())
            }
            NodeStatus::NoReply => return None,
        };
        Some(Reply::List(vec![Reply::Int(answer), Reply::Int(number)]))
    }

    fn floors(asked: &Asked) -> Vec<u64> {
        asked.lock().iter().map(|(_, floor)| *floor).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_forgot_votes_above_what_a_majority_knows_after_its_quarantine() {
        let (admission, engine, asked) = nodes(&[
            &[knows(10), knows(20), READY],
            &[knows(30), knows(25), READY],
            &[knows(30), knows(25), knows(30)],
        ]);
        admission.check(&engine, LIMIT).await.unwrap();
        let longest = u64::try_from(LONGEST.as_millis()).unwrap();
        assert_eq!(*asked.lock(), [(longest, 0), (longest, 0), (longest, 30)]);
    }

    #[tokio::test(start_paused = true)]
    async fn where_no_token_is_known_the_first_is_above_nothing() {
        let (admission, engine, asked) = nodes(&[&[knows(0), knows(0), READY]]);
        admission.check(&engine, LIMIT).await.unwrap();
        assert_eq!(floors(&asked), [0, 0, 1], "with 0 it would only be asked");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_of_five_is_let_in_too() {
        let one = knows(1);
        let (admission, engine, asked) = nodes(&[&[one, one, one, one, READY]]);
        admission.check(&engine, LIMIT).await.unwrap();
        assert_eq!(floors(&asked), [0, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_let_in_by_less_than_a_majority() {
        let some: [&[&[NodeStatus]]; 3] = [
            &[&[knows(10), READY, READY]],
            &[&[knows(10), READY, NodeStatus::NoReply]],
            // The second of the two who knew has gone before it was asked again.
            &[
                &[knows(10), knows(20), READY],
                &[knows(10), NodeStatus::NoReply, READY],
            ],
        ];
        for answers in some {
            let (admission, engine, asked) = nodes(answers);
            let start = BootInstant::now();
            let checked = admission.check(&engine, LIMIT).await;
            assert!(matches!(checked, Err(Error::NoQuorum(_))), "{checked:?}");
            assert!(BootInstant::now().since(start) >= LIMIT);
            assert!(floors(&asked).iter().all(|floor| *floor == 0), "{asked:?}");
        }
    }

    #[test]
    fn nodes_are_asked_when_one_can_be_let_in() {
        let left = Duration::from_secs(5);
        let quarantined = NodeStatus::Quarantined { remaining: left };
        for _ in 0..100 {
            let calm = [
                &[knows(1), knows(1)][..],
                &[knows(1), READY, NodeStatus::NoReply],
            ];
            for seats in calm {
                assert!((CALM..=CALM * 3).contains(&pause(seats)), "{seats:?}");
            }
            assert!(pause(&[knows(1), knows(1), READY]) <= JITTER);
            let due = pause(&[knows(1), knows(1), quarantined]);
            assert!((left..=left + JITTER).contains(&due), "{due:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn vote_that_is_refused_is_a_reason_to_ask() {
        let barred = vec![Reply::PerNode(vec![Some(Reply::List(vec![Reply::Int(3)]))])];
        let (admission, engine, asked) = nodes(&[&[knows(1), knows(1), knows(1)]]);
        let (engine, electorate) = (Arc::new(engine), admission.electorate.clone());
        let watching = tokio::spawn(admission.watch(Arc::downgrade(&engine)));
        tokio::time::sleep(CALM * 3 + AT_ONCE * 2).await;
        let calm = asked.lock().len();
        assert!((1..=3).contains(&calm), "{calm}");
        electorate.record_refusals(&barred);
        tokio::time::sleep(AT_ONCE * 2).await;
        assert_eq!(asked.lock().len(), calm + 1);
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn one_in_quarantine_is_left_alone() {
        let left = Duration::from_secs(9);
        let (admission, engine, asked) = nodes(&[&[
            knows(10),
            knows(20),
            NodeStatus::Quarantined { remaining: left },
        ]]);
        admission.check(&engine, LIMIT).await.unwrap();
        assert_eq!(floors(&asked), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quorum_is_founded_by_all_of_it_or_not_at_all() {
        let (admission, engine, asked) = nodes(&[&[knows(1), knows(1), NodeStatus::NoReply]]);
        let start = BootInstant::now();
        let founded = admission.found(&engine, LIMIT).await;
        assert!(matches!(founded, Err(Error::NoQuorum(_))), "{founded:?}");
        let took = BootInstant::now().since(start);
        assert!((LIMIT..LIMIT * 2).contains(&took), "{took:?}");
        assert!(asked.lock().iter().all(|(longest, _)| *longest == 0));

        let (admission, engine, _) = nodes(&[
            &[knows(1), knows(1), NodeStatus::NoReply],
            &[knows(1), knows(1), knows(1)],
        ]);
        admission.found(&engine, LIMIT).await.unwrap();
    }
}

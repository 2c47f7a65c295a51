//! Letting nodes vote again that were started anew: after every lease from before has ended, and not below
//! the tokens that a majority of the others knows of.
//!
//! Any client does it, whoever comes first; the nodes decide by their own clocks. Where fewer than a majority
//! still vote, nobody knows enough, and nobody is let in.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Engine, error_of};
use crate::backend::{Backend, Failure, Lane, majority};
use crate::clock::Moment;
use crate::error::Error;
use crate::protocol::{Roll, Seat, too_few};

/// How often the nodes are asked.
const LOOK: Duration = Duration::from_secs(1);

/// Between two questions to nodes that are just being connected to.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks the nodes who votes, and lets in who may.
pub(crate) struct Admission {
    roll: Arc<Roll>,
    longest: Duration,
    patience: Duration,
}

impl Admission {
    pub(crate) fn new(roll: Arc<Roll>, longest: Duration, patience: Duration) -> Self {
        Self {
            roll,
            longest,
            patience,
        }
    }

    /// Goes on until the engine is gone.
    pub(crate) async fn watch(self, engine: Weak<Engine>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(backend) = engine.upgrade().map(|engine| engine.backend.clone()) else {
                return;
            };
            if let Err(failure) = self.look(&*backend, Lane::Keeper).await {
                tracing::debug!(%failure, "nodes could not be asked who votes");
            }
        }
    }

    /// Makes sure that a majority votes; nodes have `limit` to be connected to.
    pub(crate) async fn check(&self, engine: &Engine, limit: Duration) -> Result<(), Error> {
        let look = || self.look(&*engine.backend, Lane::Requests);
        until(look, majority, limit).await
    }

    /// Declares that nothing from before matters: every node votes from now on, above its clock. Nodes have
    /// `limit` to be connected to.
    pub(crate) async fn found(&self, engine: &Engine, limit: Duration) -> Result<(), Error> {
        let admit = || async {
            let link = engine.backend.link(Lane::Requests, 0).await?;
            let floor = link.facts().server_now();
            let admitting = self.roll.admit(Duration::ZERO, floor);
            admitting.send(&*link, self.patience).await
        };
        until(admit, |nodes| nodes, limit).await
    }

    async fn look(&self, backend: &dyn Backend, lane: Lane) -> Result<Vec<Seat>, Failure> {
        let seats = self.survey(backend, lane).await?;
        if !seats.contains(&Seat::Ready) || voting(&seats) < majority(seats.len()) {
            return Ok(seats);
        }
        // Asked again: what counts is what a majority knows after the quarantine was over, when all who
        // were granted something before the node forgot it are done.
        let seats = self.survey(backend, lane).await?;
        if voting(&seats) < majority(seats.len()) {
            return Ok(seats);
        }
        let highest = seats.iter().filter_map(|seat| match seat {
            Seat::Voting { highest } => Some(*highest),
            _ => None,
        });
        let floor = highest.max().unwrap_or(0).max(1);
        let link = backend.link(lane, 0).await?;
        let admitting = self.roll.admit(self.longest, floor);
        let admitted = admitting.send(&*link, self.patience).await?;
        tracing::info!(votes = voting(&admitted), "a node votes again");
        Ok(admitted)
    }

    async fn survey(&self, backend: &dyn Backend, lane: Lane) -> Result<Vec<Seat>, Failure> {
        let link = backend.link(lane, 0).await?;
        self.roll
            .survey(self.longest)
            .send(&*link, self.patience)
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
    F: Future<Output = Result<Vec<Seat>, Failure>>,
{
    let end = Moment::now() + limit;
    loop {
        let failure = match ask().await {
            Ok(seats) if voting(&seats) >= needed(seats.len()) => return Ok(()),
            Ok(seats) => Failure::Refused(too_few(voting(&seats), seats.len())),
            Err(failure) => failure,
        };
        if !failure.is_passing() || Moment::now() >= end {
            return Err(error_of(failure, ""));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn voting(seats: &[Seat]) -> usize {
    let votes = |seat: &&Seat| matches!(seat, Seat::Voting { .. });
    seats.iter().filter(votes).count()
}

//! Waiting for a lock: one task per process and lock talks to the server, the others stand in line.
//!
//! The task whose turn it is listens for a release and, behind that, looks at growing distances
//! whether it missed one (invariant 5). Its looks travel on the connection that carries the
//! subscription, so a connection that fell silent is noticed by them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

use super::acquire::Log;
use super::{Engine, error_of};
use crate::backend::{Failure, Lane, Listener, News, Slot, Subscription};
use crate::clock::Moment;
use crate::error::Error;
use crate::holder::Holder;
use crate::protocol::{Glance, Hints};

/// A lost message costs at most this.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// While nothing happens, looks are at least this far apart: two commands a second.
const SHORTEST_LOOK: Duration = Duration::from_millis(550);

/// All locks that tasks of this process wait for.
#[derive(Default)]
pub(super) struct WaitingRoom {
    gates: Mutex<HashMap<Vec<u8>, Queue>>,
}

struct Queue {
    gate: Arc<Gate>,
    /// How many tasks have a place here; the queue is removed with the last.
    places: usize,
}

/// Where the tasks of this process that want one lock stand in line, first come first served.
struct Gate {
    /// Held by the task that talks to the server; what it has passes on with the turn.
    turn: tokio::sync::Mutex<Handed>,
    wake: Arc<Wake>,
    /// Who held the lock when the task whose turn it is last tried, and when that was.
    seen: Mutex<Option<(Moment, Seen)>>,
}

/// What one task leaves to the next.
#[derive(Default)]
struct Handed {
    subscription: Option<Subscription>,
    /// What the place in the server's line goes by, of one who gave up without being served.
    ticket: Option<u64>,
}

/// What the task whose turn it is last saw of the lock.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) holder: Holder,
    /// How many are served first, in a line.
    pub(super) ahead: Option<u64>,
}

/// Set by the connection's task, awaited by the task whose turn it is.
#[derive(Default)]
struct Wake(Notify);

impl Listener for Wake {
    fn heard(&self, _news: News<'_>) {
        // A message is only a hint: its content is not looked at.
        self.0.notify_one();
    }
}

impl WaitingRoom {
    pub(super) fn is_waited_for(&self, gate: &[u8]) -> bool {
        self.gates.lock().contains_key(gate)
    }

    /// Gets in line at `gate`.
    pub(super) fn enter(&self, gate: &[u8]) -> Place<'_> {
        let mut gates = self.gates.lock();
        let queue = gates.entry(gate.to_vec()).or_insert_with(|| Queue {
            gate: Arc::new(Gate {
                turn: tokio::sync::Mutex::default(),
                wake: Arc::default(),
                seen: Mutex::default(),
            }),
            places: 0,
        });
        queue.places += 1;
        Place {
            room: self,
            name: gate.to_vec(),
            gate: queue.gate.clone(),
        }
    }

    /// How the lock stood when somebody of this process last tried.
    pub(super) fn last_seen(&self, gate: &[u8]) -> Option<Seen> {
        let gate = self.gates.lock().get(gate)?.gate.clone();
        let (when, mut seen) = gate.seen.lock().clone()?;
        let passed = Moment::now().since(when);
        let left = seen.holder.lease_left;
        seen.holder.lease_left = left.map(|left| left.saturating_sub(passed));
        Some(seen)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.gates.lock().is_empty()
    }
}

/// A place in line; left when dropped.
pub(super) struct Place<'a> {
    room: &'a WaitingRoom,
    name: Vec<u8>,
    gate: Arc<Gate>,
}

impl Place<'_> {
    /// Waits for this task's turn to talk to the server.
    pub(super) async fn turn(&self) -> Turn<'_> {
        Turn {
            gate: &self.gate,
            handed: self.gate.turn.lock().await,
            looked: None,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut gates = self.room.gates.lock();
        if let Some(queue) = gates.get_mut(&self.name) {
            queue.places -= 1;
            if queue.places == 0 {
                gates.remove(&self.name);
            }
        }
    }
}

/// The right to talk to the server for all who wait here.
pub(super) struct Turn<'a> {
    gate: &'a Gate,
    handed: MutexGuard<'a, Handed>,
    /// When this turn last looked.
    looked: Option<Moment>,
}

impl Turn<'_> {
    /// Makes sure that releases are heard; where that takes too long, goes on without for now.
    pub(super) async fn listen(
        &mut self,
        engine: &Engine,
        hints: &dyn Hints,
        slot: Slot,
    ) -> Result<(), Failure> {
        if self.handed.subscription.is_none() {
            let wake = self.gate.wake.clone();
            let subscribing = engine
                .backend
                .subscribe(hints.announced().channel(), slot, wake);
            if let Ok(subscribed) = tokio::time::timeout(engine.limits.request, subscribing).await {
                self.handed.subscription = Some(subscribed?);
            }
        }
        Ok(())
    }

    /// The place in the server's line that this process has, or had.
    pub(super) fn ticket(&mut self) -> &mut Option<u64> {
        &mut self.handed.ticket
    }

    /// Notes how the lock stands, for those who wait behind this task.
    pub(super) fn saw(&self, holder: &Holder, ahead: Option<u64>) {
        let holder = holder.clone();
        *self.gate.seen.lock() = Some((Moment::now(), Seen { holder, ahead }));
    }

    /// Waits for a wake-up, or until a look says that the lock is free. `left` is how long the holder
    /// has it at most unless it renews.
    pub(super) async fn until_worth_trying(
        &mut self,
        engine: &Engine,
        hints: &dyn Hints,
        slot: Slot,
        mut left: Option<Duration>,
    ) {
        loop {
            let pause = self.next_look(left);
            tokio::select! {
                biased;
                () = self.gate.wake.0.notified() => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.looked = Some(Moment::now());
            match glance(engine, hints, slot).await {
                Ok(Glance::Held { left: still }) => left = still,
                Ok(Glance::Free) | Err(_) => return,
            }
        }
    }

    /// When the holder's lease can have ended, but within a second, and not much more often than every
    /// half second.
    fn next_look(&self, left: Option<Duration>) -> Duration {
        let wanted = left.map_or(LONGEST_LOOK, |left| left + Duration::from_millis(1));
        let since_last = self
            .looked
            .map_or(SHORTEST_LOOK, |looked| Moment::now().since(looked));
        wanted
            .min(LONGEST_LOOK)
            .max(SHORTEST_LOOK.saturating_sub(since_last))
    }
}

impl Engine {
    /// Waits until a look says that there is nothing to wait for any more.
    pub(crate) async fn watch(
        &self,
        hints: &dyn Hints,
        slot: Slot,
        name: &str,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let start = Moment::now();
        let mut log = Log::new(self.limits.outage);
        let watching = async {
            tokio::select! {
                biased;
                () = self.closed() => Err(Failure::Closed),
                watched = self.watch_without_end(hints, slot, &mut log) => watched,
            }
        };
        let outcome = match limit {
            Some(limit) => tokio::time::timeout(limit, watching).await.ok(),
            None => Some(watching.await),
        };
        match outcome {
            Some(outcome) => outcome.map_err(|failure| error_of(failure, name)),
            None => Err(log.into_error(name, Moment::now().since(start))),
        }
    }

    async fn watch_without_end(
        &self,
        hints: &dyn Hints,
        slot: Slot,
        log: &mut Log,
    ) -> Result<(), Failure> {
        let place = self.room.enter(hints.gate());
        let mut turn = place.turn().await;
        loop {
            let seen = match turn.listen(self, hints, slot).await {
                Ok(()) => glance(self, hints, slot).await,
                Err(failure) => Err(failure),
            };
            match seen {
                Ok(Glance::Free) => return Ok(()),
                Ok(Glance::Held { left }) => {
                    log.fine();
                    turn.until_worth_trying(self, hints, slot, left).await;
                }
                Err(failure) => {
                    log.failed(failure)?;
                    tokio::time::sleep(log.backoff.pause()).await;
                }
            }
        }
    }
}

async fn glance(engine: &Engine, hints: &dyn Hints, slot: Slot) -> Result<Glance, Failure> {
    let link = engine.backend.link(Lane::Keeper, slot).await?;
    hints.glance().send(&*link, engine.limits.request).await
}

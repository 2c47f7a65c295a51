//! Waiting for a lock: one task per process and lock talks to the server, the others stand in line.
//!
//! The task whose turn it is listens for a release and, behind that, looks at growing distances
//! whether it missed one (invariant 5). Its looks travel on the connection that carries the
//! subscription, so a connection that fell silent is noticed by them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::acquire::Log;
use super::gate::{self, Gate, Pulse};
use super::hold::Hold;
use super::keeper::Keeper;
use super::{Engine, error_of};
use crate::backend::{Listener, PubSubEvent, Purpose, RequestError, Slot, Subscription};
use crate::error::Error;
use crate::info::Holder;
use crate::options::AcquireOptions;
use crate::protocol::{LockStatus, Notified};
use crate::time::BootInstant;

/// A lost message costs at most this.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// While nothing happens, looks are at least this far apart: two commands a second.
const SHORTEST_LOOK: Duration = Duration::from_millis(550);

/// How long a process waits with its next try that has just had the lock for a whole round.
const COURTESY: Duration = Duration::from_millis(1);

/// All locks that tasks of this process wait for, or have from one who waited.
#[derive(Default)]
pub(super) struct WaitingRoom {
    entrances: Mutex<HashMap<Arc<[u8]>, Visited>>,
}

struct Visited {
    entrance: Arc<Entrance>,
    /// How many have a place here; it is removed with the last.
    places: usize,
}

/// Where tasks stand behind each other.
pub(super) type LockGate = Gate<Papers, Hold>;

type Standing = gate::Standing<Papers, Hold>;

/// Where the tasks of this process come that want one lock.
struct Entrance {
    name: Arc<[u8]>,
    gate: Arc<LockGate>,
    wake: Arc<Wake>,
    /// Who held the lock when the task at the desk last tried, and when that was.
    seen: Mutex<Option<(BootInstant, Seen)>>,
}

/// What one task at the desk leaves to the next.
#[derive(Default)]
pub(super) struct Papers {
    subscription: Option<Subscription>,
    /// What the place in the server's line goes by, of one who gave up without being served.
    ticket: Option<u64>,
    last_round: Round,
}

/// What became of a lock that tasks of this process left to each other, once it is back at the server.
#[derive(Clone, Copy, Default)]
pub(super) struct Round {
    /// Whether this process has just had the lock for a whole round, and others wait for it.
    pub(super) let_others: bool,
    /// How often one task left it to another.
    pub(super) hand_ons: u64,
}

/// What the task at the desk last saw of the lock.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) holder: Holder,
    /// How many are served first, in a line.
    pub(super) ahead: Option<u64>,
}

/// Set by the connection's task, awaited by the task at the desk.
#[derive(Default)]
struct Wake(Notify);

impl Listener for Wake {
    fn on_event(&self, _news: PubSubEvent<'_>) {
        // A message is only a hint: its content is not looked at.
        self.0.notify_one();
    }
}

impl WaitingRoom {
    /// Takes a place at `gate` if somebody has one there.
    pub(super) fn join(self: &Arc<Self>, gate: &[u8]) -> Option<Place> {
        let mut entrances = self.entrances.lock();
        let visited = entrances.get_mut(gate)?;
        Some(visited.place(self))
    }

    /// Takes a place at `gate`.
    pub(super) fn enter(self: &Arc<Self>, gate: &[u8]) -> Place {
        let mut entrances = self.entrances.lock();
        let visited = entrances
            .entry(gate.into())
            .or_insert_with_key(|name| Visited {
                entrance: Arc::new(Entrance {
                    name: name.clone(),
                    gate: Arc::new(Gate::new(Papers::default())),
                    wake: Arc::default(),
                    seen: Mutex::default(),
                }),
                places: 0,
            });
        visited.place(self)
    }

    /// How the lock participant when somebody of this process last tried.
    pub(super) fn last_seen(&self, gate: &[u8]) -> Option<Seen> {
        let entrance = self.entrances.lock().get(gate)?.entrance.clone();
        let (when, mut seen) = entrance.seen.lock().clone()?;
        let passed = BootInstant::now().since(when);
        let left = seen.holder.lease_remaining;
        seen.holder.lease_remaining = left.map(|left| left.saturating_sub(passed));
        Some(seen)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entrances.lock().is_empty()
    }
}

impl Visited {
    fn place(&mut self, room: &Arc<WaitingRoom>) -> Place {
        self.places += 1;
        Place {
            room: room.clone(),
            entrance: self.entrance.clone(),
        }
    }
}

/// A place of one who waits for a lock, or has it from one who waited; given up when dropped.
pub(super) struct Place {
    room: Arc<WaitingRoom>,
    entrance: Arc<Entrance>,
}

impl Place {
    /// Waits for this task's turn: to talk to the server, or to hold what another task has left to it.
    pub(super) async fn turn(&self, options: &AcquireOptions, keeper: &Keeper) -> Turn<'_> {
        let mut standing = self.watched(self.entrance.gate.enter(), keeper);
        loop {
            match standing.called().await {
                gate::Turn::Desk(papers) => return Turn::ToAsk(self.asking(papers)),
                gate::Turn::Lock(hold) => match hold.take_over(options).await {
                    Ok(hold) => return Turn::ToHold(hold),
                    Err(of_no_use) => {
                        standing = self.watched(self.entrance.gate.enter_again(), keeper);
                        // After this one is in line again: it is called as soon as the lock has gone back.
                        drop(of_no_use);
                    }
                },
            }
        }
    }

    /// Waits for the turn to talk to the server, of one who wants nothing to hold.
    async fn turn_to_ask(&self, keeper: &Keeper) -> Asking<'_> {
        loop {
            if let gate::Turn::Desk(papers) = self
                .watched(self.entrance.gate.enter(), keeper)
                .called()
                .await
            {
                return self.asking(papers);
            }
        }
    }

    /// Has the keeper look at the line that a task has got into.
    fn watched(&self, standing: Standing, keeper: &Keeper) -> Standing {
        if self.entrance.gate.begin_watch() {
            keeper.watch(Arc::<LockGate>::downgrade(&self.entrance.gate));
        }
        standing
    }

    fn asking(&self, mut papers: gate::Desk<Papers, Hold>) -> Asking<'_> {
        Asking {
            courtesy: std::mem::take(&mut papers.last_round.let_others).then_some(COURTESY),
            place: self,
            papers,
            looked: None,
        }
    }

    /// Says that this process has the lock no longer, and what became of it here.
    pub(super) fn lock_is_gone(&self, round: Round) {
        let note = |papers: &mut Papers| papers.last_round = round;
        self.entrance.gate.lock_is_gone(note);
    }

    pub(super) fn gate(&self) -> &Arc<LockGate> {
        &self.entrance.gate
    }

    fn saw(&self, holder: Holder, ahead: Option<u64>) {
        *self.entrance.seen.lock() = Some((BootInstant::now(), Seen { holder, ahead }));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut entrances = self.room.entrances.lock();
        let mut last = None;
        if let Some(visited) = entrances.get_mut(&self.entrance.name) {
            visited.places -= 1;
            if visited.places == 0 {
                last = entrances.remove(&self.entrance.name);
            }
        }
        // What it owns may be dropped only when nothing is locked.
        drop(entrances);
        drop(last);
    }
}

/// What it is a task's turn for.
pub(super) enum Turn<'a> {
    ToAsk(Asking<'a>),
    ToHold(Hold),
}

/// The right to talk to the server for all who wait here.
pub(super) struct Asking<'a> {
    place: &'a Place,
    papers: gate::Desk<Papers, Hold>,
    /// When this turn last looked.
    looked: Option<BootInstant>,
    /// How long it waits before it tries.
    courtesy: Option<Duration>,
}

impl Asking<'_> {
    /// Drives what the task does with its turn, and notes each poll: a task that is not polled loses its turn.
    pub(super) async fn drive<T>(pulse: Option<Arc<Pulse>>, asking: impl Future<Output = T>) -> T {
        let mut asking = pin!(asking);
        poll_fn(|context| {
            if let Some(pulse) = &pulse {
                pulse.beat(context);
            }
            asking.as_mut().poll(context)
        })
        .await
    }

    pub(super) fn pulse(&self) -> Arc<Pulse> {
        self.papers.pulse()
    }

    /// Ends the turn with the lock in hand: where it may be handed on, others need not ask for it.
    pub(super) fn took(self, hold: &Hold, options: &AcquireOptions) {
        let Some(holder) = hold.to_be_handed_on(options) else {
            return;
        };
        self.place.saw(holder, None);
        let place = self.place.room.enter(&self.place.entrance.name);
        let last_round = self.papers.last_round.hand_ons;
        if self.papers.has_the_lock() {
            hold.held.came_by(place, options, last_round);
        }
    }

    /// Lets those go first who have waited longer: whoever has just had the lock for a whole round waits longest
    /// before it tries, and half as long after every time that another has had it.
    pub(super) async fn let_others_go_first(&mut self) {
        if let Some(pause) = self.courtesy {
            tokio::time::sleep(pause).await;
            self.courtesy = Some(pause / 2).filter(|pause| *pause > COURTESY / 16);
        }
    }

    /// Makes sure that releases are heard; where that takes too long, goes on without for now.
    pub(super) async fn listen(
        &mut self,
        engine: &Engine,
        hints: &dyn Notified,
        slot: Slot,
    ) -> Result<(), RequestError> {
        if self.papers.subscription.is_none() {
            let wake = self.place.entrance.wake.clone();
            let subscribing = engine
                .backend
                .subscribe(hints.channel_name().channel(), slot, wake);
            if let Ok(subscribed) = tokio::time::timeout(engine.limits.request, subscribing).await {
                self.papers.subscription = Some(subscribed?);
            }
        }
        Ok(())
    }

    /// The place in the server's line that this process has, or had.
    pub(super) fn ticket(&mut self) -> &mut Option<u64> {
        &mut self.papers.ticket
    }

    /// Notes how the lock stands, for those who wait behind this task.
    pub(super) fn saw(&self, holder: &Holder, ahead: Option<u64>) {
        self.place.saw(holder.clone(), ahead);
    }

    /// Waits for a wake-up, or until a look says that the lock is free. `left` is how long the holder
    /// has it at most unless it renews.
    pub(super) async fn until_worth_trying(
        &mut self,
        engine: &Engine,
        hints: &dyn Notified,
        slot: Slot,
        mut left: Option<Duration>,
    ) {
        loop {
            let pause = self.next_look(left);
            tokio::select! {
                biased;
                () = self.place.entrance.wake.0.notified() => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.looked = Some(BootInstant::now());
            match glance(engine, hints, slot).await {
                Ok(LockStatus::Held { remaining: still }) => left = still,
                Ok(LockStatus::Free) | Err(_) => return,
            }
        }
    }

    /// When the holder's lease can have ended, but within a second, and not much more often than every
    /// half second.
    fn next_look(&self, left: Option<Duration>) -> Duration {
        let wanted = left.map_or(LONGEST_LOOK, |left| left + Duration::from_millis(1));
        let since_last = self
            .looked
            .map_or(SHORTEST_LOOK, |looked| BootInstant::now().since(looked));
        wanted
            .min(LONGEST_LOOK)
            .max(SHORTEST_LOOK.saturating_sub(since_last))
    }
}

impl Engine {
    /// Waits until a look says that there is nothing to wait for any more.
    pub(crate) async fn watch(
        &self,
        hints: &dyn Notified,
        slot: Slot,
        name: &str,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let start = BootInstant::now();
        let mut log = Log::new(self.limits.outage);
        let watching = async {
            tokio::select! {
                biased;
                () = self.closed() => Err(RequestError::ShutDown),
                watched = self.watch_without_end(hints, slot, &mut log) => watched,
            }
        };
        let outcome = match limit {
            Some(limit) => tokio::time::timeout(limit, watching).await.ok(),
            None => Some(watching.await),
        };
        match outcome {
            Some(outcome) => outcome.map_err(|failure| error_of(failure, name)),
            None => Err(log.into_error(name, BootInstant::now().since(start))),
        }
    }

    async fn watch_without_end(
        &self,
        hints: &dyn Notified,
        slot: Slot,
        log: &mut Log,
    ) -> Result<(), RequestError> {
        let place = self.room.enter(hints.local_queue_key());
        let turn = place.turn_to_ask(&self.keeper).await;
        let pulse = Some(turn.pulse());
        Asking::drive(pulse, self.watch_in_turn(hints, slot, turn, log)).await
    }

    async fn watch_in_turn(
        &self,
        hints: &dyn Notified,
        slot: Slot,
        mut turn: Asking<'_>,
        log: &mut Log,
    ) -> Result<(), RequestError> {
        loop {
            let seen = match turn.listen(self, hints, slot).await {
                Ok(()) => glance(self, hints, slot).await,
                Err(failure) => Err(failure),
            };
            match seen {
                Ok(LockStatus::Free) => return Ok(()),
                Ok(LockStatus::Held { remaining: left }) => {
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

async fn glance(
    engine: &Engine,
    hints: &dyn Notified,
    slot: Slot,
) -> Result<LockStatus, RequestError> {
    let connection = engine.backend.connection(Purpose::Keeper, slot).await?;
    hints.poll().send(&*connection, engine.limits.request).await
}

#[cfg(test)]
mod tests {
    use super::super::gate::Watched;
    use super::super::tests::{LEASE, engine, kind, yes};
    use super::*;
    use crate::backend::scripted::Scripted;
    use std::task::{Context, Waker};

    /// A task that was handed a lock of no use to it entered again, and the keeper did not watch it.
    #[tokio::test(start_paused = true)]
    async fn task_that_enters_again_is_watched() {
        let engine = engine(&Scripted::new(yes));
        let kind = kind();
        let place = engine
            .room
            .enter(kind.wait_strategy().local_queue_key().unwrap());
        let hold = engine
            .take(&kind, &AcquireOptions::new(LEASE))
            .await
            .unwrap();
        let gate = place.gate();
        let other = AcquireOptions::new(LEASE * 2);
        let mut turn = pin!(place.turn(&other, &engine.keeper));
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.as_mut().poll(&mut context).is_pending(), "in line");
        // Handed on; the keeper then finds no task in line.
        drop(hold);
        assert!(!gate.clone().watch());
        assert!(turn.as_mut().poll(&mut context).is_pending(), "again");
        assert!(!gate.begin_watch(), "the keeper watches it already");
    }
}

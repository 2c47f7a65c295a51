//! Waiting in a server's line: a place that is kept by heartbeats, and a lock that comes by push.
//!
//! The release of one holder gives the lock to the next on the server, and tells it: the message carries
//! the token and when the first lease ends. So who waits owns the lock without asking again. A message
//! that is lost is found at the next heartbeat, a place that is lost is asked for again by its ticket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::Engine;
use super::acquire::{Armed, Log};
use super::agenda::floor;
use super::held::{Granted, first_lease};
use super::hold::Hold;
use super::waiting::Asking;
use crate::backend::{Channel, Listener, PubSubEvent, Purpose, RequestError, Slot, Subscription};
use crate::info::Holder;
use crate::options::AcquireOptions;
use crate::owner::{Owner, Token};
use crate::protocol::{Call, Grant, GrantDelivery, Kind, LockValue, QueueStatus, ServerQueue};
use crate::time::BootInstant;

/// A place in line is kept for at most this long at a time, and a lock that is granted to one who waits
/// first belongs to it for as long: one who died costs others no more. Three heartbeats, one a second.
const LONGEST_PLACE: Duration = Duration::from_secs(3);

/// A place is not kept shorter than this, however short the lease: a waiter on a busy machine is not dead.
const SHORTEST_PLACE: Duration = Duration::from_millis(500);

/// At how many moments of a period heartbeats leave: those of one client to one node leave together, as one pipeline.
const MOMENTS: u32 = 16;

/// How all who wait in lines hear of what they are granted.
#[derive(Default)]
pub(super) struct Grants {
    /// What the backend is given to tell: it has no part in the subscriptions, else both would keep each other for ever.
    ears: Arc<Ears>,
    heard_on: Mutex<HashMap<Vec<u8>, Arc<tokio::sync::Mutex<Hearing>>>>,
}

/// The ears of all who wait.
#[derive(Default)]
struct Ears {
    waiting: Mutex<HashMap<Owner, mpsc::UnboundedSender<Heard>>>,
}

/// How this process hears the grants of one channel.
#[derive(Default)]
struct Hearing {
    subscription: Option<Subscription>,
    /// When it may be tried again, after it took too long.
    not_before: Option<BootInstant>,
}

/// What one who waits is told.
#[derive(Debug)]
enum Heard {
    /// The lock is its own, as the connection of this number tells.
    Granted(Grant, u64),
    /// It was called by name, or something may have been missed: it must ask.
    Ask,
}

impl Listener for Ears {
    /// Only who knows the owner, which is secret, can make one believe in a grant.
    fn on_event(&self, event: PubSubEvent<'_>) {
        let waiting = self.waiting.lock();
        match event {
            PubSubEvent::Message { text, connection } => {
                if let Some(grant) = Grant::read(text)
                    && let Some(ear) = waiting.get(&grant.owner)
                {
                    let _ = ear.send(Heard::Granted(grant, connection));
                }
            }
            PubSubEvent::Resubscribed | PubSubEvent::Ended => {
                for ear in waiting.values() {
                    let _ = ear.send(Heard::Ask);
                }
            }
        }
    }
}

/// Tells one who waits whenever its name is called.
struct Called(mpsc::UnboundedSender<Heard>);

impl Listener for Called {
    /// A call is only a hint: what it says is not looked at.
    fn on_event(&self, _news: PubSubEvent<'_>) {
        let _ = self.0.send(Heard::Ask);
    }
}

/// Hears what concerns one owner, until dropped.
struct Ear<'a> {
    ears: &'a Ears,
    owner: Owner,
    sender: mpsc::UnboundedSender<Heard>,
    heard: mpsc::UnboundedReceiver<Heard>,
    /// Where it is called by name, on lines that do so.
    called: Option<Subscription>,
}

impl Grants {
    fn listen(&self, owner: Owner) -> Ear<'_> {
        let (sender, heard) = mpsc::unbounded_channel();
        let mut waiting = self.ears.waiting.lock();
        waiting.insert(owner.clone(), sender.clone());
        Ear {
            ears: &self.ears,
            owner,
            sender,
            heard,
            called: None,
        }
    }
}

impl Ear<'_> {
    async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            None => unreachable!("BUG: the sender lives as long as the ear"),
        }
    }
}

impl Drop for Ear<'_> {
    fn drop(&mut self) {
        self.ears.waiting.lock().remove(&self.owner);
    }
}

/// What is known while one waits: for the place when it is lost, and for the error at the end.
struct Notes<'a> {
    /// Of one who stands behind others of this process: the place is that of all of them.
    turn: Option<Asking<'a>>,
    /// Of one who stands alone.
    ticket: Option<u64>,
    log: &'a mut Log,
}

/// One stay in line, in the name of one owner.
struct Stay<'a> {
    engine: &'a Engine,
    kind: &'a dyn Kind,
    line: &'a dyn ServerQueue,
    value: LockValue,
    ear: Ear<'a>,
    /// How long the lease is that is wanted.
    lease: Duration,
    /// How long the place is kept at a time.
    place: Duration,
}

/// How the owner participant when it was last asked about.
struct Answer {
    sent: BootInstant,
    connection: u64,
    standing: QueueStatus,
}

/// How a stay ended.
enum End {
    Served(Token, Granted),
    /// The place is lost.
    Gone,
}

impl Engine {
    /// Waits in line until the lock is ours.
    pub(super) async fn wait_in_line(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        line: &dyn ServerQueue,
        options: &AcquireOptions,
        turn: Option<Asking<'_>>,
        log: &mut Log,
    ) -> Result<Hold, RequestError> {
        let ticket = None;
        let mut notes = Notes { ticket, turn, log };
        loop {
            match self.stand(kind, line, options, &mut notes).await {
                Ok(Some(hold)) => {
                    *notes.ticket() = None;
                    if let Some(turn) = notes.turn {
                        turn.took(&hold, options);
                    }
                    return Ok(hold);
                }
                // The place is lost, and asked for again.
                Ok(None) => {}
                Err(failure) => {
                    notes.log.failed(failure)?;
                    tokio::time::sleep(notes.log.backoff.pause()).await;
                }
            }
        }
    }

    /// Makes sure that one who waits is told; where that takes too long, goes on without for now.
    async fn hear(
        &self,
        told: GrantDelivery<'_>,
        slot: Slot,
        ear: &mut Ear<'_>,
    ) -> Result<(), RequestError> {
        match told {
            GrantDelivery::Push(channel) => self.hear_grants(channel, slot).await,
            GrantDelivery::Wakeup(channel) => {
                let called = Arc::new(Called(ear.sender.clone()));
                let subscribing = self.backend.subscribe(channel, slot, called);
                if let Ok(subscribed) = tokio::time::timeout(self.limits.request, subscribing).await
                {
                    ear.called = Some(subscribed?);
                }
                Ok(())
            }
        }
    }

    async fn hear_grants(&self, channel: &[u8], slot: Slot) -> Result<(), RequestError> {
        let hearing = {
            let mut channels = self.grants.heard_on.lock();
            channels.entry(channel.to_vec()).or_default().clone()
        };
        // The limit covers the lock too: another task may hold it and not be polled.
        let hear = async {
            let mut hearing = hearing.lock().await;
            let is_early = hearing.not_before.is_some_and(|at| BootInstant::now() < at);
            if is_early || hearing.subscription.is_some() {
                return Ok(());
            }
            hearing.not_before = Some(BootInstant::now() + 2 * self.limits.request);
            let ears = self.grants.ears.clone();
            let sharded = Channel::Sharded(channel.to_vec());
            let subscribed = self.backend.subscribe(sharded, slot, ears).await;
            hearing.not_before = None;
            hearing.subscription = Some(subscribed?);
            Ok(())
        };
        let heard = tokio::time::timeout(self.limits.request, hear).await;
        heard.unwrap_or(Ok(()))
    }

    /// Gets in line and stays there until the lock is ours, or the place is lost (`None`).
    async fn stand(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        line: &dyn ServerQueue,
        options: &AcquireOptions,
        notes: &mut Notes<'_>,
    ) -> Result<Option<Hold>, RequestError> {
        // On the connection that carries the grants: one that changes is noticed by both.
        let connection = self
            .backend
            .connection(Purpose::Keeper, kind.slot())
            .await?;
        let owner = Owner::random();
        let value = kind.value(&owner, connection.facts().server_now(), &options.note);
        let lease = first_lease(options);
        let place = place(lease);
        let mut ear = self.grants.listen(owner);
        self.hear(line.delivery(&value), kind.slot(), &mut ear)
            .await?;
        let mut stay = Stay {
            engine: self,
            kind: &**kind,
            line,
            value: value.clone(),
            ear,
            lease,
            place,
        };
        let armed = Armed::new(&self.keeper, kind, value, connection.clone());
        let sent = BootInstant::now();
        let entering = line.enqueue(&stay.value, lease, place, *notes.ticket());
        let standing = match entering.send(&*connection, self.limits.request).await {
            Err(failure @ RequestError::Refused(_)) => {
                armed.disarm();
                return Err(failure);
            }
            answered => answered?,
        };
        let connection = connection.id();
        let entered = Answer {
            sent,
            connection,
            standing,
        };
        match stay.until_over(entered, notes).await? {
            End::Served(token, granted) => {
                let hold = self.take_charge(armed, token, options, granted).await?;
                Ok(Some(hold))
            }
            End::Gone => {
                armed.disarm();
                Ok(None)
            }
        }
    }
}

impl Stay<'_> {
    async fn until_over(
        &mut self,
        entered: Answer,
        notes: &mut Notes<'_>,
    ) -> Result<End, RequestError> {
        let mut last = entered;
        loop {
            let server_now = match last.standing {
                QueueStatus::Holds {
                    token,
                    remaining: left,
                } => {
                    return Ok(End::Served(token, Granted::new(last.sent, left)));
                }
                QueueStatus::Gone { .. } => return Ok(End::Gone),
                QueueStatus::Waits {
                    ahead,
                    server_now,
                    ticket,
                    holder,
                } => {
                    notes.waits(ahead, ticket, holder);
                    server_now
                }
            };
            let mut pause = next_beat(self.place);
            last = loop {
                let stay = || self.line.heartbeat(&self.value, self.lease, self.place);
                let beat = beat(self.engine, self.kind.slot(), stay, pause);
                tokio::select! {
                    biased;
                    heard = self.ear.next() => match heard {
                        Heard::Granted(grant, connection) if connection == last.connection => {
                            let granted = self.counted(&grant, last.sent, server_now);
                            return Ok(End::Served(grant.token, granted));
                        }
                        // Another connection, perhaps another server: it must confirm first.
                        Heard::Granted(..) | Heard::Ask => pause = Duration::ZERO,
                    },
                    answer = beat => match answer {
                        Ok(answer) => break answer,
                        Err(failure) => {
                            notes.log.failed(failure)?;
                            pause = notes.log.backoff.pause().min(self.place / 3);
                        }
                    }
                }
            };
        }
    }

    /// From when and for how long a grant counts (invariant 9). By the server's clock it was made so long
    /// after a heartbeat was answered; that heartbeat was sent earlier still, and the grant is not to come.
    fn counted(&self, grant: &Grant, beat_sent: BootInstant, server_now: u64) -> Granted {
        let left = Duration::from_micros(grant.end.saturating_sub(server_now));
        // The lease that comes with a grant is no longer than a place is kept.
        let first = self.place.min(self.lease);
        let waited = left.saturating_sub(first);
        let start = beat_sent + (waited - waited / 100);
        Granted::new(start.min(BootInstant::now()), first.min(left))
    }
}

/// How long a place is kept at a time by one who wants this lease. Half of it: when a holder and those
/// behind it die together, they are found dead before its lease ends, and are not served in vain.
fn place(lease: Duration) -> Duration {
    (lease / 2).clamp(SHORTEST_PLACE, LONGEST_PLACE)
}

/// How long to wait for the next heartbeat: a third of what a place is kept, at one of [`MOMENTS`] moments in that time
/// that all waiters of this client share.
pub(super) fn next_beat(place: Duration) -> Duration {
    let (now, period) = (BootInstant::now(), place / 3);
    floor(now + period, period / MOMENTS).since(now)
}

/// Keeps a place after a pause, and asks how it stands.
async fn beat(
    engine: &Engine,
    slot: Slot,
    stay: impl FnOnce() -> Call<QueueStatus>,
    pause: Duration,
) -> Result<Answer, RequestError> {
    tokio::time::sleep(pause).await;
    let connection = engine.backend.connection(Purpose::Keeper, slot).await?;
    let sent = BootInstant::now();
    let standing = stay().send(&*connection, engine.limits.request);
    Ok(Answer {
        sent,
        connection: connection.id(),
        standing: standing.await?,
    })
}

impl Notes<'_> {
    fn ticket(&mut self) -> &mut Option<u64> {
        match &mut self.turn {
            Some(turn) => turn.ticket(),
            None => &mut self.ticket,
        }
    }

    fn waits(&mut self, ahead: u64, ticket: Option<u64>, holder: Holder) {
        *self.ticket() = ticket.or(*self.ticket());
        if let Some(turn) = &self.turn {
            turn.saw(&holder, Some(ahead));
        }
        self.log.busy(holder);
        self.log.ahead = Some(ahead);
    }
}

//! Taking a lock: one attempt, or attempts until it is ours or the wait is over.

use std::sync::Arc;
use std::time::Duration;

use super::give_back::Claim;
use super::held::{Granted, Held, State, first_lease};
use super::hold::Hold;
use super::keeper::Keeper;
use super::waiting::{Asking, Place, Turn};
use super::{Engine, error_of};
use crate::backend::{Backoff, Connection, RequestError};
use crate::error::Error;
use crate::info::Holder;
use crate::options::{AcquireOptions, ReplicaAck};
use crate::owner::{Owner, Token};
use crate::protocol::{AcquireReply, Kind, LockValue, Notified, RenewReply, WaitStrategy};
use crate::time::BootInstant;

/// What one attempt came to.
enum Attempt {
    Taken(Hold),
    Busy(Holder),
    /// Some nodes gave it to us and some to others; given back already.
    Split,
}

/// How often one who does not wait tries again when nobody gets a majority.
const SPLITS: usize = 5;

impl Engine {
    /// Tries once; `None` when somebody else holds it.
    pub(crate) async fn try_take(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Option<Hold>, Error> {
        options.validate()?;
        match self.attempt_firmly(kind, options, false).await {
            Ok(Attempt::Taken(hold)) => Ok(Some(hold)),
            Ok(Attempt::Busy(_) | Attempt::Split) => Ok(None),
            Err(failure) => Err(error_of(failure, kind.name())),
        }
    }

    /// One attempt, or a few while those who try at the same time are in each other's way.
    async fn attempt_firmly(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        look: bool,
    ) -> Result<Attempt, RequestError> {
        let mut pauses = split_pauses();
        for _ in 0..SPLITS {
            match self.attempt(kind, options, look).await? {
                Attempt::Split => tokio::time::sleep(pauses.pause()).await,
                attempt => return Ok(attempt),
            }
        }
        Ok(Attempt::Split)
    }

    /// Tries until the lock is ours or the wait of `options` is over.
    pub(crate) async fn take(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
    ) -> Result<Hold, Error> {
        options.validate()?;
        let start = BootInstant::now();
        let mut log = Log::new(self.limits.outage);
        let outcome = match options.timeout {
            Some(Duration::ZERO) => {
                match Box::pin(self.attempt_firmly(kind, options, true)).await {
                    Ok(Attempt::Taken(hold)) => Some(Ok(hold)),
                    Ok(Attempt::Busy(holder)) => {
                        log.busy(holder);
                        None
                    }
                    Ok(Attempt::Split) => None,
                    Err(failure) => Some(Err(failure)),
                }
            }
            Some(limit) => {
                let trying = self.try_until_taken(kind, options, &mut log);
                Box::pin(tokio::time::timeout(limit, trying)).await.ok()
            }
            None => Some(self.try_until_taken(kind, options, &mut log).await),
        };
        match outcome {
            Some(Ok(hold)) => Ok(hold),
            Some(Err(failure)) => Err(error_of(failure, kind.name())),
            None => {
                // One who was never first in line has seen nobody; the first in line has.
                let gate = kind.wait_strategy().local_queue_key();
                if let Some(seen) = gate.and_then(|gate| self.room.last_seen(gate)) {
                    log.ahead = log.ahead.or(seen.ahead);
                    log.holder = log.holder.or(Some(Box::new(seen.holder)));
                }
                Err(log.into_error(kind.name(), BootInstant::now().since(start)))
            }
        }
    }

    async fn try_until_taken(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        log: &mut Log,
    ) -> Result<Hold, RequestError> {
        // Where others of this process wait already, trying first would only cost the server.
        let gate = kind.wait_strategy().local_queue_key();
        let mut place = gate.and_then(|gate| self.room.join(gate));
        if place.is_none() {
            match self.attempt(kind, options, false).await {
                Ok(Attempt::Taken(hold)) => return Ok(hold),
                Ok(Attempt::Busy(holder)) => log.busy(holder),
                Ok(Attempt::Split) => log.fine(),
                Err(failure) => log.failed(failure)?,
            }
            place = gate.map(|gate| self.room.enter(gate));
        }
        // Boxed, since its state is large and most acquires never get here.
        Box::pin(self.take_turn(kind, options, place, log)).await
    }

    /// Waits for the turn to ask, where tasks of this process take turns, and then for the lock.
    async fn take_turn(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        place: Option<Place>,
        log: &mut Log,
    ) -> Result<Hold, RequestError> {
        let turn = match &place {
            Some(place) => match place.turn(options, &self.keeper).await {
                Turn::ToAsk(turn) => Some(turn),
                Turn::ToHold(hold) => return Ok(hold),
            },
            None => None,
        };
        let pulse = turn.as_ref().map(Asking::pulse);
        tokio::select! {
            biased;
            () = self.closed() => Err(RequestError::ShutDown),
            taken = Asking::drive(pulse, self.wait(kind, options, turn, log)) => taken,
        }
    }

    /// Waits for what the server has to give, with the turn to ask for it where those who wait have one.
    async fn wait(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        turn: Option<Asking<'_>>,
        log: &mut Log,
    ) -> Result<Hold, RequestError> {
        match (kind.wait_strategy(), turn) {
            (WaitStrategy::Notified(hints), Some(turn)) => {
                self.wait_for_hints(kind, hints, options, turn, log).await
            }
            (WaitStrategy::Queued(line), turn) => {
                self.wait_in_line(kind, line, options, turn, log).await
            }
            (WaitStrategy::Notified(_), None) => unreachable!("BUG: hints are for those at a gate"),
        }
    }

    async fn wait_for_hints(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        hints: &dyn Notified,
        options: &AcquireOptions,
        mut turn: Asking<'_>,
        log: &mut Log,
    ) -> Result<Hold, RequestError> {
        let mut pauses = split_pauses();
        loop {
            turn.let_others_go_first().await;
            // Subscribed first, tried after: a release in between is not missed.
            let outcome = match turn.listen(self, hints, kind.slot()).await {
                Ok(()) => self.attempt(kind, options, true).await,
                Err(failure) => Err(failure),
            };
            match outcome {
                Ok(Attempt::Taken(hold)) => {
                    turn.took(&hold, options);
                    return Ok(hold);
                }
                Ok(Attempt::Split) => {
                    log.fine();
                    tokio::time::sleep(pauses.pause()).await;
                }
                Ok(Attempt::Busy(holder)) => {
                    pauses.reset();
                    let left = holder.lease_remaining;
                    turn.saw(&holder, None);
                    log.busy(holder);
                    turn.until_worth_trying(self, hints, kind.slot(), left)
                        .await;
                }
                Err(failure) => {
                    log.failed(failure)?;
                    tokio::time::sleep(log.backoff.pause()).await;
                }
            }
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        kind: &Arc<dyn Kind>,
        options: &AcquireOptions,
        look: bool,
    ) -> Result<Attempt, RequestError> {
        if *self.closed.borrow() {
            return Err(RequestError::ShutDown);
        }
        let connection = self.connection(kind.slot()).await?;
        let value = kind.value(
            &Owner::random(),
            connection.facts().server_now(),
            &options.note,
        );
        let armed = Armed::new(&self.keeper, kind, value, connection);
        let sent = BootInstant::now();
        let call = kind.acquire(armed.value(), first_lease(options), look);
        match call.send(armed.connection(), self.limits.request).await {
            Ok(AcquireReply::Held { token }) => {
                let granted = Granted::new(sent, first_lease(options));
                let hold = self.take_charge(armed, token, options, granted).await?;
                Ok(Attempt::Taken(hold))
            }
            Ok(AcquireReply::Busy { holder }) => {
                armed.disarm();
                Ok(Attempt::Busy(holder))
            }
            // Stays armed: it was taken, and is cancelled.
            Ok(AcquireReply::Unusable { refusal }) => Err(RequestError::Refused(refusal)),
            Ok(AcquireReply::Split) => {
                Box::pin(self.give_up(armed)).await;
                Ok(Attempt::Split)
            }
            Err(failure @ RequestError::Refused(_)) => {
                armed.disarm();
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Gives back what was won in part, before the next attempt finds it in its way.
    async fn give_up(&self, armed: Armed<'_>) {
        let server = armed.connection().facts().capabilities;
        let cancel = armed.kind().cancel(armed.value(), server).await_all_nodes();
        // What fails stays armed, and is cancelled in the background.
        let cancelled = cancel.send(armed.connection(), self.limits.request).await;
        if cancelled.is_ok() {
            armed.disarm();
        }
    }

    /// Turns what the server granted into a hold, unless it came too late.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn would keep its arguments twice"
    )]
    pub(super) fn take_charge(
        self: &Arc<Self>,
        armed: Armed<'_>,
        token: Token,
        options: &AcquireOptions,
        granted: Granted,
    ) -> impl Future<Output = Result<Hold, RequestError>> + Send {
        async move {
            // Boxed, since most acquires need neither.
            let token = match token.as_u64() < armed.connection().facts().server_time {
                true => Box::pin(self.lifted(&armed, token)).await?,
                false => token,
            };
            let granted = match options.replica_ack {
                None => granted,
                Some(wanted) => match Box::pin(self.acknowledged(&armed, wanted, options)).await {
                    Ok(granted) => granted,
                    // No replica was asked: the lock is released first, and nothing has changed.
                    Err(failure @ RequestError::Unreachable(_)) => {
                        Box::pin(self.give_up(armed)).await;
                        return Err(failure);
                    }
                    Err(failure) => return Err(failure),
                },
            };
            let (kind, value) = (armed.kind().clone(), armed.value().clone());
            let held = Held::new(kind, value, token, options, granted);
            if matches!(held.state(), State::Ended(_)) {
                return Err(RequestError::Unknown(
                    "granted too late to be of use".into(),
                ));
            }
            armed.disarm();
            Ok(Hold::new(Arc::new(held), self.clone()))
        }
    }

    /// Invariant 10. The renewal comes after what was granted, so a replica that has it has that too.
    async fn acknowledged(
        &self,
        armed: &Armed<'_>,
        wanted: ReplicaAck,
        options: &AcquireOptions,
    ) -> Result<Granted, RequestError> {
        let lease = first_lease(options);
        let renewing = self.renew(&**armed.kind(), armed.value(), lease, Some(wanted));
        match renewing.await? {
            (sent, RenewReply::Renewed | RenewReply::OnMajority) => Ok(Granted::new(sent, lease)),
            (_, RenewReply::NotOwner) => Err(RequestError::Unknown(
                "lost before it was replicated".into(),
            )),
        }
    }

    /// Invariant 8. After a loss of data the first client to notice raises the counter for all.
    async fn lifted(&self, armed: &Armed<'_>, token: Token) -> Result<Token, RequestError> {
        let connection = armed.connection();
        match armed.kind().raise_token() {
            Some(counter) => {
                let raise = counter.raise_token(connection.facts().server_time);
                raise.send(connection, self.limits.request).await
            }
            None => Ok(token),
        }
    }
}

/// Those who are in each other's way must not try again in step.
fn split_pauses() -> Backoff {
    Backoff::new(Duration::from_millis(4), Duration::from_millis(60))
}

/// An acquire that may have been executed: dropped without being disarmed, it is cancelled
/// (invariants 6 and 7).
pub(super) struct Armed<'a> {
    keeper: &'a Keeper,
    claim: Option<Claim>,
}

impl<'a> Armed<'a> {
    pub(super) fn new(
        keeper: &'a Keeper,
        kind: &Arc<dyn Kind>,
        value: LockValue,
        connection: Arc<dyn Connection>,
    ) -> Self {
        let kind = kind.clone();
        Self {
            keeper,
            claim: Some(Claim {
                kind,
                value,
                connection,
            }),
        }
    }

    fn claim(&self) -> &Claim {
        self.claim
            .as_ref()
            .expect("BUG: used after it was disarmed")
    }

    fn kind(&self) -> &Arc<dyn Kind> {
        &self.claim().kind
    }

    fn value(&self) -> &LockValue {
        &self.claim().value
    }

    fn connection(&self) -> &dyn Connection {
        &*self.claim().connection
    }

    pub(super) fn disarm(mut self) {
        self.claim = None;
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.keeper.cancel(claim);
        }
    }
}

/// What was met while trying, for the error at the end and for how long to bear an outage.
pub(super) struct Log {
    holder: Option<Box<Holder>>,
    /// How many were to be served first, in a line.
    pub(super) ahead: Option<u64>,
    failure: Option<RequestError>,
    failing_since: Option<BootInstant>,
    bearable: Duration,
    pub(super) backoff: Backoff,
}

impl Log {
    pub(super) fn new(bearable: Duration) -> Self {
        Self {
            holder: None,
            ahead: None,
            failure: None,
            failing_since: None,
            bearable,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(500)),
        }
    }

    pub(super) fn busy(&mut self, holder: Holder) {
        self.holder = Some(Box::new(holder));
        self.fine();
    }

    /// The server has answered.
    pub(super) fn fine(&mut self) {
        self.failure = None;
        self.failing_since = None;
        self.backoff.reset();
    }

    /// Bears a failure that may pass, until the outage has lasted too long.
    pub(super) fn failed(&mut self, failure: RequestError) -> Result<(), RequestError> {
        let now = BootInstant::now();
        let since = *self.failing_since.get_or_insert(now);
        if !failure.is_transient() || now.since(since) > self.bearable {
            return Err(failure);
        }
        self.failure = Some(failure);
        Ok(())
    }

    /// The wait is over: the last failure if there was one, else who held the lock.
    pub(super) fn into_error(self, name: &str, waited: Duration) -> Error {
        match self.failure {
            Some(failure) => error_of(failure, name),
            None => Error::Timeout {
                name: name.to_owned(),
                waited,
                holder: self.holder,
                position: self.ahead.map(|ahead| ahead + 1),
            },
        }
    }
}

//! The keeper's thread: takes messages, fires timers, and runs requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::callers::Callers;
use super::cancel::cancel;
use super::cleanup::Cleanups;
use super::handle::{Keeper, KeeperInbox, KeeperMsg};
use super::inbox::Delivery;
use super::release::release;
use super::renew::{Renewal, RenewalOutcome, renew, repair, set_hold_count};
use super::timers::{EXPIRY_SLACK, Expedited, TimerKind, Timers};
use crate::backend::{Backend, Backoff, Channel, Listener, PubSubEvent};
use crate::error::Loss;
use crate::lease::progress_watch::Look;
use crate::lease::report::{
    check_slow_hold, report_failed_renewal, report_if_lost, report_loss, report_renewal,
    report_stuck,
};
use crate::lease::schedule::{next_look_at, next_renewal_at};
use crate::lease::state::{EndReason, LeaseState, Validity};
use crate::observe::Observers;
use crate::owner::Owner;
use crate::protocol::{RenewReply, process_channel};
use crate::time::BootInstant;

/// The number of renewals in one pipeline.
const BATCH: usize = 500;

/// How many revocations of leases that are not registered are remembered.
const MAX_UNKNOWN_SUSPECTS: usize = 64;

/// How long releases and cancels may take once the last handle was dropped. A
/// cancel waits for up to 15 s until it gives a connection up, and for another
/// 15 s until the acquire can no longer arrive (invariant 6).
const DRAIN_TIMEOUT: Duration = Duration::from_secs(40);

impl Keeper {
    /// Runs the keeper. Completes some time after the inbox is closed.
    pub(crate) async fn work(
        self,
        backend: Arc<dyn Backend>,
        timeout: Duration,
        observers: Observers,
    ) {
        let listening = listen_for_revocations(self.inbox.clone(), backend.clone());
        let worker = Worker::new(&self, backend, timeout, observers);
        tokio::select! {
            biased;
            () = worker.run() => {}
            () = listening => {}
        }
    }
}

/// Listens for revocations of this process's locks. A message is only a reason
/// to renew the lease; the server's reply decides.
async fn listen_for_revocations(inbox: Arc<KeeperInbox>, backend: Arc<dyn Backend>) {
    let (channel, slot) = process_channel(&Owner::process());
    let channel = Channel::Sharded(channel.into_bytes());
    let listener = Arc::new(RevocationListener(Arc::downgrade(&inbox)));
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let mut is_reported = false;
    let _subscription = loop {
        let subscribing = backend.subscribe(channel.clone(), slot, listener.clone());
        match subscribing.await {
            Ok(subscription) => break subscription,
            // Once: a server without pub/sub never accepts it.
            Err(_) if is_reported => {}
            Err(error) => {
                is_reported = true;
                tracing::warn!(%error, "revoked locks are noticed at the next renewal only");
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    };
    std::future::pending::<()>().await;
}

/// Forwards revocations to the keeper. It owns nothing: dropping it must not
/// end leases.
struct RevocationListener(Weak<KeeperInbox>);

impl Listener for RevocationListener {
    fn on_event(&self, event: PubSubEvent<'_>) {
        if let (PubSubEvent::Message { text, .. }, Some(inbox)) = (event, self.0.upgrade()) {
            inbox.send(KeeperMsg::Verify(text.to_vec()));
        }
    }
}

/// The state of the keeper's thread.
struct Worker {
    inbox: Arc<KeeperInbox>,
    callers: Arc<Callers>,
    backend: Arc<dyn Backend>,
    timeout: Duration,
    observers: Observers,
    cleanups: Cleanups,
    timers: Timers,
    /// Lock values of leases that may be revoked and await a renewal.
    suspects: Vec<Vec<u8>>,
    /// Suspects without a lease, the latest last. A message can overtake the
    /// task that acquired the lock, before it registers the lease.
    unknown_suspects: VecDeque<Vec<u8>>,
    /// Requests in flight. Only renewals return outcomes.
    jobs: JoinSet<Vec<RenewalOutcome>>,
    /// Callers that wait for the shutdown; not empty from the first one on.
    shutting_down: Vec<Option<oneshot::Sender<()>>>,
    /// Whether lost leases are released without delay: the client is shut down,
    /// or all handles were dropped.
    release_at_once: watch::Sender<bool>,
}

impl Worker {
    fn new(
        keeper: &Keeper,
        backend: Arc<dyn Backend>,
        timeout: Duration,
        observers: Observers,
    ) -> Self {
        Self {
            inbox: keeper.inbox.clone(),
            callers: keeper.callers.clone(),
            backend,
            timeout,
            cleanups: Cleanups::new(observers.clone()),
            observers,
            timers: Timers::default(),
            suspects: Vec::new(),
            unknown_suspects: VecDeque::new(),
            jobs: JoinSet::new(),
            shutting_down: Vec::new(),
            release_at_once: watch::Sender::new(false),
        }
    }

    async fn run(mut self) {
        let mut give_up = BootInstant::NEVER;
        loop {
            let is_last = self.round();
            if is_last && give_up == BootInstant::NEVER {
                give_up = BootInstant::now() + DRAIN_TIMEOUT;
                self.release_at_once.send_replace(true);
            }
            if is_last && (self.jobs.is_empty() || BootInstant::now() >= give_up) {
                if !self.jobs.is_empty() {
                    tracing::warn!(
                        unanswered = self.jobs.len(),
                        "dropped locks may stay held until their leases end"
                    );
                }
                for state in self.timers.clear() {
                    report_if_lost(&state, &self.observers);
                }
                return;
            }
            let unclaimed = self.cancel_unclaimed();
            let next = self.timers.next().min(give_up).min(unclaimed);
            match self.inbox.may_sleep_until(next) {
                true => self.sleep_until(next).await,
                // A stream of messages must not keep requests from being sent.
                false => tokio::task::yield_now().await,
            }
        }
    }

    /// Handles finished jobs and new messages, and starts what is due. Returns
    /// whether the inbox was closed.
    fn round(&mut self) -> bool {
        // Also under a stream of messages: a renewal counts when its outcome
        // is handled.
        while let Some(finished) = self.jobs.try_join_next() {
            self.finish(finished);
        }
        let Delivery {
            messages,
            leases,
            is_last,
        } = self.inbox.take();
        for state in leases {
            match self.shutting_down.is_empty() {
                true => self.add(state),
                false => self.end_for_shutdown(state),
            }
        }
        for message in messages {
            self.accept(message);
        }
        self.verify_suspects();
        self.run_due();
        if !self.shutting_down.is_empty() && self.is_idle() {
            for done in self.shutting_down.iter_mut().filter_map(Option::take) {
                // Fails if the caller no longer waits for the shutdown.
                let _ = done.send(());
            }
        }
        is_last
    }

    /// Returns whether nothing is left to do before new leases arrive.
    fn is_idle(&self) -> bool {
        // The inbox last: it has what a caller left to do that was busy until
        // now; see invariant 1 of `callers`.
        self.jobs.is_empty() && !self.callers.is_busy() && self.inbox.is_empty()
    }

    async fn sleep_until(&mut self, next: BootInstant) {
        tokio::select! {
            biased;
            Some(finished) = self.jobs.join_next() => self.finish(finished),
            () = self.inbox.woken() => {}
            () = tokio::time::sleep_until(next.as_timer()) => {}
        }
    }

    fn finish(&mut self, finished: Result<Vec<RenewalOutcome>, JoinError>) {
        match finished {
            Ok(outcomes) => self.handle_renewals(outcomes),
            Err(error) => tracing::error!(%error, "BUG: a job of the keeper failed"),
        }
    }

    fn accept(&mut self, message: KeeperMsg) {
        let (backend, timeout) = (self.backend.clone(), self.timeout);
        match message {
            KeeperMsg::Release(state) => self.clean_up(release(state, backend, timeout)),
            KeeperMsg::Cancel(acquire) => self.clean_up(cancel(acquire, backend, timeout)),
            KeeperMsg::SetHoldCount(state) => self.spawn(set_hold_count(state, backend, timeout)),
            KeeperMsg::Verify(value) => self.suspects.push(value),
            KeeperMsg::Overdue(batch) => {
                for renewal in batch {
                    self.renew_again(&renewal, Duration::ZERO);
                }
            }
            KeeperMsg::ShutDown(done) => {
                self.shutting_down.push(Some(done));
                self.release_at_once.send_replace(true);
                for state in self.timers.clear() {
                    self.end_for_shutdown(state);
                }
                for waiter in self.callers.take_waiters() {
                    self.clean_up(cancel(waiter, self.backend.clone(), timeout));
                }
            }
        }
    }

    /// Runs a job that returns no outcome.
    fn spawn(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        self.jobs.spawn(async {
            job.await;
            Vec::new()
        });
    }

    /// Runs a release or cancel.
    fn clean_up(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        let cleanup = self.cleanups.start();
        self.spawn(async {
            job.await;
            drop(cleanup);
        });
    }

    /// Adds a new lease, which may already be revoked.
    fn add(&mut self, state: Arc<LeaseState>) {
        let is_it = |value: &Vec<u8>| **value == *state.value;
        if let Some(at) = self.unknown_suspects.iter().position(is_it) {
            self.suspects.extend(self.unknown_suspects.remove(at));
        }
        self.timers.add(state);
    }

    /// Renews suspected leases now, so the server reports whether they are
    /// revoked. A lease with a renewal in flight waits for that.
    fn verify_suspects(&mut self) {
        let now = BootInstant::now();
        for value in std::mem::take(&mut self.suspects) {
            match self.timers.expedite(&value, now) {
                Expedited::Done => {}
                Expedited::InFlight => self.suspects.push(value),
                Expedited::NoLease => {
                    // Bounded, since anyone may send such messages.
                    if self.unknown_suspects.len() == MAX_UNKNOWN_SUSPECTS {
                        self.unknown_suspects.pop_front();
                    }
                    self.unknown_suspects.push_back(value);
                }
            }
        }
    }

    /// Cancels acquires whose callers are not polled. Returns when to call this
    /// again.
    fn cancel_unclaimed(&mut self) -> BootInstant {
        let (overdue, next) = self.callers.take_overdue(BootInstant::now());
        for acquire in overdue {
            self.accept(KeeperMsg::Cancel(acquire));
        }
        next
    }

    fn end_for_shutdown(&mut self, state: Arc<LeaseState>) {
        if state.end(EndReason::Lost(Loss::ShutDown)) {
            report_loss(&state, Loss::ShutDown, &self.observers);
            self.clean_up(release(state, self.backend.clone(), self.timeout));
        } else {
            // Its timer was removed before it could find the loss.
            report_if_lost(&state, &self.observers);
            self.lose(state);
        }
    }

    /// Ends leases at their deadline, and sends due renewals in batches.
    fn run_due(&mut self) {
        let now = BootInstant::now();
        let mut batches: BTreeMap<_, Vec<Renewal>> = BTreeMap::new();
        for (state, timer) in self.timers.take_due(now) {
            match timer {
                TimerKind::Expire => self.check_deadline(state, now),
                TimerKind::SlowHold => self.check_hold(state),
                TimerKind::Renew { .. } if self.is_stuck(&state) => {
                    // The lease runs out, unless the holder reports before.
                    let again = next_look_at(now, state.lease);
                    self.timers.push(again, state, timer);
                }
                TimerKind::Renew { due, failures } if due > now && state.is_valid() => {
                    self.timers.schedule_renewal(due, state, failures);
                }
                TimerKind::Renew { failures, .. } | TimerKind::Verify { failures } => {
                    let node = self.backend.node(state.kind.slot());
                    // One short lease must not shorten the patience with
                    // others.
                    let patience = patience(&state, self.timeout);
                    let batch = batches.entry((node, failures, state.replica_ack, patience));
                    batch.or_default().extend(Renewal::now(state, failures));
                }
            }
        }
        for ((_, _, _, patience), mut batch) in batches {
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(BATCH));
                let (backend, inbox) = (self.backend.clone(), self.inbox.clone());
                let on_overdue = move |batch| inbox.send(KeeperMsg::Overdue(batch));
                let job = renew(batch, backend, patience, self.timeout, on_overdue);
                self.jobs.spawn(job);
                batch = rest;
            }
        }
    }

    /// Returns whether the holder of a valid lease reports no progress. Says so
    /// the first time.
    fn is_stuck(&self, state: &LeaseState) -> bool {
        if !state.is_valid() {
            return false;
        }
        let look = state.progress.look();
        if look == Look::NowLate {
            report_stuck(state, &self.observers);
        }
        look != Look::InTime
    }

    /// Ends a lease at the deadline (invariant 4), or sets the timer again if
    /// the deadline has moved.
    fn check_deadline(&mut self, state: Arc<LeaseState>, now: BootInstant) {
        match state.validity() {
            Validity::Valid { deadline } if deadline.saturating_sub(EXPIRY_SLACK) > now => {
                self.timers.schedule_expiry(deadline, state);
            }
            // `extend` may move the deadline just now. Then it is a new one.
            Validity::Valid { deadline } if !state.expire(deadline) => {
                self.check_deadline(state, now);
            }
            Validity::Valid { .. } | Validity::Ended(_) => self.lose(state),
        }
    }

    /// Warns once if the lock is held for too long.
    fn check_hold(&mut self, state: Arc<LeaseState>) {
        if let Some(limit) = state.slow_hold
            && state.is_valid()
            && let Some(again) = check_slow_hold(&state, limit)
        {
            self.timers.push(again, state, TimerKind::SlowHold);
        }
    }

    /// Releases a lease that was lost at the deadline: a renewal without a
    /// reply may have been executed, and the lock would stay without a holder.
    /// The release waits until the margin is over, in which the holder stops,
    /// unless the client is shut down, which releases valid leases at once too.
    fn lose(&mut self, state: Arc<LeaseState>) {
        // The first check after the deadline may have ended it before.
        let Validity::Ended(reason) = state.validity() else {
            return;
        };
        let Some(loss) = reason.by_time() else {
            return;
        };
        report_loss(&state, loss, &self.observers);
        let (backend, timeout) = (self.backend.clone(), self.timeout);
        let cleanups = self.cleanups.clone();
        let mut at_once = self.release_at_once.subscribe();
        self.spawn(async move {
            let due = state.confirmed_until() + state.lease / 10;
            tokio::select! {
                () = tokio::time::sleep(due.since(BootInstant::now())) => {}
                _ = at_once.wait_for(|at_once| *at_once) => {}
            }
            let cleanup = cleanups.start();
            release(state, backend, timeout).await;
            drop(cleanup);
        });
    }

    fn handle_renewals(&mut self, outcomes: Vec<RenewalOutcome>) {
        for outcome in outcomes {
            let (sent, renewal) = (outcome.sent, outcome.renewal);
            let (lease, allowed) = (renewal.length(sent), renewal.allowed(sent));
            let state = renewal.state.clone();
            match outcome.reply {
                Ok(reply @ (RenewReply::Renewed | RenewReply::OnMajority)) => {
                    // Before the deadline moves: observers see how much time
                    // was left.
                    report_renewal(&state, lease, &self.observers);
                    state.confirm(sent, lease);
                    if reply == RenewReply::OnMajority {
                        self.spawn(repair(state.clone(), self.backend.clone(), self.timeout));
                    }
                    if state.renewed && !outcome.is_late {
                        // Near the end of `at_most` the renewed time shrinks.
                        // The period stays, or renewals would be ever denser.
                        // It shrinks too if the keeper looked late at the
                        // holder's reports; it must then look again sooner.
                        let due = next_renewal_at(sent, allowed);
                        let due = due.max(sent + retry_pause(&state));
                        self.timers.schedule_renewal(due, state, 0);
                    }
                }
                Ok(RenewReply::NotOwner) => {
                    if state.end(EndReason::Lost(Loss::Revoked)) {
                        report_loss(&state, Loss::Revoked, &self.observers);
                    }
                }
                Err(error) => {
                    tracing::debug!(lock = state.kind.name(), %error, "renewal failed");
                    if !outcome.is_late {
                        self.renew_again(&renewal, retry_pause(&state));
                    }
                }
            }
        }
    }

    /// Repeats a renewal that failed, or has no reply yet.
    fn renew_again(&mut self, renewal: &Renewal, pause: Duration) {
        let (state, failures) = (renewal.state.clone(), renewal.failures + 1);
        report_failed_renewal(&state, failures, &self.observers);
        let due = BootInstant::now() + pause;
        self.timers.schedule_renewal(due, state, failures);
    }
}

/// Returns after which time the reply to a renewal is overdue: a slow one must
/// leave time for another request.
fn patience(state: &LeaseState, timeout: Duration) -> Duration {
    (state.lease / 4).min(timeout)
}

/// Returns the pause before a failed renewal is repeated.
fn retry_pause(state: &LeaseState) -> Duration {
    (state.lease / 20).min(Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::scripted::Scripted;
    use crate::backend::{Batch, Reply};
    use crate::lease::state::Granted;
    use crate::lease::tests::scripted::kind;
    use crate::options::AcquireOptions;
    use crate::owner::Token;
    use crate::protocol::Description;

    const LEASE: Duration = Duration::from_secs(30);
    const AT_ONCE: Duration = Duration::from_millis(1);

    /// Returns a keeper that has taken one lease.
    fn keeper_of_one() -> (Worker, Arc<LeaseState>) {
        let kept = |batch: &Batch| vec![Reply::Int(1); batch.len()];
        let backend = Scripted::new(move |sent| (AT_ONCE, Ok(kept(sent.batch))));
        let keeper = Keeper::default();
        let timeout = Duration::from_secs(1);
        let mut worker = Worker::new(&keeper, backend, timeout, Observers::default());
        let options = AcquireOptions::new(LEASE);
        let value = kind().value(&Owner::random(), Description::default());
        let granted = Granted::new(BootInstant::now(), LEASE);
        let state = Arc::new(LeaseState::new(
            kind(),
            value,
            Token::new(1),
            &options,
            granted,
        ));
        keeper.keep(state.clone());
        worker.round();
        (worker, state)
    }

    /// The keeper handled outcomes only before it slept, and a stream of
    /// messages kept it awake.
    #[tokio::test(start_paused = true)]
    async fn renewals_count_under_a_stream_of_messages() {
        let (mut worker, state) = keeper_of_one();
        for _ in 0..LEASE.as_millis() * 2 {
            worker.round();
            tokio::time::advance(AT_ONCE).await;
            // Sends due renewals and lets replies arrive.
            tokio::task::yield_now().await;
        }
        assert!(state.is_valid());
    }

    /// A renewal's timeout is a quarter of the lease. A short lease shortened
    /// it for every lease of the same pipeline.
    #[tokio::test(start_paused = true)]
    async fn short_lease_does_not_limit_other_renewals() {
        let (mut worker, long) = keeper_of_one();
        worker.timers.clear();
        let (now, short) = (BootInstant::now(), Duration::from_secs(2));
        let (options, granted) = (AcquireOptions::new(short), Granted::new(now, short));
        let value = kind().value(&Owner::random(), Description::default());
        let short = LeaseState::new(kind(), value, Token::new(2), &options, granted);
        for state in [long, Arc::new(short)] {
            let (due, failures) = (now, 0);
            let renew = TimerKind::Renew { due, failures };
            worker.timers.push(now, state, renew);
        }
        worker.run_due();
        assert_eq!(worker.jobs.len(), 2, "each length needs its own pipeline");
    }

    /// The message that a lock was revoked can arrive before the task that
    /// acquired it registers the lease. A fixed lease was then never verified.
    #[tokio::test(start_paused = true)]
    async fn revocation_before_registration_is_verified() {
        let (mut worker, _) = keeper_of_one();
        let mut options = AcquireOptions::new(LEASE);
        options.renewed = false;
        let value = kind().value(&Owner::random(), Description::default());
        worker.inbox.send(KeeperMsg::Verify(value.to_vec()));
        worker.round();
        assert_eq!(worker.jobs.len(), 0);
        let granted = Granted::new(BootInstant::now(), LEASE);
        let state = LeaseState::new(kind(), value, Token::new(2), &options, granted);
        worker.inbox.add(Arc::new(state), BootInstant::now());
        worker.round();
        assert_eq!(worker.jobs.len(), 1, "renewed at once");
    }

    /// An operator revokes the lock of a stuck holder, which must learn of it
    /// although its lease is not renewed.
    #[tokio::test(start_paused = true)]
    async fn revocation_of_a_stuck_holder_is_verified() {
        let (mut worker, state) = keeper_of_one();
        let limit = Duration::from_millis(1);
        state.progress.set_limit(Some(limit));
        tokio::time::advance(LEASE / 2).await;
        worker.round();
        assert!(state.progress.is_stuck());
        assert_eq!(worker.jobs.len(), 0, "not renewed");
        worker.inbox.send(KeeperMsg::Verify(state.value.to_vec()));
        worker.round();
        assert_eq!(worker.jobs.len(), 1, "verified");
    }

    /// Anyone who may publish can send such messages.
    #[tokio::test(start_paused = true)]
    async fn unknown_revocations_are_bounded() {
        let (mut worker, _) = keeper_of_one();
        for number in 0..10 * MAX_UNKNOWN_SUSPECTS {
            let value = number.to_string().into_bytes();
            worker.inbox.send(KeeperMsg::Verify(value));
            worker.round();
        }
        assert_eq!(worker.unknown_suspects.len(), MAX_UNKNOWN_SUSPECTS);
        assert!(worker.suspects.is_empty());
    }

    /// A lease that the holder found expired, just before the keeper did, was
    /// not released by a shutdown. A renewal without a reply may have been
    /// executed.
    #[tokio::test(start_paused = true)]
    async fn shutdown_releases_a_lease_just_expired() {
        let (mut worker, state) = keeper_of_one();
        tokio::time::advance(LEASE).await;
        assert!(!state.is_valid());
        let (done, _all_done) = oneshot::channel();
        worker.inbox.send(KeeperMsg::ShutDown(done));
        worker.round();
        assert_eq!(worker.jobs.len(), 1, "a release");
    }
}

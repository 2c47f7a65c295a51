//! The keeper: one thread per client that does what must happen whether or not the application is well.
//!
//! It renews leases, ends those whose deadline is here, cancels acquires of unknown outcome and gives
//! back what was dropped, and looks after a lease at once when this process is told that it may be gone.
//! Callers leave it orders in an [`Inbox`]; it is woken only when an order cannot wait until it would wake by itself. A lease
//! that ends before the keeper has seen it is taken out again, so a short one costs the keeper nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use super::agenda::{Agenda, EARLY, What};
use super::gate::Watched;
use super::give_back::{self, Claim};
use super::held::{Ending, Held, State};
use super::inbox::{Inbox, NewLease, Taken};
use super::renewal::{self, Due, Outcome, next_beat};
use crate::backend::{Backend, Backoff, Channel, Listener, PubSubEvent};
use crate::error::Loss;
use crate::options::margin;
use crate::owner::Owner;
use crate::protocol::{RenewReply, process_channel};
use crate::time::BootInstant;

/// How many renewals one pipeline carries.
const BATCH: usize = 500;

/// How often lines of tasks are looked at.
const WATCH: Duration = Duration::from_secs(1);

/// How long outstanding work may take once nobody is left who could ask for more.
const FAREWELL: Duration = Duration::from_secs(5);

/// The way to give the keeper orders.
#[derive(Clone, Default)]
pub(crate) struct Keeper {
    inbox: Arc<Inbox<Order, Arc<Held>>>,
}

enum Order {
    GiveBack(Arc<Held>),
    Cancel(Claim),
    Recount(Arc<Held>),
    /// Renew what stands on the server as this value: it may be gone.
    Doubt(Vec<u8>),
    Watch(Weak<dyn Watched>),
    Shutdown(oneshot::Sender<()>),
}

impl Keeper {
    /// Looks after a lease, from its first renewal or its deadline on at the latest.
    pub(super) fn keep(&self, held: Arc<Held>) -> NewLease {
        let due = match held.state() {
            // Also the end is the keeper's to announce (invariant 4).
            State::Valid { deadline } => held.first_renewal.min(deadline.saturating_sub(EARLY)),
            State::Ended(_) => held.first_renewal,
        };
        self.inbox.add(held, due)
    }

    /// Looks after a line of tasks, as long as there is one.
    pub(super) fn watch(&self, line: Weak<dyn Watched>) {
        self.inbox.order(Order::Watch(line));
    }

    /// Says that a lease has ended.
    pub(super) fn forget(&self, lease: NewLease) {
        self.inbox.remove(lease);
    }

    /// Releases a lease whose guard is gone. Never blocks, fails or needs a runtime.
    pub(super) fn give_back(&self, held: Arc<Held>) {
        self.inbox.order(Order::GiveBack(held));
    }

    /// Sees to it that an acquire of unknown outcome comes to nothing.
    pub(super) fn cancel(&self, claim: Claim) {
        self.inbox.order(Order::Cancel(claim));
    }

    /// Shows others how often a lock has been entered, where that can be seen.
    pub(super) fn recount(&self, held: Arc<Held>) {
        if held.kind.hold_count().is_some() && held.begin_recount() {
            self.inbox.order(Order::Recount(held));
        }
    }

    /// Gives everything back; returns when it is done.
    pub(super) async fn shutdown(&self) {
        let (done, all_done) = oneshot::channel();
        self.inbox.order(Order::Shutdown(done));
        // An error means that the keeper has ended, and nothing is left to wait for.
        let _ = all_done.await;
    }

    /// Says that no more orders will come.
    pub(super) fn close(&self) {
        self.inbox.close();
    }

    /// The keeper's work, for whoever runs it; ends some time after [`close`](Self::close).
    pub(crate) async fn work(self, backend: Arc<dyn Backend>, timeout: Duration) {
        let told = be_told(self.inbox.clone(), backend.clone());
        let worker = Worker::new(self.inbox, backend, timeout);
        tokio::select! {
            biased;
            () = worker.run() => {}
            () = told => {}
        }
    }
}

/// Hears what this process is told by those who take its locks by force. What they say is only a reason to look.
async fn be_told(inbox: Arc<Inbox<Order, Arc<Held>>>, backend: Arc<dyn Backend>) {
    let (channel, slot) = process_channel(&Owner::process());
    let channel = Channel::Sharded(channel.into_bytes());
    let ear = Arc::new(Ear(Arc::downgrade(&inbox)));
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let _subscription = loop {
        let subscribing = backend.subscribe(channel.clone(), slot, ear.clone());
        match subscribing.await {
            Ok(subscription) => break subscription,
            Err(failure) => {
                tracing::warn!(%failure, "locks taken by force are noticed at the next renewal only");
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    };
    std::future::pending::<()>().await;
}

/// Owns nothing: whoever lets go of it must not find itself ending leases.
struct Ear(Weak<Inbox<Order, Arc<Held>>>);

impl Listener for Ear {
    fn on_event(&self, event: PubSubEvent<'_>) {
        if let (PubSubEvent::Message { text, .. }, Some(inbox)) = (event, self.0.upgrade()) {
            inbox.order(Order::Doubt(text.to_vec()));
        }
    }
}

struct Worker {
    inbox: Arc<Inbox<Order, Arc<Held>>>,
    backend: Arc<dyn Backend>,
    timeout: Duration,
    agenda: Agenda,
    /// Marks of leases that may be gone, and are yet to be looked after.
    doubted: Vec<Vec<u8>>,
    /// Lines of tasks, and when they are looked at again.
    watched: Vec<Weak<dyn Watched>>,
    next_watch: BootInstant,
    /// Requests under way. Renewals report back; the others report to nobody.
    jobs: JoinSet<Vec<Outcome>>,
    /// Who waits for everything to be given back; not empty from the first shutdown on.
    shutting_down: Vec<Option<oneshot::Sender<()>>>,
}

impl Worker {
    fn new(
        inbox: Arc<Inbox<Order, Arc<Held>>>,
        backend: Arc<dyn Backend>,
        timeout: Duration,
    ) -> Self {
        Self {
            inbox,
            backend,
            doubted: Vec::new(),
            watched: Vec::new(),
            next_watch: BootInstant::NEVER,
            timeout,
            agenda: Agenda::default(),
            jobs: JoinSet::new(),
            shutting_down: Vec::new(),
        }
    }

    async fn run(mut self) {
        let mut give_up = BootInstant::NEVER;
        loop {
            let is_last = self.round();
            if is_last && give_up == BootInstant::NEVER {
                give_up = BootInstant::now() + FAREWELL;
            }
            if is_last && (self.jobs.is_empty() || BootInstant::now() >= give_up) {
                return;
            }
            let next = self.agenda.next().min(give_up).min(self.next_watch);
            match self.inbox.may_sleep_until(next) {
                true => self.sleep_until(next).await,
                // Orders that keep coming must not keep requests from being sent.
                false => tokio::task::yield_now().await,
            }
        }
    }

    /// Takes in what has ended and what was ordered, and begins what is due; returns whether no more orders
    /// will come.
    fn round(&mut self) -> bool {
        // Also while orders keep coming: a renewal counts when its outcome is taken in.
        while let Some(finished) = self.jobs.try_join_next() {
            self.finish(finished);
        }
        let Taken {
            orders,
            leases,
            is_last,
        } = self.inbox.take();
        for lease in leases {
            self.keep(lease);
        }
        for order in orders {
            self.accept(order);
        }
        self.look_after_doubted();
        self.watch_lines();
        self.do_what_is_due();
        if self.jobs.is_empty() {
            self.tell_that_all_is_given_back();
        }
        is_last
    }

    async fn sleep_until(&mut self, next: BootInstant) {
        tokio::select! {
            biased;
            Some(finished) = self.jobs.join_next() => self.finish(finished),
            () = self.inbox.woken() => {}
            () = tokio::time::sleep_until(next.as_timer()) => {}
        }
    }

    fn finish(&mut self, finished: Result<Vec<Outcome>, JoinError>) {
        match finished {
            Ok(outcomes) => self.take_in(outcomes),
            Err(error) => tracing::error!(%error, "BUG: a job of the keeper failed"),
        }
    }

    fn keep(&mut self, held: Arc<Held>) {
        match self.shutting_down.is_empty() {
            true => self.agenda.add(held),
            false => self.end_for_shutdown(held),
        }
    }

    fn accept(&mut self, order: Order) {
        match order {
            Order::GiveBack(held) => self.give_back(held),
            Order::Cancel(claim) => {
                let job = give_back::cancel(claim, self.backend.clone(), self.timeout);
                self.jobs.spawn(report_nothing(job));
            }
            Order::Recount(held) => {
                let job = renewal::recount(held, self.backend.clone(), self.timeout);
                self.jobs.spawn(report_nothing(job));
            }
            Order::Doubt(value) => self.doubted.push(value),
            Order::Watch(line) => self.watched.push(line),
            Order::Shutdown(done) => {
                self.shutting_down.push(Some(done));
                for held in self.agenda.clear() {
                    self.end_for_shutdown(held);
                }
            }
        }
    }

    /// Has them renewed now: the server then says that they are gone. One that is being renewed has its turn after that.
    fn look_after_doubted(&mut self) {
        let now = BootInstant::now();
        let agenda = &mut self.agenda;
        self.doubted.retain(|value| !agenda.hurry(value, now));
    }

    fn watch_lines(&mut self) {
        if self.watched.is_empty() {
            self.next_watch = BootInstant::NEVER;
            return;
        }
        let now = BootInstant::now();
        if self.next_watch == BootInstant::NEVER {
            self.next_watch = now + WATCH;
        } else if self.next_watch <= now {
            self.next_watch = now + WATCH;
            self.watched
                .retain(|line| line.upgrade().is_some_and(Watched::watch));
        }
    }

    fn end_for_shutdown(&mut self, held: Arc<Held>) {
        if held.end(Ending::Lost(Loss::ShutDown)) {
            self.give_back(held);
        }
    }

    fn give_back(&mut self, held: Arc<Held>) {
        let job = give_back::release(held, self.backend.clone(), self.timeout);
        self.jobs.spawn(report_nothing(job));
    }

    fn tell_that_all_is_given_back(&mut self) {
        for done in self.shutting_down.iter_mut().filter_map(Option::take) {
            let _ = done.send(());
        }
    }

    /// Ends what is over, and sends off renewals in batches.
    fn do_what_is_due(&mut self) {
        let now = BootInstant::now();
        let mut batches: BTreeMap<_, Vec<Due>> = BTreeMap::new();
        for (held, what) in self.agenda.take_due(now) {
            match what {
                What::Expire => self.look_at_deadline(held, now),
                // A task that was handed the lock and does not claim it has it for what is left of the lease.
                What::Renew { failures } if held.is_valid() && held.is_unclaimed() => {
                    let again = What::Renew { failures };
                    self.agenda.push(now + retry_pause(&held), held, again);
                }
                What::Renew { failures } => {
                    let node = self.backend.node(held.kind.slot());
                    let batch = (node, failures, held.replica_ack);
                    batches
                        .entry(batch)
                        .or_default()
                        .extend(Due::now(held, failures));
                }
            }
        }
        for mut batch in batches.into_values() {
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(BATCH));
                let job = renewal::renew(batch, self.backend.clone(), self.timeout);
                self.jobs.spawn(job);
                batch = rest;
            }
        }
    }

    /// Ends a lease whose deadline is here (invariant 4), or looks again when it has moved on.
    fn look_at_deadline(&mut self, held: Arc<Held>, now: BootInstant) {
        match held.state() {
            State::Valid { deadline } if deadline.saturating_sub(EARLY) > now => {
                self.agenda.watch(deadline, held);
            }
            State::Valid { .. } if held.expire() => self.lose(held),
            // Whoever checked it first has ended it.
            State::Ended(Ending::Lost(Loss::Expired | Loss::AtMost)) => self.lose(held),
            _ => {}
        }
    }

    /// A renewal whose answer was lost may have been executed: the server would keep the lock for
    /// nobody, so it is given back; later than the margin, which belongs to those who must stop.
    fn lose(&mut self, held: Arc<Held>) {
        tracing::warn!(lock = held.kind.name(), token = %held.token, "lease lost at its deadline");
        let (backend, timeout) = (self.backend.clone(), self.timeout);
        self.jobs.spawn(report_nothing(async move {
            tokio::time::sleep(margin(held.lease) + held.lease / 10).await;
            give_back::release(held, backend, timeout).await;
        }));
    }

    fn take_in(&mut self, outcomes: Vec<Outcome>) {
        for Outcome { due, sent, renewed } in outcomes {
            let Due {
                held,
                lease,
                capped,
                failures,
            } = due;
            match renewed {
                Ok(renewed @ (RenewReply::Renewed | RenewReply::OnMajority)) => {
                    held.confirm(sent, lease, capped);
                    if renewed == RenewReply::OnMajority {
                        let job = renewal::repair(held.clone(), self.backend.clone(), self.timeout);
                        self.jobs.spawn(report_nothing(job));
                    }
                    if held.renewed {
                        let next = What::Renew { failures: 0 };
                        self.agenda.push(next_beat(sent, lease), held, next);
                    }
                }
                Ok(RenewReply::NotOwner) => {
                    if held.end(Ending::Lost(Loss::Revoked)) {
                        tracing::warn!(lock = held.kind.name(), token = %held.token, "lease taken");
                    }
                }
                Err(failure) => {
                    tracing::debug!(lock = held.kind.name(), %failure, "renewal failed");
                    let failures = failures + 1;
                    let again = What::Renew { failures };
                    let due = BootInstant::now() + retry_pause(&held);
                    self.agenda.push(due, held, again);
                }
            }
        }
    }
}

async fn report_nothing(job: impl Future<Output = ()>) -> Vec<Outcome> {
    job.await;
    Vec::new()
}

/// When a renewal that could not be made is tried again.
fn retry_pause(held: &Held) -> Duration {
    (held.lease / 20).min(Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::super::held::Granted;
    use super::super::tests::kind;
    use super::*;
    use crate::backend::scripted::Scripted;
    use crate::backend::{Batch, Reply};
    use crate::options::AcquireOptions;
    use crate::owner::Token;

    const LEASE: Duration = Duration::from_secs(30);
    const AT_ONCE: Duration = Duration::from_millis(1);

    /// A keeper that has taken up one lease.
    fn keeper_of_one() -> (Worker, Arc<Held>) {
        let kept = |batch: &Batch| vec![Reply::Int(1); batch.len()];
        let backend = Scripted::new(move |sent| (AT_ONCE, Ok(kept(sent.batch))));
        let keeper = Keeper::default();
        let mut worker = Worker::new(keeper.inbox.clone(), backend, Duration::from_secs(1));
        let options = AcquireOptions::new(LEASE);
        let value = kind().value(&Owner::random(), 0, "");
        let granted = Granted::new(BootInstant::now(), LEASE);
        let held = Arc::new(Held::new(kind(), value, Token::new(1), &options, granted));
        keeper.keep(held.clone());
        worker.round();
        (worker, held)
    }

    /// Outcomes were taken in by a keeper that slept, and orders that kept coming kept it awake.
    #[tokio::test(start_paused = true)]
    async fn renewals_count_while_orders_pour_in() {
        let (mut worker, held) = keeper_of_one();
        for _ in 0..LEASE.as_millis() * 2 {
            worker.round();
            tokio::time::advance(AT_ONCE).await;
            // Sends what is due, and lets replies arrive.
            tokio::task::yield_now().await;
        }
        assert!(held.is_valid());
    }

    /// A lease that had ended while no task claimed it was looked at again and again.
    #[tokio::test(start_paused = true)]
    async fn ended_lease_that_is_unclaimed_is_forgotten() {
        let (mut worker, held) = keeper_of_one();
        held.set_unclaimed(true);
        held.end(Ending::Released);
        for _ in 0..10 {
            tokio::time::advance(LEASE / 5).await;
            worker.round();
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }
}

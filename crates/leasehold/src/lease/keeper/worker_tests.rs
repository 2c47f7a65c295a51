//! Tests of the keeper's thread, round by round.

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

/// A renewal's timeout is a quarter of its lease. A short lease shortened
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
        let renew = TimerKind::Renew { failures: 0 };
        worker.timers.push(now, state, renew);
    }
    worker.run_due();
    assert_eq!(worker.jobs.len(), 2, "each length needs its own pipeline");
}

/// The message that a lock was revoked can arrive before the task that acquired
/// it registers the lease. A fixed lease was then never verified.
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

/// A lease that its holder found expired, just before the keeper did, was not
/// released by a shutdown. A renewal without a reply may have been executed.
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

//! The cases of the contract.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use leasehold::{Error, Loss};

use super::{SCHEDULING, Timing};
use crate::support::callers::Caller;
use crate::support::contract::{ExclusiveLock, Lock, LockOf, ShutDown};
use crate::support::deployment::Deployment;
use crate::support::{AMPLE, eventually, loss_of, name, wait_for_renewal};

async fn pair<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) -> (Lock<K, D::Caller>, Lock<K, D::Caller>, String) {
    let name = name();
    let one = deployment.with_lease(timing.lease).await;
    let other = deployment.with_lease(timing.lease).await;
    let ours = Lock::with_name(&one, &name);
    let theirs = Lock::with_name(&other, &name);
    (ours, theirs, name)
}

/// Returns the remaining lease of the holder, as the server reports it to a
/// client that does not wait.
async fn lease_remaining<K: ExclusiveLock, U: Caller>(theirs: &Lock<K, U>) -> Duration {
    let error = theirs.lock().timeout(Duration::ZERO).await.unwrap_err();
    let Error::Timeout {
        holder: Some(holder),
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    holder.lease_remaining.expect("a lease")
}

pub(super) async fn lock_excludes_others_until_released<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let guard = ours.lock().await.unwrap();
    let waiter =
        tokio::spawn(async move { theirs.lock().await.map(|guard| (Instant::now(), guard)) });
    tokio::time::sleep(timing.observed).await;
    assert!(!waiter.is_finished(), "two holders");
    let released = Instant::now();
    guard.release().await.unwrap();
    let (got, _guard) = waiter.await.unwrap().unwrap();
    assert!(got > released, "two holders");
    assert!(
        (got - released) < Duration::from_millis(600) + timing.tolerance,
        "waited {:?}",
        got - released
    );
}

pub(super) async fn try_lock_while_held_is_busy<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let guard = ours.try_lock().await.unwrap().expect("free");
    assert!(theirs.try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(theirs.try_lock().await.unwrap().is_some());
}

pub(super) async fn timeout_is_respected<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let _guard = ours.lock().await.unwrap();
    for wait in [0, 1, 100, 400].map(Duration::from_millis) {
        let start = Instant::now();
        let error = theirs.lock().timeout(wait).await.unwrap_err();
        let took = start.elapsed();
        // A stall breaks the connection for the subscription. The waiter then
        // returns that error in place of the timeout.
        let broken = matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_));
        let stalled = broken && took > wait + SCHEDULING;
        assert!(
            stalled || matches!(error, Error::Timeout { .. }),
            "{error:?}"
        );
        assert!(
            took < wait + SCHEDULING + timing.tolerance,
            "{wait:?} took {took:?}"
        );
        assert!(took >= wait, "{wait:?} took {took:?}");
    }
}

pub(super) async fn timeout_names_the_holder<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, name) = pair::<D, K>(deployment, timing).await;
    let _guard = ours.lock().note("the night's import").await.unwrap();
    // Connect first, so that the wait is long enough for a reply.
    assert!(theirs.try_lock().await.unwrap().is_none());
    let error = theirs.lock().timeout(timing.lease / 2).await.unwrap_err();
    let text = error.to_string();
    let Error::Timeout {
        holder: Some(holder),
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(holder.process.pid, Some(std::process::id()));
    assert_eq!(holder.process.note.as_deref(), Some("the night's import"));
    assert!(
        holder
            .lease_remaining
            .is_some_and(|left| left <= timing.lease),
        "{holder:?}"
    );
    let since = holder.process.since.unwrap().elapsed().unwrap();
    assert!(
        since < Duration::from_secs(5) + timing.tolerance,
        "{since:?}"
    );
    assert!(
        text.contains(&name) && text.contains("the night's import"),
        "{text}"
    );
}

pub(super) async fn fixed_lease_expires<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let requested = Instant::now();
    let guard = ours.lock().fixed_lease(timing.fixed).await.unwrap();
    let start = Instant::now();
    let deadline = guard.named_lease().deadline();
    let contender = tokio::spawn(async move {
        let wait = timing.fixed + timing.lease + timing.tolerance;
        let taken = theirs.lock().timeout(wait).await;
        (Instant::now(), taken)
    });
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    let took = start.elapsed();
    assert!(
        took <= timing.fixed + timing.tolerance,
        "lost after {took:?}"
    );
    assert!(requested.elapsed() >= timing.fixed / 2, "lost too early");
    assert!(guard.check().is_err());
    let (got, taken) = contender.await.unwrap();
    let _taken = taken.unwrap();
    assert!(got > deadline, "two holders");
}

pub(super) async fn lease_is_renewed<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let guard = ours.lock().await.unwrap();
    let first_end = Instant::now() + timing.lease;
    for _ in 0..timing.renewals {
        wait_for_renewal(&[&guard.named_lease()]).await;
        guard.check().unwrap();
        assert!(theirs.try_lock().await.unwrap().is_none());
    }
    let left = lease_remaining(&theirs).await;
    assert!(
        Instant::now() + left > first_end,
        "not renewed on the server"
    );
    guard.release().await.unwrap();
}

pub(super) async fn lease_option_sets_renewed_length<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    // Shorter than the client's lease, and long enough to survive a stall.
    let length = timing.lease * 2 / 5;
    let guard = ours.lock().lease(length).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < length * 3 {
        let remaining = lease_remaining(&theirs).await;
        assert!(remaining <= length, "{remaining:?} of {length:?}");
        guard.check().unwrap();
        assert!(guard.named_lease().remaining() <= length);
        tokio::time::sleep(length / 20).await;
    }
    guard.release().await.unwrap();
}

pub(super) async fn fixed_lease_is_extended<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let guard = ours.lock().fixed_lease(timing.lease).await.unwrap();
    guard.extend(timing.lease * 4).await.unwrap();
    assert!(guard.named_lease().remaining() > timing.lease * 2);
    // The nodes beyond a quorum's majority extend the lease a little later, and
    // any of them may reply.
    let start = Instant::now();
    while lease_remaining(&theirs).await <= timing.lease * 2 {
        assert!(start.elapsed() < AMPLE, "not extended on the server");
    }
    tokio::time::sleep(timing.observed).await;
    guard.check().unwrap();
    assert!(theirs.try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

pub(super) async fn release_after_loss_fails<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, name) = pair::<D, K>(deployment, timing).await;
    let lost = ours.lock().fixed_lease(timing.fixed).await.unwrap();
    let other = theirs.lock().await.unwrap();
    assert_eq!(loss_of(lost.release().await), Some(Loss::Expired));
    other.check().unwrap();
    assert!(deployment.exists(&name));
    other.release().await.unwrap();
}

pub(super) async fn dropped_guard_releases<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, _, name) = pair::<D, K>(deployment, timing).await;
    let guard = ours.lock().await.unwrap();
    // Outside of any runtime, where a destructor may also run.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let start = Instant::now();
    eventually("the lock is released", || !deployment.exists(&name)).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1) + timing.tolerance, "{took:?}");
}

pub(super) async fn run_releases_on_every_exit<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, name) = pair::<D, K>(deployment, timing).await;
    let value = ours
        .lock()
        .run(|leases| async move { leases[0].token().as_u64() })
        .await
        .unwrap();
    assert!(value > 0);
    assert!(!deployment.exists(&name));

    let panicking = ours.clone();
    let work = async move {
        let outcome: Result<(), Error> = panicking
            .lock()
            // Not `panic!`: printing six backtraces delays every renewal by a
            // second.
            .run(|_| async { resume_unwind(Box::new("panic in the work")) })
            .await;
        outcome
    };
    assert!(tokio::spawn(work).await.unwrap_err().is_panic());
    assert!(!deployment.exists(&name), "held after a panic");

    let (begin, requested) = tokio::sync::oneshot::channel();
    let forever = ours.lock().run(|_| async {
        begin.send(()).expect("the test waits");
        std::future::pending::<()>().await;
    });
    tokio::select! {
        ended = forever => panic!("{ended:?}"),
        requested = requested => requested.unwrap(),
    }
    let wait = Duration::from_secs(1) + timing.tolerance;
    let _taken = theirs.lock().timeout(wait).await.unwrap();
}

pub(super) async fn at_least_excludes_others_after_release<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, name) = pair::<D, K>(deployment, timing).await;
    let minimum = Duration::from_millis(900);
    let early = minimum - Duration::from_millis(5);
    let start = Instant::now();
    let guard = ours.lock().at_least(minimum).await.unwrap();
    guard.release().await.unwrap();
    let taken = theirs.try_lock().await.unwrap();
    // A stall may be longer than `minimum`.
    assert!(
        taken.is_none() || start.elapsed() >= early,
        "free too early"
    );
    drop(taken);
    let _other = theirs.lock().await.unwrap();
    let took = start.elapsed();
    assert!(took >= early, "free after {took:?}");
    assert!(
        took < minimum + Duration::from_millis(1500) + timing.tolerance,
        "free after {took:?}"
    );
    assert!(deployment.exists(&name));
}

pub(super) async fn at_most_ends_renewed_lease<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let requested = Instant::now();
    let guard = ours.lock().at_most(timing.at_most).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::AtMost));
    let took = start.elapsed();
    assert!(
        took <= timing.at_most + SCHEDULING + timing.tolerance,
        "ended after {took:?}"
    );
    let took = requested.elapsed();
    assert!(took > timing.at_most * 9 / 10, "ended after {took:?}");
    let wait = timing.lease + timing.tolerance;
    let _taken = theirs.lock().timeout(wait).await.unwrap();
}

pub(super) async fn renewal_stays_within_at_most<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, _, _) = pair::<D, K>(deployment, timing).await;
    let limit = timing.lease * 5 / 4;
    let guard = ours.lock().at_most(limit).await.unwrap();
    let latest = Instant::now() + limit;
    wait_for_renewal(&[&guard.named_lease()]).await;
    assert!(guard.named_lease().deadline() <= latest, "beyond the limit");
    guard.release().await.unwrap();
}

pub(super) async fn shutdown_releases_all_locks<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let client = deployment.with_lease(timing.lease).await;
    let names: Vec<_> = (0..50).map(|_| name()).collect();
    let mut guards = Vec::new();
    let lock = |name: &str| Lock::<K, D::Caller>::with_name(&client, name).lock();
    for name in &names {
        guards.push(lock(name).await.unwrap());
    }
    let other = deployment.with_lease(timing.lease).await;
    let waiter = Lock::<K, D::Caller>::with_name(&other, &names[0]);
    let limit = Duration::from_secs(5) + timing.tolerance;
    let shutdown = D::Caller::complete_in_place(client.shutdown(limit));
    shutdown.await.unwrap();
    for name in &names {
        assert!(!deployment.exists(name), "{name} is still held");
        // The check blocks, and the other cases run on the same task.
        tokio::task::yield_now().await;
    }
    for guard in guards {
        assert_eq!(loss_of(guard.release().await), Some(Loss::ShutDown));
    }
    let refused = lock(&names[0]).await;
    assert!(matches!(refused, Err(Error::ShutDown)));
    let _free = waiter.try_lock().await.unwrap().expect("free");
}

pub(super) async fn tokens_increase<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    let (ours, theirs, _) = pair::<D, K>(deployment, timing).await;
    let mut last = 0;
    for turn in 0..100 {
        let side = if turn % 3 == 0 { &ours } else { &theirs };
        let guard = side.lock().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().await.unwrap();
    }
}

//! The cases of the contract.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use leasehold::{Error, Loss, ReleaseOutcome, ShutdownOutcome};

use super::{Pace, SCHEDULING};
use crate::support::contract::{Closes, Exclusive, Holding};
use crate::support::deployment::Deployment;
use crate::support::{AMPLE, eventually, name, until_renewed};

async fn pair<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) -> (K, K, String) {
    let name = name();
    let one = site.with_lease(pace.lease).await;
    let other = site.with_lease(pace.lease).await;
    (K::named(&one, &name), K::named(&other, &name), name)
}

/// How long the holder has the lock still, as the server tells a client that does not wait.
async fn lease_remaining<C: 'static, K: Exclusive<C>>(theirs: &K) -> Duration {
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

pub(super) async fn excludes_others_until_released<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().await.unwrap();
    let waiter =
        tokio::spawn(async move { theirs.lock().await.map(|guard| (Instant::now(), guard)) });
    tokio::time::sleep(pace.watched).await;
    assert!(!waiter.is_finished(), "two holders");
    let released = Instant::now();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let (got, _guard) = waiter.await.unwrap().unwrap();
    assert!(got > released, "two holders");
    assert!(
        (got - released) < Duration::from_millis(600) + pace.excused,
        "waited {:?}",
        got - released
    );
}

pub(super) async fn try_lock_answers_none_while_held<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.try_lock().await.unwrap().expect("free");
    assert!(theirs.try_lock().await.unwrap().is_none());
    let _ = guard.release().await.unwrap();
    assert!(theirs.try_lock().await.unwrap().is_some());
}

pub(super) async fn a_wait_is_kept_to<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let _guard = ours.lock().await.unwrap();
    for wait in [0, 1, 100, 400].map(Duration::from_millis) {
        let start = Instant::now();
        let error = theirs.lock().timeout(wait).await.unwrap_err();
        let took = start.elapsed();
        // A stall breaks the connection on which the client subscribes: a waiter reports that in place of the timeout.
        let broken = matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_));
        let stalled = broken && took > wait + SCHEDULING;
        assert!(
            stalled || matches!(error, Error::Timeout { .. }),
            "{error:?}"
        );
        assert!(
            took < wait + SCHEDULING + pace.excused,
            "{wait:?} took {took:?}"
        );
        assert!(took >= wait, "{wait:?} took {took:?}");
    }
}

pub(super) async fn a_timeout_says_who_holds_it<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let _guard = ours.lock().note("the night's import").await.unwrap();
    // Connects, so that the wait is long enough for a reply.
    assert!(theirs.try_lock().await.unwrap().is_none());
    let error = theirs.lock().timeout(pace.lease / 2).await.unwrap_err();
    let text = error.to_string();
    let Error::Timeout {
        holder: Some(holder),
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.note.as_deref(), Some("the night's import"));
    assert!(
        holder
            .lease_remaining
            .is_some_and(|left| left <= pace.lease),
        "{holder:?}"
    );
    let since = holder.since.unwrap().elapsed().unwrap();
    assert!(since < Duration::from_secs(5) + pace.excused, "{since:?}");
    assert!(
        text.contains(&name) && text.contains("the night's import"),
        "{text}"
    );
}

pub(super) async fn a_fixed_lease_ends<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let begun = Instant::now();
    let guard = ours.lock().fixed_lease(pace.fixed).await.unwrap();
    let (start, deadline) = (Instant::now(), guard.named().deadline());
    let contender = tokio::spawn(async move {
        let wait = pace.fixed + pace.lease + pace.excused;
        let taken = theirs.lock().timeout(wait).await;
        (Instant::now(), taken)
    });
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    let took = start.elapsed();
    assert!(took <= pace.fixed + pace.excused, "lost after {took:?}");
    assert!(begun.elapsed() >= pace.fixed / 2, "lost too early");
    assert!(guard.check().is_err());
    let (got, taken) = contender.await.unwrap();
    let _taken = taken.unwrap();
    assert!(got > deadline, "two holders");
}

pub(super) async fn a_lease_is_renewed<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().await.unwrap();
    let first_end = Instant::now() + pace.lease;
    for _ in 0..pace.renewals {
        until_renewed(&[&guard.named()]).await;
        guard.check().unwrap();
        assert!(theirs.try_lock().await.unwrap().is_none());
    }
    let left = lease_remaining(&theirs).await;
    assert!(
        Instant::now() + left > first_end,
        "not renewed on the server"
    );
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

pub(super) async fn a_fixed_lease_can_be_extended<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().fixed_lease(pace.lease).await.unwrap();
    guard.extend(pace.lease * 4).await.unwrap();
    assert!(guard.named().remaining() > pace.lease * 2);
    // Nodes of a quorum beyond the majority learn of it a little later, and any of them may be the one that replies.
    let start = Instant::now();
    while lease_remaining(&theirs).await <= pace.lease * 2 {
        assert!(start.elapsed() < AMPLE, "not extended on the server");
    }
    tokio::time::sleep(pace.watched).await;
    guard.check().unwrap();
    assert!(theirs.try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

pub(super) async fn releasing_what_was_lost_says_so_and_harms_nobody<
    D: Deployment,
    K: Exclusive<D::Client>,
>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let lost = ours.lock().fixed_lease(pace.fixed).await.unwrap();
    let other = theirs.lock().await.unwrap();
    assert_eq!(
        lost.release().await.unwrap(),
        ReleaseOutcome::AlreadyLost {
            loss: Loss::Expired
        }
    );
    other.check().unwrap();
    assert!(site.exists(&name));
    assert_eq!(other.release().await.unwrap(), ReleaseOutcome::Released);
}

pub(super) async fn dropping_releases<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, _, name) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().await.unwrap();
    // Outside of any runtime, as a destructor may run anywhere.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let start = Instant::now();
    eventually("released", || !site.exists(&name)).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1) + pace.excused, "{took:?}");
}

pub(super) async fn run_gives_back_on_every_way_out<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let value = ours
        .lock()
        .run(|leases| async move { leases[0].token().as_u64() })
        .await
        .unwrap();
    assert!(value > 0);
    assert!(!site.exists(&name));

    let panicking = ours.clone();
    let work = async move {
        let outcome: Result<(), Error> = panicking
            .lock()
            // Not `panic!`: printing six backtraces keeps every worker from its renewals for a second.
            .run(|_| async { resume_unwind(Box::new("in the work")) })
            .await;
        outcome
    };
    assert!(tokio::spawn(work).await.unwrap_err().is_panic());
    assert!(!site.exists(&name), "held after a panic");

    let (begin, begun) = tokio::sync::oneshot::channel();
    let forever = ours.lock().run(|_| async {
        begin.send(()).expect("the test waits");
        std::future::pending::<()>().await;
    });
    tokio::select! {
        ended = forever => panic!("{ended:?}"),
        begun = begun => begun.unwrap(),
    }
    let wait = Duration::from_secs(1) + pace.excused;
    let _taken = theirs.lock().timeout(wait).await.unwrap();
}

pub(super) async fn at_least_keeps_others_out_after_a_release<
    D: Deployment,
    K: Exclusive<D::Client>,
>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let kept = Duration::from_millis(900);
    let early = kept - Duration::from_millis(5);
    let start = Instant::now();
    let guard = ours.lock().at_least(kept).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let taken = theirs.try_lock().await.unwrap();
    // A stall may be longer than `kept`.
    assert!(taken.is_none() || start.elapsed() >= early, "free at once");
    drop(taken);
    let _other = theirs.lock().await.unwrap();
    let took = start.elapsed();
    assert!(took >= early, "free after {took:?}");
    assert!(
        took < kept + Duration::from_millis(1500) + pace.excused,
        "free after {took:?}"
    );
    assert!(site.exists(&name));
}

pub(super) async fn at_most_ends_a_renewed_lease<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let begun = Instant::now();
    let guard = ours.lock().at_most(pace.at_most).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::AtMost));
    let took = start.elapsed();
    assert!(
        took <= pace.at_most + SCHEDULING + pace.excused,
        "ended after {took:?}"
    );
    let took = begun.elapsed();
    assert!(took > pace.at_most * 9 / 10, "ended after {took:?}");
    let wait = pace.lease + pace.excused;
    let _taken = theirs.lock().timeout(wait).await.unwrap();
}

pub(super) async fn a_renewal_stays_within_at_most<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, _, _) = pair::<D, K>(site, pace).await;
    let limit = pace.lease * 5 / 4;
    let guard = ours.lock().at_most(limit).await.unwrap();
    let latest = Instant::now() + limit;
    until_renewed(&[&guard.named()]).await;
    assert!(guard.named().deadline() <= latest, "beyond the limit");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

pub(super) async fn shutdown_releases_all<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let client = site.with_lease(pace.lease).await;
    let names: Vec<_> = (0..50).map(|_| name()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(K::named(&client, name).lock().await.unwrap());
    }
    let waiter = K::named(&site.with_lease(pace.lease).await, &names[0]);
    let limit = Duration::from_secs(5) + pace.excused;
    assert_eq!(client.shutdown(limit).await, ShutdownOutcome::Released);
    for name in &names {
        assert!(!site.exists(name), "{name} is still held");
    }
    for guard in guards {
        assert_eq!(
            guard.release().await.unwrap(),
            ReleaseOutcome::AlreadyLost {
                loss: Loss::ShutDown
            }
        );
    }
    let refused = K::named(&client, &names[0]).lock().await;
    assert!(matches!(refused, Err(Error::ShutDown)));
    let _free = waiter.try_lock().await.unwrap().expect("free");
}

pub(super) async fn tokens_rise<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let mut last = 0;
    for turn in 0..100 {
        let side = if turn % 3 == 0 { &ours } else { &theirs };
        let guard = side.lock().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        let _ = guard.release().await.unwrap();
    }
}

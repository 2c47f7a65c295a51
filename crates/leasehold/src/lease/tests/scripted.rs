//! Renewal, loss and polling against a scripted server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::time::sleep;

use crate::backend::scripted::{Answer, Scripted, Sent, name_of};
use crate::backend::{Batch, Purpose, Reply, RequestError};
use crate::error::{Error, Loss};
use crate::lease::state::{EndReason, Granted, LeaseState, Validity};
use crate::lease::{Engine, Guard, Keeper, Limits};
use crate::observe::Observers;
use crate::options::{AcquireOptions, margin};
use crate::owner::{Owner, Token};
use crate::protocol::{Counters, Description, Keyspace, Kind, SingleKey};
use crate::time::BootInstant;

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(super) const REQUEST: Duration = Duration::from_secs(1);
pub(super) const AT_ONCE: Duration = Duration::from_millis(1);

pub(crate) fn kind() -> Arc<dyn Kind> {
    let keys = Keyspace::new("lock:", Counters::one())
        .unwrap()
        .lock("job")
        .unwrap();
    Arc::new(SingleKey::new(keys))
}

/// Returns an engine whose keeper runs beside the test, on the paused clock.
pub(crate) fn engine(backend: &Arc<Scripted>) -> Arc<Engine> {
    let keeper = Keeper::default();
    tokio::spawn(
        keeper
            .clone()
            .work(backend.clone(), REQUEST, Observers::default()),
    );
    let limits = Limits {
        request: REQUEST,
        outage: Duration::from_secs(10),
    };
    Arc::new(Engine::new(
        backend.clone(),
        keeper,
        limits,
        Observers::default(),
    ))
}

pub(super) async fn acquire(
    engine: &Arc<Engine>,
    options: &AcquireOptions,
) -> Result<Guard, Error> {
    let lease = engine.acquire(&kind(), options).await?;
    Ok(Guard::new(lease))
}

/// Returns the replies of a server that grants every request.
pub(super) fn granting(batch: &Batch) -> Vec<Reply> {
    replies(batch, &Reply::Nil, -2)
}

/// Returns the replies of a server whose lock another owner holds for `left`.
pub(super) fn busy(batch: &Batch, left: i64) -> Vec<Reply> {
    replies(batch, &Reply::Bytes(b"other".to_vec()), left)
}

fn replies(batch: &Batch, to_set: &Reply, to_pttl: i64) -> Vec<Reply> {
    let reply = |index| match name_of(batch, index).as_str() {
        "SET" => to_set.clone(),
        "PTTL" => Reply::Int(to_pttl),
        _ => Reply::Int(1),
    };
    (0..batch.len()).map(reply).collect()
}

pub(crate) fn yes(sent: &Sent<'_>) -> Answer {
    (AT_ONCE, Ok(granting(sent.batch)))
}

pub(super) fn no_reply() -> Answer {
    (LEASE * 100, Ok(Vec::new()))
}

#[tokio::test(start_paused = true)]
async fn deadline_counts_from_before_the_request() {
    let slow = Duration::from_millis(700);
    let backend = Scripted::new(move |sent| (slow, Ok(granting(sent.batch))));
    let before = BootInstant::now();
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    let end = BootInstant::now() + guard.remaining();
    assert_eq!(end.since(before), LEASE - margin(LEASE));
}

#[tokio::test(start_paused = true)]
async fn renewal_extends_deadline_from_its_send_time() {
    let renewed_at = Arc::new(Mutex::new(None));
    let seen = renewed_at.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "EVALSHA" => {
            *seen.lock() = Some(BootInstant::now());
            (Duration::from_millis(400), Ok(granting(sent.batch)))
        }
        _ => yes(sent),
    });
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    sleep(LEASE / 2).await;
    let sent = renewed_at.lock().expect("renewed in the first half");
    assert_eq!(
        (BootInstant::now() + guard.remaining()).since(sent),
        LEASE - margin(LEASE)
    );
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_do_not_lose_the_lease() {
    let failures = AtomicU32::new(0);
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "EVALSHA" if failures.fetch_add(1, Ordering::SeqCst) < 3 => {
            (AT_ONCE, Err(RequestError::Unknown("cut".into())))
        }
        _ => yes(sent),
    });
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    sleep(LEASE * 3).await;
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn loss_without_renewals_fires_at_the_deadline() {
    let backend = Scripted::new(|sent| match sent.name().as_str() {
        "EVALSHA" => no_reply(),
        _ => yes(sent),
    });
    let before = BootInstant::now();
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    let took = BootInstant::now().since(before);
    assert!(took <= LEASE - margin(LEASE), "lost after {took:?}");
    assert!(
        took >= LEASE - margin(LEASE) - Duration::from_millis(5),
        "lost after {took:?}"
    );
}

/// The keeper slept until the next renewal of another lease, past the deadline
/// of a shorter one.
#[tokio::test(start_paused = true)]
async fn loss_beside_other_leases_fires_in_time() {
    let backend = Scripted::new(yes);
    let engine = engine(&backend);
    let _other = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    sleep(LEASE).await;
    for millis in (20..300).step_by(7) {
        let mut options = AcquireOptions::new(LEASE);
        options.at_most = Some(Duration::from_millis(millis));
        // The keeper would take a renewed lease before its deadline anyway.
        options.renewed = false;
        let guard = acquire(&engine, &options).await.unwrap();
        let deadline = BootInstant::now() + guard.remaining();
        assert_eq!(guard.lost().await, Some(Loss::AtMost));
        assert!(BootInstant::now() <= deadline, "at most {millis} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn late_renewal_reply_does_not_revive_a_lease() {
    let late = LEASE / 4 - AT_ONCE;
    let renewals = AtomicU32::new(0);
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        // The renewal sent shortly before the deadline gets a late reply.
        "EVALSHA" if renewals.fetch_add(1, Ordering::SeqCst) == 0 => no_reply(),
        "EVALSHA" => (late, Ok(granting(sent.batch))),
        _ => yes(sent),
    });
    let options = AcquireOptions::new(Duration::from_secs(1));
    let guard = acquire(&engine(&backend), &options).await.unwrap();
    assert!(guard.lost().await.is_some());
    sleep(LEASE).await;
    assert!(guard.check().is_err());
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn confirmation_after_the_deadline_has_no_effect() {
    let (kind, options) = (kind(), AcquireOptions::new(LEASE));
    let value = kind.value(&Owner::random(), Description::default());
    let granted = Granted::new(BootInstant::now(), LEASE);
    let state = LeaseState::new(kind, value, Token::new(1), &options, granted);
    state.confirm(BootInstant::now() + LEASE / 2, LEASE);
    tokio::time::advance(LEASE * 3 / 2).await;
    state.confirm(BootInstant::now(), LEASE);
    assert_eq!(
        state.validity(),
        Validity::Ended(EndReason::Lost(Loss::Expired))
    );
    state.confirm(BootInstant::now(), LEASE);
    assert_eq!(
        state.validity(),
        Validity::Ended(EndReason::Lost(Loss::Expired))
    );
}

#[tokio::test(start_paused = true)]
async fn revoked_lease_is_lost_at_the_next_renewal() {
    let gone = |sent: &Sent<'_>| vec![Reply::Int(0); sent.batch.len()];
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "EVALSHA" => (AT_ONCE, Ok(gone(sent))),
        _ => yes(sent),
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    let start = BootInstant::now();
    assert_eq!(guard.lost().await, Some(Loss::Revoked));
    assert!(BootInstant::now().since(start) <= LEASE / 3);
    let Err(Error::Lost { name, loss }) = guard.check() else {
        panic!("it is lost");
    };
    assert_eq!((name.as_str(), loss), ("job", Loss::Revoked));
    let released = guard.release().await;
    assert!(
        matches!(
            released,
            Err(Error::Lost {
                loss: Loss::Revoked,
                ..
            })
        ),
        "{released:?}"
    );
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    let Err(Error::Lost { loss, .. }) = guard.run(|_| std::future::pending::<()>()).await else {
        panic!("it is lost");
    };
    assert_eq!(loss, Loss::Revoked);
}

#[tokio::test(start_paused = true)]
async fn waiter_is_woken_and_polls_once_a_second() {
    let free = Arc::new(AtomicBool::new(false));
    let polls = Arc::new(AtomicU32::new(0));
    let (is_free, seen) = (free.clone(), polls.clone());
    let backend = Scripted::new(move |sent| {
        if sent.name() == "PTTL" {
            assert_eq!(
                sent.purpose,
                Purpose::Keeper,
                "on the connection of the subscription"
            );
            seen.fetch_add(1, Ordering::SeqCst);
        }
        match is_free.load(Ordering::SeqCst) {
            true => yes(sent),
            false => (AT_ONCE, Ok(busy(sent.batch, 25_000))),
        }
    });
    let engine = engine(&backend);
    let waiter = tokio::spawn({
        let engine = engine.clone();
        async move { acquire(&engine, &AcquireOptions::new(LEASE)).await }
    });
    sleep(Duration::from_millis(10_500)).await;
    assert_eq!(polls.load(Ordering::SeqCst), 10);
    free.store(true, Ordering::SeqCst);
    backend.publish(b"");
    sleep(Duration::from_millis(5)).await;
    let guard = waiter.await.unwrap().unwrap();
    guard.release().await.unwrap();
    // The waiting task ends.
    sleep(AT_ONCE).await;
    let revocations = 1;
    assert_eq!(
        backend.subscriptions(),
        revocations,
        "a subscription is left"
    );
    assert!(engine.waits.is_empty(), "a registration is left");
}

#[tokio::test(start_paused = true)]
async fn poll_finds_the_expired_lease_of_a_dead_holder() {
    let start = BootInstant::now();
    let ends = start + Duration::from_millis(400);
    let backend = Scripted::new(move |sent| {
        let left = i64::try_from(ends.since(BootInstant::now()).as_millis()).unwrap();
        match left {
            0 => yes(sent),
            left => (AT_ONCE, Ok(busy(sent.batch, left))),
        }
    });
    let _guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    let took = BootInstant::now().since(start);
    assert!(took < Duration::from_millis(420), "found after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn at_most_limits_renewals_to_the_millisecond() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "EVALSHA" {
            let lease = String::from_utf8_lossy(sent.batch.args(0).last().unwrap()).into_owned();
            seen.lock()
                .push((BootInstant::now(), lease.parse::<u64>().unwrap()));
        }
        yes(sent)
    });
    let mut options = AcquireOptions::new(LEASE);
    options.at_most = Some(LEASE * 2);
    let start = BootInstant::now();
    let guard = acquire(&engine(&backend), &options).await.unwrap();
    assert_eq!(guard.lost().await, Some(Loss::AtMost));
    assert!(BootInstant::now().since(start) <= LEASE * 2);
    for (at, lease) in asked.lock().iter() {
        let end = at.since(start) + Duration::from_millis(*lease);
        assert!(end <= LEASE * 2 + AT_ONCE, "kept until {end:?}");
    }
}

/// The waiting task, which had no reply yet, hid the caller's failed attempt.
#[tokio::test(start_paused = true)]
async fn timeout_without_any_reply_is_no_busy_lock() {
    let backend = Scripted::new(|_| no_reply());
    let mut options = AcquireOptions::new(LEASE);
    options.timeout = Some(REQUEST + REQUEST / 2);
    let error = acquire(&engine(&backend), &options).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn outage_beyond_the_limit_is_reported() {
    let backend = Scripted::new(|_| (AT_ONCE, Err(RequestError::Unreachable("down".into()))));
    let start = BootInstant::now();
    let error = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let took = BootInstant::now().since(start);
    assert!(
        took > Duration::from_secs(10) && took < Duration::from_secs(12),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_renewed_in_spread_pipelines() {
    // When each pipeline was sent, and its number of renewals.
    let sent = Arc::new(Mutex::new(Vec::new()));
    let noted = sent.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "EVALSHA" {
            noted.lock().push((BootInstant::now(), sent.batch.len()));
        }
        yes(sent)
    });
    let engine = engine(&backend);
    let acquiring: Vec<_> = (0..100_000)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(
                async move { acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap() },
            )
        })
        .collect();
    let mut guards = Vec::new();
    for acquired in acquiring {
        guards.push(acquired.await.unwrap());
    }
    sleep(LEASE).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
    let sent = sent.lock();
    let (pipelines, renewals) = (
        sent.len(),
        sent.iter().map(|(_, count)| count).sum::<usize>(),
    );
    assert!(renewals >= 200_000, "{renewals} renewals");
    assert!(
        pipelines <= renewals / 300,
        "{pipelines} pipelines for {renewals} renewals"
    );
    let mut at_once = BTreeMap::new();
    for (moment, count) in sent.iter() {
        *at_once.entry(moment.as_nanos() / 10_000_000).or_insert(0) += count;
    }
    let most = *at_once.values().max().unwrap();
    assert!(most <= 2000, "{most} renewals within 10 ms");
}

//! The lease layer's own timing, with scripted answers and a paused clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::time::sleep;

use crate::backend::scripted::{Answer, Scripted, Sent, name_of};
use crate::backend::{Batch, Purpose, Reply, RequestError, ServerError};
use crate::error::{Error, Loss};
use crate::lease::state::{EndReason, Granted, LeaseState, Validity};
use crate::lease::{Engine, Guard, Keeper, Limits, ReleaseOutcome};
use crate::options::{AcquireOptions, margin};
use crate::owner::{Owner, Token};
use crate::protocol::{Counters, Keyspace, Kind, SingleKey};
use crate::time::BootInstant;

pub(in crate::lease) const LEASE: Duration = Duration::from_secs(30);
const REQUEST: Duration = Duration::from_secs(1);
const AT_ONCE: Duration = Duration::from_millis(1);

pub(in crate::lease) fn kind() -> Arc<dyn Kind> {
    let keys = Keyspace::new("lock:", Counters::one())
        .unwrap()
        .lock("job")
        .unwrap();
    Arc::new(SingleKey::new(keys))
}

/// An engine on `backend` whose keeper runs beside the test, on the paused clock.
pub(in crate::lease) fn engine(backend: &Arc<Scripted>) -> Arc<Engine> {
    let keeper = Keeper::default();
    tokio::spawn(keeper.clone().work(backend.clone(), REQUEST));
    let limits = Limits {
        request: REQUEST,
        outage: Duration::from_secs(10),
    };
    Arc::new(Engine::new(backend.clone(), keeper, limits))
}

async fn acquire(engine: &Arc<Engine>, options: &AcquireOptions) -> Result<Guard, Error> {
    let lease = engine.acquire(&kind(), options).await?;
    Ok(Guard::new(lease))
}

/// What a server says that has nothing against it.
fn willing(batch: &Batch) -> Vec<Reply> {
    answers(batch, &Reply::Nil, -2)
}

/// What a server says of a lock that somebody else has for `left`.
fn busy(batch: &Batch, left: i64) -> Vec<Reply> {
    answers(batch, &Reply::Bytes(b"somebody".to_vec()), left)
}

fn answers(batch: &Batch, to_set: &Reply, to_pttl: i64) -> Vec<Reply> {
    let answer = |index| match name_of(batch, index).as_str() {
        "SET" => to_set.clone(),
        "PTTL" => Reply::Int(to_pttl),
        _ => Reply::Int(1),
    };
    (0..batch.len()).map(answer).collect()
}

pub(in crate::lease) fn yes(sent: &Sent<'_>) -> Answer {
    (AT_ONCE, Ok(willing(sent.batch)))
}

fn no_answer() -> Answer {
    (LEASE * 100, Ok(Vec::new()))
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_before_the_request() {
    let slow = Duration::from_millis(700);
    let backend = Scripted::new(move |sent| (slow, Ok(willing(sent.batch))));
    let before = BootInstant::now();
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    let end = BootInstant::now() + guard.remaining();
    assert_eq!(end.since(before), LEASE - margin(LEASE));
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_renewal_moves_the_deadline_from_its_sending() {
    let renewed_at = Arc::new(Mutex::new(None));
    let seen = renewed_at.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "EVALSHA" => {
            *seen.lock() = Some(BootInstant::now());
            (Duration::from_millis(400), Ok(willing(sent.batch)))
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
async fn one_failed_renewal_does_not_lose_the_lease() {
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
async fn without_renewals_the_loss_is_told_at_the_deadline_and_not_later() {
    let backend = Scripted::new(|sent| match sent.name().as_str() {
        "EVALSHA" => no_answer(),
        _ => yes(sent),
    });
    let before = BootInstant::now();
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    let told = BootInstant::now().since(before);
    assert!(told <= LEASE - margin(LEASE), "told after {told:?}");
    assert!(
        told >= LEASE - margin(LEASE) - Duration::from_millis(5),
        "told after {told:?}"
    );
}

/// The keeper slept until the next renewal of another lease, and past the deadline of a shorter one.
#[tokio::test(start_paused = true)]
async fn loss_beside_other_leases_is_announced_in_time() {
    let backend = Scripted::new(yes);
    let engine = engine(&backend);
    let _other = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    sleep(LEASE).await;
    for millis in (20..300).step_by(7) {
        let mut options = AcquireOptions::new(LEASE);
        options.at_most = Some(Duration::from_millis(millis));
        // One that is renewed is taken up for its first renewal, which comes before its deadline.
        options.renewed = false;
        let guard = acquire(&engine, &options).await.unwrap();
        let deadline = BootInstant::now() + guard.remaining();
        assert_eq!(guard.lost().await, Some(Loss::AtMost));
        assert!(BootInstant::now() <= deadline, "at most {millis} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_deadline_does_not_revive_a_lease() {
    let late = LEASE / 4 - AT_ONCE;
    let renewals = AtomicU32::new(0);
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        // The one sent shortly before the deadline is answered after it.
        "EVALSHA" if renewals.fetch_add(1, Ordering::SeqCst) == 0 => no_answer(),
        "EVALSHA" => (late, Ok(willing(sent.batch))),
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
async fn a_confirmation_after_the_deadline_comes_too_late_even_if_nobody_has_looked() {
    let (kind, options) = (kind(), AcquireOptions::new(LEASE));
    let value = kind.value(&Owner::random(), 0, "");
    let granted = Granted::new(BootInstant::now(), LEASE);
    let state = LeaseState::new(kind, value, Token::new(1), &options, granted);
    state.confirm(BootInstant::now() + LEASE / 2, LEASE, false);
    tokio::time::advance(LEASE * 3 / 2).await;
    state.confirm(BootInstant::now(), LEASE, false);
    assert_eq!(
        state.validity(),
        Validity::Ended(EndReason::Lost(Loss::Expired))
    );
    state.confirm(BootInstant::now(), LEASE, false);
    assert_eq!(
        state.validity(),
        Validity::Ended(EndReason::Lost(Loss::Expired))
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_server_no_longer_has_is_lost_at_the_next_renewal() {
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
    let released = guard.release().await.unwrap();
    assert!(
        matches!(
            released,
            ReleaseOutcome::AlreadyLost {
                loss: Loss::Revoked
            }
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
async fn a_release_without_an_answer_is_sent_again_until_there_is_one() {
    let releases = Arc::new(AtomicU32::new(0));
    let seen = releases.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "DELEX" if seen.fetch_add(1, Ordering::SeqCst) < 3 => {
            (AT_ONCE, Err(RequestError::Unknown("broken".into())))
        }
        _ => yes(sent),
    });
    drop(
        acquire(&engine(&backend), &AcquireOptions::new(LEASE))
            .await
            .unwrap(),
    );
    sleep(LEASE).await;
    assert_eq!(releases.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_is_forbidden_is_not_tried_for_ever() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_answer(),
        "DELEX" => {
            seen.fetch_add(1, Ordering::SeqCst);
            let forbidden = ServerError::new("NOPERM", "no permissions");
            (AT_ONCE, Err(RequestError::Refused(forbidden)))
        }
        _ => yes(sent),
    });
    let engine = engine(&backend);
    drop(tokio::time::timeout(REQUEST / 2, acquire(&engine, &AcquireOptions::new(LEASE))).await);
    sleep(LEASE).await;
    assert_eq!(cancels.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_no_grant_and_is_cancelled() {
    let cancelled = Arc::new(AtomicBool::new(false));
    let seen = cancelled.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => (Duration::from_millis(500), Ok(willing(sent.batch))),
        "DELEX" => {
            seen.store(true, Ordering::SeqCst);
            yes(sent)
        }
        _ => yes(sent),
    });
    let mut options = AcquireOptions::new(Duration::from_millis(400));
    options.timeout = Some(Duration::ZERO);
    let late = acquire(&engine(&backend), &options).await;
    assert!(matches!(late, Err(Error::OutcomeUnknown(_))), "{late:?}");
    sleep(Duration::from_millis(10)).await;
    assert!(cancelled.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_answered_on_the_same_link_is_the_last() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_answer(),
        "DELEX" => {
            assert_eq!(
                sent.purpose,
                Purpose::Requests,
                "on the connection of the acquire"
            );
            seen.fetch_add(1, Ordering::SeqCst);
            yes(sent)
        }
        _ => yes(sent),
    });
    let engine = engine(&backend);
    drop(tokio::time::timeout(REQUEST / 2, acquire(&engine, &AcquireOptions::new(LEASE))).await);
    sleep(LEASE).await;
    assert_eq!(cancels.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn without_its_link_a_cancel_is_repeated_at_least_every_second_for_a_while() {
    let cancels = Arc::new(Mutex::new(Vec::new()));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match (sent.name().as_str(), sent.connection) {
        ("SET", _) => no_answer(),
        ("DELEX", 1) => (AT_ONCE, Err(RequestError::Unknown("broken".into()))),
        ("DELEX", _) => {
            seen.lock().push(BootInstant::now());
            yes(sent)
        }
        _ => yes(sent),
    });
    let engine = engine(&backend);
    let start = BootInstant::now();
    let options = AcquireOptions::new(LEASE);
    let waiting = acquire(&engine, &options);
    drop(tokio::time::timeout(REQUEST / 2, waiting).await);
    backend.break_links();
    sleep(LEASE * 2).await;
    let mut last = start + REQUEST / 2;
    for cancel in cancels.lock().iter() {
        let gap = cancel.since(last);
        assert!(
            gap <= Duration::from_millis(1010),
            "{gap:?} without a cancel"
        );
        last = *cancel;
    }
    let lasted = last.since(start);
    assert!(
        lasted > Duration::from_secs(14),
        "given up after {lasted:?}"
    );
    assert!(
        lasted < Duration::from_secs(20),
        "still at it after {lasted:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_is_refused_for_now_is_tried_again_until_it_is_answered() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_answer(),
        "DELEX" if seen.fetch_add(1, Ordering::SeqCst) < 3 => {
            let busy = ServerError::new("BUSY", "a script is running");
            (AT_ONCE, Err(RequestError::Refused(busy)))
        }
        _ => yes(sent),
    });
    let engine = engine(&backend);
    drop(tokio::time::timeout(REQUEST / 2, acquire(&engine, &AcquireOptions::new(LEASE))).await);
    sleep(LEASE).await;
    assert_eq!(cancels.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_a_message_and_looks_once_a_second_without() {
    let free = Arc::new(AtomicBool::new(false));
    let looks = Arc::new(AtomicU32::new(0));
    let (is_free, seen) = (free.clone(), looks.clone());
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
    assert_eq!(looks.load(Ordering::SeqCst), 10);
    free.store(true, Ordering::SeqCst);
    backend.publish(b"");
    sleep(Duration::from_millis(5)).await;
    let guard = waiter.await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let of_the_process = 1;
    assert_eq!(
        backend.subscriptions(),
        of_the_process,
        "a subscription is left"
    );
    assert!(engine.acquirer.registry.is_empty(), "a gate is left");
}

#[tokio::test(start_paused = true)]
async fn a_look_finds_the_end_of_a_crashed_holder_s_lease() {
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
async fn a_limit_bounds_renewals_to_the_millisecond() {
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

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_bearable_is_told() {
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
async fn a_hundred_thousand_leases_are_renewed_in_pipelines_and_not_in_a_burst() {
    // When each pipeline left, and how many renewals it had.
    let sent = Arc::new(Mutex::new(Vec::new()));
    let noted = sent.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "EVALSHA" {
            noted.lock().push((BootInstant::now(), sent.batch.len()));
        }
        yes(sent)
    });
    let engine = engine(&backend);
    let taking: Vec<_> = (0..100_000)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(
                async move { acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap() },
            )
        })
        .collect();
    let mut guards = Vec::new();
    for taken in taking {
        guards.push(taken.await.unwrap());
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

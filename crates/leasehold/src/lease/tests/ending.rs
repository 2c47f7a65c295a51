//! How a lease ends against a scripted server: `at_most`, background releases
//! and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::scripted::{AT_ONCE, LEASE, acquire, engine, kind, yes};
use crate::backend::RequestError;
use crate::backend::scripted::{Answer, Scripted, Sent};
use crate::error::{Error, Loss};
use crate::lease::state::{Granted, LeaseState, Validity};
use crate::options::AcquireOptions;
use crate::owner::{Owner, Token};
use crate::protocol::Description;
use crate::sync::Mutex;
use crate::time::BootInstant;

fn unknown() -> Answer {
    (AT_ONCE, Err(RequestError::Unknown("broken".into())))
}

/// Returns the lease that a renewal requests.
fn requested(sent: &Sent<'_>) -> Duration {
    let lease = String::from_utf8_lossy(sent.batch.args(0).last().unwrap()).into_owned();
    Duration::from_millis(lease.parse().unwrap())
}

/// Extends a lease, drops the guard in an outage, and returns whether the
/// server was still asked to release it when the outage ended.
async fn released_after_outage(extend: impl Fn(&Sent<'_>) -> Answer + Send + 'static) -> bool {
    let outage = LEASE * 4;
    let start = BootInstant::now();
    let released = Arc::new(AtomicU32::new(0));
    let seen = released.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "EVALSHA" => extend(sent),
        "DELEX" if BootInstant::now() < start + outage => unknown(),
        "DELEX" => {
            seen.fetch_add(1, Ordering::SeqCst);
            yes(sent)
        }
        _ => yes(sent),
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    let _ = guard.extend(LEASE * 8).await;
    drop(guard);
    sleep(outage + LEASE).await;
    released.load(Ordering::SeqCst) == 1
}

/// A release whose reply was lost, and whose repetition could not be sent, said
/// that nothing had changed.
#[tokio::test(start_paused = true)]
async fn lost_release_stays_unknown() {
    let sent = AtomicU32::new(0);
    let backend = Scripted::new(move |request| match request.name().as_str() {
        "DELEX" if sent.fetch_add(1, Ordering::SeqCst) == 0 => unknown(),
        "DELEX" => (AT_ONCE, Err(RequestError::Unreachable("refused".into()))),
        _ => yes(request),
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    let released = guard.release().await;
    assert!(
        matches!(released, Err(Error::OutcomeUnknown(_))),
        "{released:?}"
    );
}

/// The keeper gave up after the length of the original lease.
#[tokio::test(start_paused = true)]
async fn extended_lease_is_released_after_an_outage() {
    assert!(released_after_outage(yes).await);
}

/// The server may have executed an extension without a reply.
#[tokio::test(start_paused = true)]
async fn lease_of_unknown_length_is_released() {
    assert!(released_after_outage(|_| unknown()).await);
}

/// A shutdown waited for the margin of a lease that was already lost, computed
/// from a lease that the server never granted.
#[tokio::test(start_paused = true)]
async fn shutdown_releases_a_lost_lease_at_once() {
    let released = Arc::new(AtomicU32::new(0));
    let seen = released.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "DELEX" {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        yes(sent)
    });
    let engine = engine(&backend);
    for at_most in [None, Some(LEASE / 2)] {
        let mut options = AcquireOptions::new(LEASE * 20);
        options.renewed = false;
        options.at_most = at_most;
        let guard = acquire(&engine, &options).await.unwrap();
        assert!(guard.lost().await.is_some());
    }
    let start = BootInstant::now();
    engine.shutdown(LEASE).await.unwrap();
    let took = BootInstant::now().since(start);
    assert!(took <= AT_ONCE * 5, "{took:?}");
    assert_eq!(released.load(Ordering::SeqCst), 2);
}

/// The release waited for the margin of the configured lease, which `at_most`
/// had shortened.
#[tokio::test(start_paused = true)]
async fn lost_lease_is_released_after_its_own_margin() {
    let released = Arc::new(Mutex::new(None));
    let seen = released.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "DELEX" {
            *seen.lock() = Some(BootInstant::now());
        }
        yes(sent)
    });
    let mut options = AcquireOptions::new(LEASE);
    let at_most = LEASE / 30;
    options.at_most = Some(at_most);
    let engine = engine(&backend);
    let start = BootInstant::now();
    let guard = acquire(&engine, &options).await.unwrap();
    assert_eq!(guard.lost().await, Some(Loss::AtMost));
    sleep(LEASE).await;
    let released = released.lock().expect("released").since(start);
    assert!(released >= at_most, "within the margin: {released:?}");
    assert!(released < at_most * 5 / 4, "{released:?}");
}

/// A lease that `at_most` limits is still checked on the server, a few times.
#[tokio::test(start_paused = true)]
async fn limited_lease_is_verified_a_few_times() {
    let renewals = Arc::new(AtomicU32::new(0));
    for at_most in [LEASE / 10, LEASE, LEASE * 3 / 2] {
        let seen = renewals.clone();
        seen.store(0, Ordering::SeqCst);
        let backend = Scripted::new(move |sent| {
            if sent.name() == "EVALSHA" {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            yes(sent)
        });
        let mut options = AcquireOptions::new(LEASE);
        options.at_most = Some(at_most);
        let guard = acquire(&engine(&backend), &options).await.unwrap();
        assert_eq!(guard.lost().await, Some(Loss::AtMost));
        let renewals = renewals.load(Ordering::SeqCst);
        assert!((2..=6).contains(&renewals), "{at_most:?}: {renewals}");
    }
}

/// A message about a revocation extended a fixed lease by the whole length.
#[tokio::test(start_paused = true)]
async fn verification_does_not_extend_a_fixed_lease() {
    let value = Arc::new(Mutex::new(Vec::new()));
    let longest = Arc::new(Mutex::new(None));
    let (seen, seen_longest) = (value.clone(), longest.clone());
    let backend = Scripted::new(move |sent| {
        match sent.name().as_str() {
            "SET" => *seen.lock() = sent.batch.args(0).nth(2).unwrap().to_vec(),
            "EVALSHA" => *seen_longest.lock() = Some(requested(sent)),
            _ => {}
        }
        yes(sent)
    });
    let mut options = AcquireOptions::new(LEASE);
    options.renewed = false;
    let start = BootInstant::now();
    let guard = acquire(&engine(&backend), &options).await.unwrap();
    sleep(LEASE / 2).await;
    backend.publish(&value.lock());
    sleep(AT_ONCE * 10).await;
    let longest = longest.lock().expect("verified");
    assert!(longest <= LEASE / 2, "{longest:?}");
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    assert!(BootInstant::now().since(start) <= LEASE);
}

/// The keeper read a deadline, `extend` moved it, and the keeper ended the
/// lease.
#[tokio::test(start_paused = true)]
async fn expiry_spares_a_deadline_that_moved() {
    let options = AcquireOptions::new(LEASE);
    let value = kind().value(&Owner::random(), Description::default());
    let granted = Granted::new(BootInstant::now(), LEASE);
    let state = LeaseState::new(kind(), value, Token::new(1), &options, granted);
    let Validity::Valid { deadline } = state.validity() else {
        panic!("it is valid");
    };
    state.confirm(BootInstant::now(), LEASE * 2);
    assert!(!state.expire(deadline));
    assert!(state.is_valid());
    let Validity::Valid { deadline } = state.validity() else {
        panic!("it is valid");
    };
    assert!(state.expire(deadline));
    assert!(!state.is_valid());
}

/// A renewal that waited for a connection moved the deadline beyond `at_most`.
#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_exceed_at_most() {
    let mut options = AcquireOptions::new(LEASE);
    options.at_most = Some(LEASE);
    let value = kind().value(&Owner::random(), Description::default());
    let start = BootInstant::now();
    let granted = Granted::new(start, LEASE);
    let state = LeaseState::new(kind(), value, Token::new(1), &options, granted);
    let length = state.renewal_length().expect("it can be renewed");
    sleep(LEASE / 4).await;
    state.confirm(BootInstant::now(), length);
    let Validity::Valid { deadline } = state.validity() else {
        panic!("it is valid");
    };
    assert!(deadline <= start + LEASE);
}

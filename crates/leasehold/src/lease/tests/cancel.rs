//! Release and cancel against a scripted server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::scripted::{AT_ONCE, LEASE, REQUEST, acquire, engine, granting, no_reply, yes};
use crate::backend::scripted::Scripted;
use crate::backend::{Purpose, RequestError, ServerError};
use crate::error::Error;
use crate::lease::Engine;
use crate::lease::attempt::PATIENCE;
use crate::options::AcquireOptions;
use crate::sync::Mutex;
use crate::time::BootInstant;

#[tokio::test(start_paused = true)]
async fn release_is_repeated_until_a_reply() {
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
async fn denied_cancel_is_given_up() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_reply(),
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
async fn late_grant_is_rejected_and_cancelled() {
    let cancelled = Arc::new(AtomicBool::new(false));
    let seen = cancelled.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => (Duration::from_millis(500), Ok(granting(sent.batch))),
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
async fn cancel_reply_on_same_connection_is_final() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_reply(),
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
async fn cancel_without_its_connection_is_repeated() {
    let cancels = Arc::new(Mutex::new(Vec::new()));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match (sent.name().as_str(), sent.connection) {
        ("SET", _) => no_reply(),
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
    assert!(lasted > Duration::from_secs(14), "ended after {lasted:?}");
    assert!(lasted < Duration::from_secs(20), "continued for {lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn busy_server_gets_the_cancel_again() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_reply(),
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
async fn unpolled_first_attempt_is_cancelled() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "DELEX" {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        yes(sent)
    });
    let engine = engine(&backend);
    let options = AcquireOptions::new(LEASE);
    let mut acquiring = Box::pin(acquire(&engine, &options));
    // Polled once, and kept.
    let polled = tokio::time::timeout(Duration::ZERO, &mut acquiring).await;
    assert!(polled.is_err());
    sleep(REQUEST).await;
    assert_eq!(cancels.load(Ordering::SeqCst), 0, "too early");
    sleep(PATIENCE + AT_ONCE).await;
    assert_eq!(cancels.load(Ordering::SeqCst), 1);
    // Polled again, it acquires the lock anew.
    acquiring.await.unwrap().check().unwrap();
}

/// Counts the `DELEX` that a server gets which answers each after five seconds,
/// and meanwhile other requests. `work` uses the lock.
async fn count_with_late_replies(grants: bool, work: impl AsyncFnOnce(&Arc<Engine>)) -> u32 {
    let sent_again = Arc::new(AtomicU32::new(0));
    let seen = sent_again.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" if !grants => no_reply(),
        "DELEX" => {
            seen.fetch_add(1, Ordering::SeqCst);
            (REQUEST * 5, Ok(granting(sent.batch)))
        }
        _ => yes(sent),
    });
    backend.slow_down();
    work(&engine(&backend)).await;
    sleep(LEASE).await;
    sent_again.load(Ordering::SeqCst)
}

/// On a slow link, each release was sent again every second, which made it
/// slower.
#[tokio::test(start_paused = true)]
async fn slow_server_gets_one_release() {
    let releases = count_with_late_replies(true, async |engine| {
        drop(acquire(engine, &AcquireOptions::new(LEASE)).await.unwrap());
    });
    assert_eq!(releases.await, 1);
}

#[tokio::test(start_paused = true)]
async fn slow_server_gets_one_cancel() {
    let cancels = count_with_late_replies(false, async |engine| {
        let options = AcquireOptions::new(LEASE);
        drop(tokio::time::timeout(REQUEST / 2, acquire(engine, &options)).await);
    });
    assert_eq!(cancels.await, 1);
}

/// The acquire could arrive after the cancel was executed, and before its
/// reply.
#[tokio::test(start_paused = true)]
async fn late_reply_to_an_early_cancel_is_not_final() {
    let cancels = Arc::new(AtomicU32::new(0));
    let seen = cancels.clone();
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" => no_reply(),
        "DELEX" => match seen.fetch_add(1, Ordering::SeqCst) {
            0..6 => (AT_ONCE, Err(RequestError::Unknown("broken".into()))),
            // Sent early, but the acquire can no longer arrive at the reply.
            6 => (Duration::from_millis(14_990), Ok(granting(sent.batch))),
            _ => yes(sent),
        },
        _ => yes(sent),
    });
    backend.slow_down();
    let engine = engine(&backend);
    drop(tokio::time::timeout(REQUEST / 2, acquire(&engine, &AcquireOptions::new(LEASE))).await);
    sleep(LEASE + Duration::from_secs(60)).await;
    assert_eq!(cancels.load(Ordering::SeqCst), 8);
}

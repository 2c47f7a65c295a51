//! Callers that are polled late, or not at all, against a scripted server.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::scripted::{AT_ONCE, LEASE, REQUEST, acquire, busy, engine, granting, kind, yes};
use crate::backend::scripted::{Answer, Scripted, Sent};
use crate::backend::{Reply, RequestError, Slot};
use crate::error::Error;
use crate::lease::{Engine, Guard, Reentry};
use crate::options::AcquireOptions;
use crate::protocol::{Counters, Keyspace, Notified, SingleKey};

/// A server with a single lock.
#[derive(Default)]
struct OneLock {
    is_held: AtomicBool,
}

impl OneLock {
    /// Starts the server. Another client holds the lock.
    fn start() -> (Arc<Self>, Arc<Scripted>) {
        let server = Arc::new(Self::default());
        server.is_held.store(true, Ordering::SeqCst);
        let shared = server.clone();
        (server, Scripted::new(move |sent| shared.reply(sent)))
    }

    fn reply(&self, sent: &Sent<'_>) -> Answer {
        let is_busy = match sent.name().as_str() {
            "SET" => self.is_held.swap(true, Ordering::SeqCst),
            "DELEX" => {
                self.is_held.store(false, Ordering::SeqCst);
                false
            }
            _ => self.is_held.load(Ordering::SeqCst),
        };
        let replies = match is_busy {
            true => busy(sent.batch, 25_000),
            false => granting(sent.batch),
        };
        (AT_ONCE, Ok(replies))
    }
}

fn poll_once<F: Future>(future: &mut Pin<Box<F>>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
}

fn spawn_acquire(engine: &Arc<Engine>) -> tokio::task::JoinHandle<Result<Guard, Error>> {
    let engine = engine.clone();
    tokio::spawn(async move { acquire(&engine, &AcquireOptions::new(LEASE)).await })
}

/// Returns a guard that was waited for, and an acquire that waits behind it.
async fn hold_before_another(
    server: &OneLock,
    backend: &Scripted,
    engine: &Arc<Engine>,
) -> (Guard, tokio::task::JoinHandle<Result<Guard, Error>>) {
    let first = spawn_acquire(engine);
    sleep(AT_ONCE * 10).await;
    let second = spawn_acquire(engine);
    sleep(AT_ONCE * 10).await;
    server.is_held.store(false, Ordering::SeqCst);
    backend.publish(b"");
    (first.await.unwrap().unwrap(), second)
}

/// The waiting task did not ask for a lock that was here, until the release had
/// returned to a caller that was not polled.
#[tokio::test(start_paused = true)]
async fn unpolled_release_blocks_no_local_waiter() {
    let (server, backend) = OneLock::start();
    let engine = engine(&backend);
    let (guard, second) = hold_before_another(&server, &backend, &engine).await;
    // Beyond the hand-off window.
    sleep(AT_ONCE * 20).await;
    let mut releasing = Box::pin(guard.release());
    poll_once(&mut releasing);
    sleep(REQUEST * 3).await;
    assert!(second.is_finished(), "blocked by a release");
    let second = second.await.unwrap().unwrap();
    // The first release ends late, and the second holder is not disturbed.
    drop(releasing);
    sleep(REQUEST).await;
    second.check().unwrap();
    drop(second);
    sleep(REQUEST).await;
    assert!(!server.is_held.load(Ordering::SeqCst));
    assert!(engine.waits.is_empty(), "a waiting task is left");
}

/// The next caller got the long lease that the holder had asked for and not
/// waited for. It would have outlived a crash.
#[tokio::test(start_paused = true)]
async fn unfinished_extension_is_not_handed_off() {
    for extends in [false, true] {
        let (server, releases) = (OneLock::default(), Arc::new(AtomicU32::new(0)));
        server.is_held.store(true, Ordering::SeqCst);
        let (server, seen) = (Arc::new(server), releases.clone());
        let shared = server.clone();
        let backend = Scripted::new(move |sent| {
            seen.fetch_add(u32::from(sent.name() == "DELEX"), Ordering::SeqCst);
            // Two keys, count and token: it reserves tokens for local hand-off.
            let reserves = sent.name() == "EVALSHA" && sent.batch.args(0).count() == 8;
            let block = || Reply::List(vec![Reply::Int(2), Reply::Int(10)]);
            match reserves {
                true => (AT_ONCE, Ok(vec![block()])),
                false => shared.reply(sent),
            }
        });
        let engine = engine(&backend);
        let (guard, second) = hold_before_another(&server, &backend, &engine).await;
        if extends {
            poll_once(&mut Box::pin(guard.extend(LEASE * 8)));
        }
        guard.release().await.unwrap();
        let _second = second.await.unwrap().unwrap();
        assert_eq!(releases.load(Ordering::SeqCst), u32::from(extends));
    }
}

/// A reply that was sent before the caller began to wait ended the wait.
#[tokio::test(start_paused = true)]
async fn late_follower_does_not_rely_on_older_reply() {
    let is_held = Arc::new(AtomicBool::new(true));
    let held = is_held.clone();
    let slow = Duration::from_millis(500);
    let backend = Scripted::new(move |sent| {
        let left = if held.load(Ordering::SeqCst) {
            25_000
        } else {
            -2
        };
        assert_eq!(sent.name(), "PTTL");
        (slow, Ok(vec![Reply::Int(left)]))
    });
    let engine = engine(&backend);
    let keys = Keyspace::new("lock:", Counters::one()).unwrap();
    let lock = SingleKey::new(keys.lock("job").unwrap());
    let slot: Slot = 0;
    let lock: Arc<dyn Notified> = Arc::new(lock);
    let follow = || {
        let (engine, lock) = (engine.clone(), lock.clone());
        tokio::spawn(async move { engine.wait_until_free(&lock, slot, "job", None).await })
    };
    is_held.store(false, Ordering::SeqCst);
    let first = follow();
    sleep(slow / 2).await;
    is_held.store(true, Ordering::SeqCst);
    let second = follow();
    sleep(slow * 4).await;
    assert!(first.is_finished(), "the lock was free");
    assert!(!second.is_finished(), "the lock is held since before");
    is_held.store(false, Ordering::SeqCst);
    backend.publish(b"");
    timeout(slow * 3, second).await.unwrap().unwrap().unwrap();
}

/// Of two tasks of a handle, the slower one found the lock busy.
#[tokio::test(start_paused = true)]
async fn reentrant_handle_that_holds_is_not_busy() {
    let attempts = AtomicU32::new(0);
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "SET" if attempts.fetch_add(1, Ordering::SeqCst) > 0 => {
            (AT_ONCE, Ok(busy(sent.batch, 25_000)))
        }
        _ => yes(sent),
    });
    let engine = engine(&backend);
    let (reentry, kind) = (Reentry::default(), kind());
    let mut options = AcquireOptions::new(LEASE);
    options.timeout = Some(Duration::ZERO);
    let enter = || reentry.enter(&engine, &kind, &options);
    let (first, second) = tokio::join!(biased; enter(), enter());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(Arc::ptr_eq(&first, &second));
}

/// A release that the server had refused counted as one that it had executed,
/// and hid the loss of the lock.
#[tokio::test(start_paused = true)]
async fn release_after_a_refused_one_reports_the_loss() {
    let releases = AtomicU32::new(0);
    let backend = Scripted::new(move |sent| match sent.name().as_str() {
        "DELEX" => match releases.fetch_add(1, Ordering::SeqCst) {
            0 => (AT_ONCE, Err(RequestError::Unreachable("no route".into()))),
            _ => (AT_ONCE, Ok(vec![Reply::Int(0); sent.batch.len()])),
        },
        _ => yes(sent),
    });
    let engine = engine(&backend);
    let options = AcquireOptions::new(LEASE);
    let guard = acquire(&engine, &options).await.unwrap();
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
}

/// An error that was not claimed in time was dropped, and the work began again.
#[tokio::test(start_paused = true)]
async fn undelivered_error_is_kept() {
    let engine = engine(&Scripted::new(yes));
    let attempts = Arc::new(AtomicU32::new(0));
    let begun = attempts.clone();
    let mut delivered = pin!(engine.deliver(move || {
        begun.fetch_add(1, Ordering::SeqCst);
        async { Err::<(), _>(Error::ShutDown) }
    }));
    assert!(timeout(Duration::ZERO, &mut delivered).await.is_err());
    sleep(LEASE).await;
    let error = delivered.await.unwrap_err();
    assert!(matches!(error, Error::ShutDown), "{error:?}");
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
}

/// A task that had delivered the output lived on, and with it the caller's span
/// and client.
#[tokio::test(start_paused = true)]
async fn delivered_work_ends_at_once() {
    let engine = engine(&Scripted::new(yes));
    let owned = Arc::new(());
    let used = owned.clone();
    let work = move || {
        let _used = used.clone();
        async { Ok(()) }
    };
    engine.deliver(work).await.unwrap();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(Arc::strong_count(&owned), 1, "its task lives on");
}

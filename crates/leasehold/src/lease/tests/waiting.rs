//! Callers that are polled late, or not at all, against a scripted server.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use tokio::time::sleep;

use super::scripted::{AT_ONCE, LEASE, REQUEST, acquire, busy, engine, granting};
use crate::backend::scripted::{Answer, Scripted, Sent};
use crate::error::Error;
use crate::lease::{Engine, Guard};
use crate::options::AcquireOptions;

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

/// The waiting task did not ask for a lock that was here, until its release had
/// returned to a caller that nobody polled.
#[tokio::test(start_paused = true)]
async fn unpolled_release_blocks_no_local_waiter() {
    let (server, backend) = OneLock::start();
    let engine = engine(&backend);
    let first = spawn_acquire(&engine);
    sleep(AT_ONCE * 10).await;
    let second = spawn_acquire(&engine);
    sleep(AT_ONCE * 10).await;
    server.is_held.store(false, Ordering::SeqCst);
    backend.publish(b"");
    let guard = first.await.unwrap().unwrap();
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

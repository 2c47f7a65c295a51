//! The waiting task, with a pause wherever others can come in between.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::ledger::{Ledger, Lock, Queue, Seat, Wish};
use crate::backend::RequestError;
use crate::lease::wait::slots::Step;
use crate::sync::Mutex;

/// Lets others run.
async fn pause(ledger: &Mutex<Ledger>, at: &'static str) {
    ledger.lock().task_at = at;
    let mut has_paused = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        match std::mem::replace(&mut has_paused, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// Waits like the waiting task.
async fn stand_by(ledger: &Mutex<Ledger>, queue: &Queue, at: &'static str) {
    ledger.lock().task_at = at;
    ledger.lock().since_wait = 0;
    queue.stand_by().await;
}

/// Serves the slots of a queue until none is left.
pub(super) async fn serve(ledger: Arc<Mutex<Ledger>>, queue: Arc<Queue>) {
    loop {
        match queue.next_step() {
            Step::Prepare(lock) => {
                pause(&ledger, "prepares").await;
                if let Err(mut unneeded) = lock.grant(&queue) {
                    unneeded.is_wanted = false;
                }
                pause(&ledger, "has granted").await;
            }
            Step::Seek(slot) => {
                let first = ledger.lock().first_waiting();
                assert_eq!(Some(slot.terms.caller), first, "not FIFO");
                match seek(&ledger, &queue, slot.terms).await {
                    Some(Ok(lock)) => {
                        pause(&ledger, "has acquired").await;
                        deliver(&ledger, &queue, lock, slot.terms);
                        pause(&ledger, "has granted").await;
                    }
                    Some(Err(error)) => {
                        slot.fail(error);
                        let seat = &mut ledger.lock().seats[slot.terms.caller];
                        if matches!(*seat, Seat::Waiting | Seat::Dormant) {
                            *seat = Seat::Failed;
                        }
                    }
                    None => {}
                }
            }
            Step::StandBy => {
                pause(&ledger, "before it stands by").await;
                stand_by(&ledger, &queue, "stands by").await;
            }
            Step::End => {
                pause(&ledger, "before it ends").await;
                if queue.close_if_idle() {
                    // A caller may have found the queue before.
                    let late = Wish {
                        caller: 0,
                        handoff: false,
                    };
                    assert!(queue.enqueue(late).is_err(), "open without a task");
                    let mut inner = ledger.lock();
                    assert!(!inner.seats.iter().any(Ledger::is_live), "a slot is left");
                    inner.registry = None;
                    inner.task_at = "ended";
                    return;
                }
            }
        }
    }
}

/// Attempts until the server replies, or another slot becomes the first.
async fn seek(
    ledger: &Mutex<Ledger>,
    queue: &Queue,
    wish: Wish,
) -> Option<Result<Lock, RequestError>> {
    loop {
        let replied = poll_fn(|_| {
            let reply = ledger.lock().reply.take();
            reply.map_or(Poll::Pending, Poll::Ready)
        });
        tokio::select! {
            biased;
            reply = replied => return Some(reply),
            () = stand_by(ledger, queue, "seeks") => {}
        }
        let goes_on = queue.test_first(|first| first.handoff == wish.handoff);
        if goes_on != Some(true) {
            // The attempt is cancelled.
            let reply = ledger.lock().reply.take();
            drop(reply);
            return None;
        }
    }
}

fn deliver(ledger: &Mutex<Ledger>, queue: &Arc<Queue>, mut lock: Lock, wish: Wish) {
    lock.handoff = wish.handoff;
    if wish.handoff {
        queue.set_here(true);
        lock.is_wanted = true;
        let mut ledger = ledger.lock();
        let record = &mut ledger.leases[lock.id.lease];
        match record.is_valid {
            true => record.queue = Some(queue.clone()),
            false => {
                drop(ledger);
                queue.set_here(false);
            }
        }
    }
    if let Err(mut unneeded) = lock.grant(queue) {
        unneeded.is_wanted = false;
    }
}

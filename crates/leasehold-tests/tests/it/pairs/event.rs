//! The events: each is a function that lets something happen to a holder, and
//! states what must then be true.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Error, Loss};
use testkit::{Fault, ServerExt};

use super::feature::{Acquiring, Trace};
use super::fork::fork;
use super::promises::{Exclusion, Pair};
use super::scene::{CHANCE, Holder, LONG, Needs, Terms, is_waited_for, settle, wait_for_listeners};
use crate::support::{AMPLE, SHORT, name, poll_at_most};

/// A lease that a test waits out. It is long enough to be extended to.
const BRIEF: Duration = SHORT.saturating_mul(2);

/// How long an outage lasts: longer than the first lease of `extend` and a
/// failed attempt to connect.
const OUTAGE: Duration = SHORT.saturating_mul(3);

/// More polls than any acquire takes.
const MAX_POLLS: u64 = 40;

/// Something that happens to a holder.
pub(super) struct Event {
    pub(super) name: &'static str,
    pub(super) play: for<'a> fn(&'a Pair) -> Playing<'a>,
    pub(super) needs: Needs,
}

type Playing<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

pub(super) const EVENTS: [Event; 10] = [
    Event {
        name: "revoke",
        play: |pair| Box::pin(revoke(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "shutdown",
        play: |pair| Box::pin(shutdown(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "dropped",
        play: |pair| Box::pin(dropped(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "unpolled",
        play: |pair| Box::pin(unpolled(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "cut",
        play: |pair| Box::pin(cut(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "silent",
        play: |pair| Box::pin(silent(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "restart",
        play: |pair| Box::pin(restart(pair)),
        needs: Needs::Persistence,
    },
    Event {
        name: "lost_reply",
        play: |pair| Box::pin(lost_reply(pair)),
        needs: Needs::Nothing,
    },
    Event {
        name: "clock_step",
        play: |pair| Box::pin(clock_step(pair)),
        needs: Needs::MovableClock,
    },
    Event {
        name: "fork",
        play: |pair| Box::pin(fork(pair)),
        needs: Needs::Nothing,
    },
];

impl Event {
    pub(super) fn named(name: &str) -> &'static Self {
        let mut events = EVENTS.iter();
        events.find(|event| event.name == name).expect("an event")
    }
}

/// Another client revokes the lock. The holder learns of it although nothing
/// is due for an hour.
async fn revoke(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let (name, holding) = pair.hold(&holder).await;
    wait_for_listeners(pair.scene.port, 2).await;
    let contest = pair.contend(&name, holding.trace()).await;
    let revoked = pair.other.force_release(&name).await.unwrap();
    assert_eq!(revoked.len(), 1, "{revoked:?}");
    let loss = pair.expect_lost(holding, contest, Exclusion::ByToken).await;
    assert_eq!(loss, Some(Loss::Revoked));
    pair.shut_down(&holder).await;
}

/// The client is shut down: while it holds the lock, when the lock is already
/// lost, and while the acquire is in flight.
async fn shutdown(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    pair.shut_down(&holder).await;
    crash(&holder);
    let loss = pair.expect_lost(holding, contest, Exclusion::Strict).await;
    assert_eq!(loss, Some(Loss::ShutDown));
    let refused = (pair.feature.hold)(holder, name).await.err();
    assert!(matches!(refused, Some(Error::ShutDown)), "{refused:?}");

    shut_down_when_lost(pair).await;
    let mut at = 1;
    while shut_down_in_flight(pair, at).await {
        at += 1;
    }
}

/// Shuts the client down while request number `at` for the lock is in flight,
/// and then crashes it. Returns `false` if the acquire has fewer requests.
async fn shut_down_in_flight(pair: &Pair, at: u64) -> bool {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let name = name();
    let sent = on_request(&holder, &name, at, Fault::Hold);
    let acquire = tokio::spawn((pair.feature.hold)(holder.clone(), name.clone()));
    while sent.load(Ordering::SeqCst) < at {
        if acquire.is_finished() {
            drop(acquire.await.unwrap());
            pair.shut_down(&holder).await;
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut shutdown = Box::pin(pair.shut_down(&holder));
    // On its own it may settle the acquire, or wait for it.
    if tokio::time::timeout(CHANCE, &mut shutdown).await.is_err() {
        holder.proxy.heal();
        holder.proxy.release_held();
        shutdown.await;
    }
    crash(&holder);
    holder.proxy.release_held();
    settle(pair.scene.port, &name).await;
    pair.expect_free(&name, Trace::default()).await;
    let ended = tokio::time::timeout(AMPLE, acquire).await;
    if let Ok(holding) = ended.expect("the acquire ends").unwrap() {
        assert!(!holding.is_valid(), "a guard is valid after the shutdown");
    }
    true
}

/// Shuts the client down when its only lease is lost: nothing is left to wait
/// for.
async fn shut_down_when_lost(pair: &Pair) {
    let terms = Terms {
        lease: LONG,
        at_most: SHORT,
    };
    let holder = pair.holder(terms).await;
    let (name, holding) = pair.hold(&holder).await;
    if !pair.feature.ends_itself {
        // Loses the lock by a renewal that the server refuses.
        wait_for_listeners(pair.scene.port, 2).await;
        pair.other.force_release(&name).await.unwrap();
    }
    holding.trace().lost().await;
    pair.shut_down(&holder).await;
    // Without the holding's trace: a revocation ends `at_least` too.
    pair.expect_free(&name, Trace::default()).await;
}

/// The future of an acquire, or of a release, is dropped after any number of
/// polls.
async fn dropped(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let mut dropped = Vec::new();
    for polls in 0..MAX_POLLS {
        let name = name();
        let acquire = (pair.feature.hold)(holder.clone(), name.clone());
        let ended = poll_at_most(acquire, polls).await;
        let is_last = ended.is_some();
        let trace = ended.map(|holding| holding.map(|holding| holding.trace()));
        let trace = trace.and_then(Result::ok).unwrap_or_default();
        dropped.push((name, trace));
        if is_last {
            break;
        }
    }
    // Last, when no acquire is on its way: the contender would refuse it.
    for (name, trace) in dropped {
        pair.expect_free(&name, trace).await;
    }
    for polls in 0..4 {
        let (name, holding) = pair.hold(&holder).await;
        let trace = holding.trace();
        drop(poll_at_most(holding.release(), polls).await);
        pair.expect_free(&name, trace).await;
    }
    pair.shut_down(&holder).await;
}

/// The future of an acquire is kept, but not polled: after any number of polls,
/// and while it waits. Other clients wait for one lease at most.
async fn unpolled(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(BRIEF)).await;
    for polls in 1..8 {
        let name = name();
        holder.has_guard(false);
        let mut acquire = (pair.feature.hold)(holder.clone(), name.clone());
        match poll_at_most(&mut acquire, polls).await {
            Some(holding) => drop(holding),
            // The future of a later step has a guard, which the keeper renews.
            None if holder.is_guarded() => finish(acquire).await,
            None => {
                settle(pair.scene.port, &name).await;
                pair.expect_free(&name, Trace::default()).await;
                finish(acquire).await;
            }
        }
    }
    let name = name();
    let held = (pair.feature.contend)(&pair.other, &name).await.unwrap();
    let mut acquire = (pair.feature.hold)(holder.clone(), name.clone());
    while !is_waited_for(pair.scene.port, &name) {
        let poll = tokio::time::timeout(Duration::from_millis(5), &mut acquire);
        assert!(poll.await.is_err(), "the lock is held");
    }
    let contest = pair.contend(&name, Trace::default()).await;
    held.release().await.unwrap();
    let next = contest.won(Exclusion::Strict).await;
    next.release().await.unwrap();
    finish(acquire).await;
    pair.shut_down(&holder).await;
}

/// Polls a forgotten acquire again. It holds the lock, or fails.
async fn finish(acquire: Acquiring) {
    let ended = tokio::time::timeout(AMPLE, acquire).await;
    if let Ok(holding) = ended.expect("the acquire ends") {
        let _ = holding.release().await;
    }
}

/// The connection is cut: briefly, for longer than the first lease while the
/// guard is dropped, and until the lease is lost.
async fn cut(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    holder.proxy.sever();
    pair.release_to(holding, contest).await;

    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    holder.proxy.refuse(true);
    holder.proxy.sever();
    drop(holding);
    tokio::time::sleep(OUTAGE).await;
    holder.proxy.heal();
    drop(contest.won(Exclusion::Strict).await);
    pair.shut_down(&holder).await;

    let holder = pair.holder(Terms::with_lease(BRIEF)).await;
    let (name, holding) = pair.hold(&holder).await;
    holder.proxy.black_hole(true);
    let contest = pair.contend(&name, holding.trace()).await;
    let loss = pair.expect_lost(holding, contest, Exclusion::Strict).await;
    assert!(
        matches!(loss, Some(Loss::Expired | Loss::AtMost | Loss::Stuck)),
        "{loss:?}"
    );
    holder.proxy.heal();
    pair.shut_down(&holder).await;
}

/// Every connection dies without being closed, so the client retires it when it
/// misses a reply: to an acquire, to a release, after the guard is dropped, and
/// during a shutdown.
async fn silent(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let name = name();
    holder.proxy.stall_connections();
    finish((pair.feature.hold)(holder.clone(), name.clone())).await;
    pair.expect_free(&name, Trace::default()).await;

    // A shutdown of the first one would wait until the acquire can no longer
    // arrive.
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    holder.proxy.stall_connections();
    pair.release_to(holding, contest).await;

    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    holder.proxy.stall_connections();
    drop(holding);
    drop(contest.won(Exclusion::Strict).await);

    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    holder.proxy.stall_connections();
    pair.shut_down(&holder).await;
    let loss = pair.expect_lost(holding, contest, Exclusion::Strict).await;
    assert_eq!(loss, Some(Loss::ShutDown));
}

/// The server restarts with its data: while the lock is held, and while the
/// guard is dropped.
async fn restart(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    pair.scene.restart(async {}).await;
    pair.release_to(holding, contest).await;

    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    let meanwhile = async {
        drop(holding);
        tokio::time::sleep(OUTAGE).await;
    };
    pair.scene.restart(meanwhile).await;
    drop(contest.won(Exclusion::Strict).await);
    pair.shut_down(&holder).await;
}

/// The reply to each request for the lock is lost in turn, those of the release
/// included.
async fn lost_reply(pair: &Pair) {
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    for at in 1..8 {
        let name = name();
        let sent = on_request(&holder, &name, at, Fault::CutReply);
        match (pair.feature.hold)(holder.clone(), name.clone()).await {
            Ok(holding) => {
                let contest = pair.contend(&name, holding.trace()).await;
                pair.release_to(holding, contest).await;
            }
            // Nothing is held.
            Err(_) => pair.expect_free(&name, Trace::default()).await,
        }
        if sent.load(Ordering::SeqCst) < at {
            break;
        }
    }
    pair.shut_down(&holder).await;
}

/// The server's clock steps back, which only delays others, and then forward
/// past the end of the lease.
async fn clock_step(pair: &Pair) {
    let step = |hours: i64| pair.scene.server.lock().unwrap().set_clock(hours * 3600);
    let holder = pair.holder(Terms::with_lease(LONG)).await;
    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    step(-1);
    pair.release_to(holding, contest).await;
    pair.shut_down(&holder).await;

    let holder = pair.holder(Terms::with_lease(BRIEF * 3)).await;
    let (name, holding) = pair.hold(&holder).await;
    let contest = pair.contend(&name, holding.trace()).await;
    step(1);
    pair.expect_lost(holding, contest, Exclusion::ByToken).await;
    pair.shut_down(&holder).await;
}

/// Lets the client send nothing more, as if its process had exited. Requests
/// that the network holds still reach the server.
fn crash(holder: &Holder) {
    holder.proxy.inject(|_| Fault::CutRequest);
    holder.proxy.refuse(true);
}

/// Injects a fault into request number `at` for a lock, and into no other.
/// Returns the number of such requests.
fn on_request(holder: &Holder, name: &str, at: u64, fault: Fault) -> Arc<AtomicU64> {
    let sent = Arc::<AtomicU64>::default();
    let key = name.as_bytes().to_vec();
    let counted = sent.clone();
    holder.proxy.inject(move |request| {
        let names = |arg: &Vec<u8>| arg.windows(key.len()).any(|part| part == key);
        if request[0].ends_with(b"SUBSCRIBE") || !request.iter().any(names) {
            return Fault::None;
        }
        match counted.fetch_add(1, Ordering::SeqCst) + 1 == at {
            true => fault,
            false => Fault::None,
        }
    });
    sent
}

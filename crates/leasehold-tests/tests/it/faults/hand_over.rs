//! Hand-over when processes are killed or paused, and when replies are lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Client, Error};
use testkit::{Fault, Proxy};

use crate::support::hand_over::{HAND_OVER_KINDS, LONG};
use crate::support::worker;
use crate::support::{
    AMPLE, LEASE, SHORT, client, connect_at, eventually, exists, name, on_every_server,
    only_counters_left, run, server,
};

#[test]
fn adopter_holds_after_giver_is_killed() {
    let server = server();
    for kind in HAND_OVER_KINDS {
        let name = name();
        let mut giver = worker::start(server.port(), LEASE);
        // Longer than a stall of the machine.
        let mut adopter = worker::start(server.port(), LEASE * 3 / 10);
        let held = giver.ask(&kind.command(&name));
        let ticket = giver.ask(&format!("hand-over {}", LONG.as_millis()));
        giver.kill();
        let adopted = adopter.ask(&format!("adopt {ticket}"));
        let token = |reply: &str| reply.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
        assert!(token(&adopted) > token(&held), "{held} {adopted}");
        assert!(exists(&server, &name));
        // A killed adopter blocks other clients for its lease only.
        adopter.kill();
        run(async {
            let next = kind
                .lock(&client(&server).await, &name)
                .timeout(AMPLE)
                .await;
            assert!(next.unwrap().token().as_u64() > token(&adopted));
        });
    }
}

#[test]
fn paused_giver_cannot_hand_over_a_lost_lock() {
    let server = server();
    for kind in HAND_OVER_KINDS {
        let name = name();
        let mut giver = worker::start(server.port(), SHORT);
        giver.ask(&kind.command(&name));
        giver.pause();
        run(async {
            let other = client(&server).await;
            let held = kind.lock(&other, &name).timeout(AMPLE).await.unwrap();
            giver.resume();
            let refused = giver.ask(&format!("hand-over {}", LONG.as_millis()));
            assert!(refused.starts_with("lost the lease on"), "{refused}");
            held.check().unwrap();
            held.release().await.unwrap();
        });
    }
}

/// The requests that a fault hits.
#[derive(Clone, Copy, Debug)]
enum Hit {
    First,
    All,
}

/// Injects `fault` into the scripts that `call` sends, and returns its outcome.
async fn with_fault<T>(proxy: &Proxy, fault: Fault, hit: Hit, call: impl Future<Output = T>) -> T {
    let scripts = AtomicU64::new(0);
    proxy.inject(move |request| {
        let is_script = matches!(request[0].as_slice(), b"EVALSHA" | b"EVAL");
        match (is_script, hit) {
            (true, Hit::All) => fault,
            (true, Hit::First) if scripts.fetch_add(1, Ordering::SeqCst) == 0 => fault,
            _ => Fault::None,
        }
    });
    let outcome = call.await;
    proxy.inject(|_| Fault::None);
    outcome
}

const FAULTS: [Fault; 6] = [
    Fault::CutRequest,
    Fault::CutReply,
    Fault::DropReplies,
    Fault::DuplicateRequest,
    Fault::Hold,
    Fault::Delay(Duration::from_millis(1000)),
];

async fn client_behind(proxy: &Proxy) -> Client {
    let connect = connect_at(proxy.port()).lease(LONG);
    // Shorter than the delay. A stall of the machine can also exceed it.
    let connect = connect.request_timeout(Duration::from_millis(600));
    connect.await.unwrap()
}

#[test]
fn lost_reply_to_hand_over_leaves_nothing_behind() {
    on_every_server(|server| async move {
        let adopter = client(&server).await;
        for (fault, hit) in FAULTS
            .into_iter()
            .flat_map(|fault| [(fault, Hit::First), (fault, Hit::All)])
        {
            for kind in HAND_OVER_KINDS {
                let proxy = Proxy::start(server.port());
                let giver = client_behind(&proxy).await;
                let name = name();
                let guard = kind.lock(&giver, &name).await.unwrap();
                let view = guard.lease();
                let outcome = with_fault(&proxy, fault, hit, guard.hand_over(LONG)).await;
                assert!(view.check().is_err());
                proxy.release_held();
                match outcome {
                    Ok(ticket) => {
                        let adopted = adopter.adopt(&ticket).await.unwrap();
                        // Outlasts requests that arrive late.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        assert!(kind.try_lock(&adopter, &name).await.is_none());
                        let released = adopted.release().await;
                        assert!(released.is_ok(), "{fault:?} {hit:?}: {released:?}");
                    }
                    Err(Error::OutcomeUnknown(_) | Error::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                let gone = || !exists(&server, &name);
                eventually(&format!("{kind:?} {fault:?} {hit:?}"), gone).await;
            }
        }
        eventually("only counters are left", || only_counters_left(&server)).await;
    });
}

#[test]
fn lost_reply_to_adoption_leaves_nothing_behind() {
    on_every_server(|server| async move {
        let giver = client(&server).await;
        for (fault, kind) in FAULTS
            .into_iter()
            .flat_map(|fault| HAND_OVER_KINDS.map(|kind| (fault, kind)))
        {
            let proxy = Proxy::start(server.port());
            let adopter = client_behind(&proxy).await;
            let name = name();
            let guard = kind.lock(&giver, &name).await.unwrap();
            let ticket = guard.hand_over(LONG).await.unwrap();
            let adopted = with_fault(&proxy, fault, Hit::First, adopter.adopt(&ticket)).await;
            proxy.release_held();
            let held = match adopted {
                Ok(guard) => Some(guard),
                Err(Error::OutcomeUnknown(_) | Error::Unavailable(_)) => {
                    // Fails if the first request was executed.
                    match adopter.adopt(&ticket).await {
                        Ok(guard) => Some(guard),
                        Err(
                            Error::TicketSpent { .. }
                            | Error::OutcomeUnknown(_)
                            | Error::Unavailable(_),
                        ) => None,
                        Err(error) => panic!("{error}"),
                    }
                }
                Err(error) => panic!("{error}"),
            };
            if let Some(held) = held {
                held.check().unwrap();
                // After an error the release continues in the background.
                let released = held.release().await;
                let is_lost = matches!(released, Err(Error::Lost { .. }));
                assert!(!is_lost, "{fault:?} {kind:?}: {released:?}");
            }
            let gone = || !exists(&server, &name);
            eventually(&format!("{kind:?} {fault:?}"), gone).await;
        }
        eventually("only counters are left", || only_counters_left(&server)).await;
    });
}

#[test]
fn dropped_futures_leave_nothing_behind() {
    let server = server();
    run(async {
        let giver = client(&server).await;
        let adopter = client(&server).await;
        for micros in (0..2_000).step_by(100) {
            let limit = Duration::from_micros(micros);
            for kind in HAND_OVER_KINDS {
                let name = name();
                let guard = kind.lock(&giver, &name).await.unwrap();
                let handed = tokio::time::timeout(limit, guard.hand_over(LONG)).await;
                if let Ok(ticket) = handed {
                    let ticket = ticket.unwrap();
                    let adopting = tokio::time::timeout(limit, adopter.adopt(&ticket));
                    if adopting.await.is_err() {
                        // Not sent, or cancelled.
                        drop(adopter.adopt(&ticket).await);
                    }
                }
                eventually("the lock is free", || !exists(&server, &name)).await;
            }
        }
        eventually("only counters are left", || only_counters_left(&server)).await;
    });
}

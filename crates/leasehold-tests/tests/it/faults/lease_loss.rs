//! Lost leases: the holder is notified before the server can grant the lock to
//! another client.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Loss};
use testkit::{Fault, Proxy, Server, ServerExt};

use super::lost_work::{Hold, Holders, LONG, Work, connect};
use crate::support::callers::{Tasks, Threads};
use crate::support::contract::any_try_lock;
use crate::support::worker;
use crate::support::{
    AMPLE, LEASE, client, client_at, clock, connect_at, eventually, key, loss_of, name, run,
    scaled, server, wait_for_renewal,
};

/// The number of locks, of all types, that are lost at once.
const BATCH: u64 = 128;

/// Separates a client from its server.
struct Outage {
    begin: fn(&Server, &Proxy),
    end: fn(&Server, &Proxy),
}

const BLACK_HOLE: Outage = Outage {
    begin: |_, proxy| proxy.black_hole(true),
    end: |_, proxy| proxy.heal(),
};

const UNREACHABLE: Outage = Outage {
    begin: |_, proxy| {
        proxy.refuse(true);
        proxy.sever();
    },
    end: |_, proxy| proxy.heal(),
};

const DELAYED: Outage = Outage {
    begin: |_, proxy| {
        proxy.inject(|request| match request[0].as_slice() {
            b"EVALSHA" | b"EVAL" => Fault::Hold,
            _ => Fault::None,
        });
    },
    end: |_, proxy| proxy.heal(),
};

const PAUSED: Outage = Outage {
    begin: |server, _| server.pause(),
    end: |server, _| server.resume(),
};

/// When a contender sent a successful acquire, and when the reply arrived.
struct Grant {
    name: String,
    asked: u64,
    granted: u64,
}

/// Loses `BATCH` locks by `outage`, and passes each to `judge` with the
/// contender's grant.
async fn lose_batch<H: Holders>(server: &Server, outage: &Outage, judge: fn(&Hold, &Grant)) {
    let proxy = Proxy::start(server.port());
    let client = connect::<H>(proxy.port()).await;
    let (dropped, drops) = mpsc::channel();
    let (begin, mut started) = tokio::sync::mpsc::unbounded_channel();
    let names: Vec<String> = (0..BATCH).map(|_| name()).collect();
    let holders: Vec<_> = (0..)
        .zip(&names)
        .map(|(number, name)| {
            let work = Work {
                name: name.clone(),
                deadline: AtomicU64::new(0),
                dropped: dropped.clone(),
            };
            H::hold(&client, number, work, begin.clone())
        })
        .collect();
    drop((dropped, begin));
    for _ in &names {
        started
            .recv()
            .await
            .expect("every holder acquires its lock");
    }
    // Past the first renewal, so that deadlines come from renewals too.
    tokio::time::sleep(LONG / 2).await;
    (outage.begin)(server, &proxy);
    let port = server.port();
    let contender = std::thread::spawn(move || run(acquire_all(port, &names)));
    for holder in holders {
        let error = holder.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Lost {
                    loss: Loss::Expired,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    (outage.end)(server, &proxy);
    let grants = contender.join().unwrap();
    let holds: Vec<_> = drops.iter().collect();
    assert_eq!(holds.len(), grants.len());
    for ended in &holds {
        let mut grants = grants.iter();
        let grant = grants.find(|grant| grant.name == ended.name);
        judge(ended, grant.expect("the contender acquires every lock"));
    }
}

/// Acquires every lock as soon as the server grants it.
async fn acquire_all(port: u16, names: &[String]) -> Vec<Grant> {
    let client = connect_at(port)
        .lease(AMPLE)
        // The server may be paused.
        .request_timeout(AMPLE)
        .connect_timeout(AMPLE)
        .await
        .unwrap();
    let contenders: Vec<_> = (0..)
        .zip(names)
        .map(|(number, name)| tokio::spawn(acquire_one(client.clone(), name.clone(), number)))
        .collect();
    let mut grants = Vec::new();
    for contender in contenders {
        grants.push(contender.await.unwrap());
    }
    grants
}

async fn acquire_one(client: Client, name: String, number: u64) -> Grant {
    let end = Instant::now() + AMPLE;
    loop {
        let asked = clock();
        match any_try_lock(&client, &name, number).await {
            Ok(guard) => {
                let granted = clock();
                drop(guard);
                return Grant {
                    name,
                    asked,
                    granted,
                };
            }
            Err(Error::Busy { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        assert!(Instant::now() < end, "{name} is never free");
        // Rarely enough not to delay the notification of the holders.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn lose_batches<H: Holders>(outage: &Outage, judge: fn(&Hold, &Grant)) {
    run(async {
        let server = server();
        for _ in 0..scaled(500).div_ceil(4 * BATCH) {
            lose_batch::<H>(&server, outage, judge).await;
        }
    });
}

/// Asserts that the deadline was over, or the work dropped, before the server
/// granted the lock to another client. A multi-lock drops its work when it
/// loses its other part.
fn check_deadline(ended: &Hold, grant: &Grant) {
    assert_ne!(
        ended.deadline, 0,
        "{}: the lease was never valid",
        ended.name
    );
    let valid_until = ended.deadline.min(ended.dropped);
    assert!(
        valid_until < grant.granted,
        "{}: valid for {} µs too long",
        ended.name,
        (valid_until - grant.granted) / 1000
    );
}

/// Asserts that the work was dropped before another client could hold the lock.
fn check_drop(ended: &Hold, grant: &Grant) {
    check_deadline(ended, grant);
    assert!(
        ended.dropped < grant.asked,
        "{}: dropped {} µs late",
        ended.name,
        (ended.dropped - grant.asked) / 1000
    );
}

#[test]
fn black_hole_reports_loss_in_time() {
    lose_batches::<Tasks>(&BLACK_HOLE, check_deadline);
}

#[test]
fn unreachable_server_reports_loss_in_time() {
    lose_batches::<Tasks>(&UNREACHABLE, check_deadline);
}

#[test]
fn delayed_renewals_report_loss_in_time() {
    lose_batches::<Tasks>(&DELAYED, check_deadline);
}

#[test]
fn paused_server_reports_loss_in_time() {
    lose_batches::<Tasks>(&PAUSED, check_deadline);
}

#[test]
fn black_hole_reports_loss_to_threads_in_time() {
    lose_batches::<Threads>(&BLACK_HOLE, check_deadline);
}

#[test]
fn paused_server_reports_loss_to_threads_in_time() {
    lose_batches::<Threads>(&PAUSED, check_deadline);
}

#[test]
#[ignore = "deep: threads must be notified within the margin of a lease"]
fn unreachable_server_notifies_threads_in_margin() {
    lose_batches::<Threads>(&UNREACHABLE, check_drop);
}

#[test]
#[ignore = "deep: threads must be notified within the margin of a lease"]
fn delayed_renewals_notify_threads_in_margin() {
    lose_batches::<Threads>(&DELAYED, check_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn black_hole_drops_work_before_deadline() {
    lose_batches::<Tasks>(&BLACK_HOLE, check_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn unreachable_server_drops_work_before_deadline() {
    lose_batches::<Tasks>(&UNREACHABLE, check_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn delayed_renewals_drop_work_before_deadline() {
    lose_batches::<Tasks>(&DELAYED, check_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn paused_server_drops_work_before_deadline() {
    lose_batches::<Tasks>(&PAUSED, check_drop);
}

/// Removes or replaces the key. The next renewal reports this; a later report
/// would be an expiry.
async fn tamper_with_key(server: &Server, tamper: &[&str], lease: Duration, limit: Duration) {
    let name = name();
    let client = connect_at(server.port()).lease(lease).await.unwrap();
    let guard = client.mutex(&name).lock().await.unwrap();
    let key = key(&name);
    server.tell(&[&[tamper[0], key.as_str()], &tamper[1..]].concat());
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::Revoked));
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    let after = server.ask(&["GET", &key]);
    assert_eq!(loss_of(guard.release().await), Some(Loss::Revoked));
    assert_eq!(
        server.ask(&["GET", &key]),
        after,
        "the release changed another client's lock"
    );
}

fn tamper_both_ways(lease: Duration, limit: Duration) {
    run(async {
        let server = server();
        tokio::join!(
            tamper_with_key(&server, &["DEL"], lease, limit),
            tamper_with_key(&server, &["SET", "intruder"], lease, limit),
        );
    });
}

#[test]
fn revocation_is_found_at_next_renewal() {
    tamper_both_ways(LEASE, AMPLE);
}

#[test]
#[ignore = "deep: measures when a loss is reported"]
fn revoked_lease_is_reported_within_its_length() {
    let lease = Duration::from_secs(2);
    tamper_both_ways(lease, lease * 3 / 4);
}

#[test]
fn release_of_revoked_lock_reports_loss() {
    run(async {
        let server = server();
        let name = name();
        let guard = client(&server).await.mutex(&name).lock().await.unwrap();
        server.tell(&["SET", &key(&name), "intruder"]);
        assert_eq!(loss_of(guard.release().await), Some(Loss::Revoked));
        assert_eq!(server.ask(&["GET", &key(&name)]).text(), "intruder");
    });
}

#[test]
fn resumed_process_finds_its_guard_invalid() {
    let lease = Duration::from_secs(2);
    run(async {
        let server = server();
        let mut worker = worker::start(server.port(), lease);
        for _ in 0..scaled(2) {
            let name = name();
            let start = Instant::now();
            worker.ask(&format!("lock {name}"));
            let is_valid = worker.ask("check") == "true";
            // A stall may be as long as the lease.
            assert!(is_valid || start.elapsed() > lease * 9 / 10);
            worker.pause();
            let other = client(&server).await.mutex(&name).lock().await.unwrap();
            worker.tell("check");
            worker.resume();
            assert_eq!(worker.answer(), "false");
            let released = worker.ask("release");
            assert!(released.ends_with("loss: Expired })"), "{released}");
            other.check().unwrap();
        }
    });
}

/// Injects `fault` into the next renewal, or breaks the connection if it is
/// `None`.
async fn renew_despite(fault: Fault, server: &Server) {
    let proxy = Proxy::start(server.port());
    let client = client_at(proxy.port()).await;
    let guard = client.mutex(&name()).lock().await.unwrap();
    for _ in 0..scaled(1) {
        let pending = Arc::new(AtomicBool::new(fault != Fault::None));
        let next = pending.clone();
        proxy.inject(move |request| match request[0].as_slice() {
            b"EVALSHA" | b"EVAL" if next.swap(false, Ordering::SeqCst) => fault,
            _ => Fault::None,
        });
        if fault == Fault::None {
            proxy.sever();
        }
        eventually("the fault is injected", || !pending.load(Ordering::SeqCst)).await;
        wait_for_renewal(&[&guard.lease()]).await;
    }
    guard.release().await.unwrap();
}

#[test]
fn single_failed_renewal_keeps_lease() {
    run(async {
        let server = server();
        tokio::join!(
            renew_despite(Fault::None, &server),
            renew_despite(Fault::CutRequest, &server),
            renew_despite(Fault::CutReply, &server),
            renew_despite(Fault::DropReplies, &server),
        );
    });
}

//! A lease that cannot be kept is told to its holder before the server can give the lock to another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease, Loss, MultiLock, ReleaseOutcome};
use testkit::{Fault, Proxy, Server};
use tokio::task::JoinHandle;

use crate::contract::{KINDS, any_lock, any_try_lock};
use crate::support::{
    AMPLE, LEASE, builder_at, client, client_at, clock, eventually, key, name, run, scaled, server,
    until_renewed,
};
use crate::worker::Worker;

/// Long enough that its margin (42 ms) is above what a small machine's scheduler does to a thread: 25 ms were seen.
const LONG: Duration = Duration::from_secs(4);

/// How many locks are lost at once, of all kinds.
const BATCH: u64 = 128;

/// Keeps a client from its server.
struct Outage {
    begin: fn(&Server, &Proxy),
    end: fn(&Server, &Proxy),
}

const SWALLOWED: Outage = Outage {
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

const HELD_BACK: Outage = Outage {
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

/// What is done under a lock: it follows the deadline until it is dropped. All moments are on the clock that the
/// library reads too.
struct Work {
    name: String,
    /// The latest deadline that was seen. The true one is not before it.
    deadline: AtomicU64,
    dropped: mpsc::Sender<Holding>,
}

/// How the holding of a lock ended.
struct Holding {
    name: String,
    deadline: u64,
    dropped: u64,
}

/// When a contender asked for a lock with success, and when the reply was there.
struct Grant {
    name: String,
    asked: u64,
    granted: u64,
}

impl Work {
    async fn follow(self, lease: Lease) {
        loop {
            // In this order a stall in between makes the deadline seem earlier, never later.
            let now = clock();
            let left = u64::try_from(lease.remaining().as_nanos()).unwrap();
            // With nothing left, the deadline was before this moment.
            if left > 0 {
                self.deadline.fetch_max(now + left, Ordering::Relaxed);
            }
            tokio::time::sleep(LONG / 40).await;
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.dropped.send(Holding {
            name: self.name.clone(),
            deadline: self.deadline.load(Ordering::Relaxed),
            dropped: clock(),
        });
    }
}

/// Loses `BATCH` locks by `outage`, and has `judge` see each of them with the contender that got it next.
async fn lose_a_batch(server: &Server, outage: &Outage, judge: fn(&Holding, &Grant)) {
    let proxy = Proxy::start(server.port());
    let client = builder_at(proxy.port())
        .lease(LONG)
        // The part of a multi-lock that is not lost is released during the outage.
        .request_timeout(LONG / 4)
        .connect_timeout(LONG * 3 / 4)
        .connect()
        .await
        .unwrap();
    let (dropped, drops) = mpsc::channel();
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let names: Vec<String> = (0..BATCH).map(|_| name()).collect();
    let holders: Vec<_> = (0..)
        .zip(&names)
        .map(|(number, name)| hold(&client, name, number, &dropped, &begin))
        .collect();
    drop((dropped, begin));
    for _ in &names {
        begun.recv().await.expect("every holder gets its lock");
    }
    // Past the first renewal, so that deadlines come from renewals too.
    tokio::time::sleep(LONG / 2).await;
    (outage.begin)(server, &proxy);
    let port = server.port();
    let contender = std::thread::spawn(move || run(take_all(port, &names)));
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
    let holdings: Vec<_> = drops.iter().collect();
    assert_eq!(holdings.len(), grants.len());
    for holding in &holdings {
        let mut grants = grants.iter();
        let grant = grants.find(|grant| grant.name == holding.name);
        judge(holding, grant.expect("taken in the end"));
    }
}

fn hold(
    client: &Client,
    name: &str,
    number: u64,
    dropped: &mpsc::Sender<Holding>,
    begin: &tokio::sync::mpsc::UnboundedSender<()>,
) -> JoinHandle<Result<(), Error>> {
    let (lock, multi) = (any_lock(client, name, number), number / KINDS % 4 == 3);
    let beside = client.mutex(&format!("beside {name}")).lock();
    let begin = begin.clone();
    let work = Work {
        name: name.to_owned(),
        deadline: AtomicU64::new(0),
        dropped: dropped.clone(),
    };
    let work = move |leases: Vec<Lease>| {
        let mut leases = leases.into_iter();
        let lease = leases.find(|lease| lease.name() == work.name);
        begin.send(()).expect("the test waits");
        work.follow(lease.expect("the lock that was named"))
    };
    tokio::spawn(async move {
        match multi {
            true => MultiLock::new([lock, beside]).run(work).await,
            false => lock.run(|lease| work(vec![lease])).await,
        }
    })
}

/// Takes every lock as soon as the server gives it.
async fn take_all(port: u16, names: &[String]) -> Vec<Grant> {
    let client = builder_at(port)
        .lease(AMPLE)
        // The server may be paused.
        .request_timeout(AMPLE)
        .connect_timeout(AMPLE)
        .connect()
        .await
        .unwrap();
    let takers: Vec<_> = (0..)
        .zip(names)
        .map(|(number, name)| tokio::spawn(take_one(client.clone(), name.clone(), number)))
        .collect();
    let mut grants = Vec::new();
    for taker in takers {
        grants.push(taker.await.unwrap());
    }
    grants
}

async fn take_one(client: Client, name: String, number: u64) -> Grant {
    let end = Instant::now() + AMPLE;
    loop {
        let asked = clock();
        if let Some(guard) = any_try_lock(&client, &name, number).await.unwrap() {
            let granted = clock();
            drop(guard);
            return Grant {
                name,
                asked,
                granted,
            };
        }
        assert!(Instant::now() < end, "{name} is never free");
        // Rarely enough that asking does not starve those who are to be told.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn lose_batches(outage: &Outage, judge: fn(&Holding, &Grant)) {
    run(async {
        let server = server();
        for _ in 0..scaled(500).div_ceil(4 * BATCH) {
            lose_a_batch(&server, outage, judge).await;
        }
    });
}

/// The holder relied on the lock no longer when the server granted it to another, however late either was run: its
/// deadline was over, or its work was dropped, as when a multi-lock has lost its other part.
fn by_the_clock(holding: &Holding, grant: &Grant) {
    assert_ne!(holding.deadline, 0, "{}: never valid", holding.name);
    let relied_until = holding.deadline.min(holding.dropped);
    assert!(
        relied_until < grant.granted,
        "{}: valid for {} µs too long",
        holding.name,
        (relied_until - grant.granted) / 1000
    );
}

/// The work was dropped before another could hold the lock.
fn by_the_drop(holding: &Holding, grant: &Grant) {
    by_the_clock(holding, grant);
    assert!(
        holding.dropped < grant.asked,
        "{}: dropped {} µs late",
        holding.name,
        (holding.dropped - grant.asked) / 1000
    );
}

#[test]
fn told_in_time_when_the_network_swallows_everything() {
    lose_batches(&SWALLOWED, by_the_clock);
}

#[test]
fn told_in_time_when_the_server_cannot_be_reached() {
    lose_batches(&UNREACHABLE, by_the_clock);
}

#[test]
fn told_in_time_when_renewals_are_held_back() {
    lose_batches(&HELD_BACK, by_the_clock);
}

#[test]
fn told_in_time_when_the_server_is_paused() {
    lose_batches(&PAUSED, by_the_clock);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn work_is_dropped_in_time_when_all_is_swallowed() {
    lose_batches(&SWALLOWED, by_the_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn work_is_dropped_in_time_when_server_unreachable() {
    lose_batches(&UNREACHABLE, by_the_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn work_is_dropped_in_time_when_renewals_wait() {
    lose_batches(&HELD_BACK, by_the_drop);
}

#[test]
#[ignore = "deep: work must be dropped within the margin of a lease"]
fn work_is_dropped_in_time_when_server_is_paused() {
    lose_batches(&PAUSED, by_the_drop);
}

/// A key that is gone or another's is reported at the next renewal: at the deadline the loss would be another.
async fn tampered(server: &Server, tamper: &[&str], lease: Duration, limit: Duration) {
    let name = name();
    let builder = builder_at(server.port()).lease(lease);
    let client = builder.connect().await.unwrap();
    let guard = client.mutex(&name).lock().await.unwrap();
    let key = key(&name);
    server.tell(&[&[tamper[0], key.as_str()], &tamper[1..]].concat());
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::Revoked));
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    let after = server.ask(&["GET", &key]);
    assert_eq!(
        guard.release().await.unwrap(),
        ReleaseOutcome::AlreadyLost {
            loss: Loss::Revoked
        }
    );
    assert_eq!(
        server.ask(&["GET", &key]),
        after,
        "the intruder's lock was touched"
    );
}

fn tampered_both_ways(lease: Duration, limit: Duration) {
    run(async {
        let server = server();
        tokio::join!(
            tampered(&server, &["DEL"], lease, limit),
            tampered(&server, &["SET", "intruder"], lease, limit),
        );
    });
}

#[test]
fn told_at_the_next_renewal_when_the_key_is_gone_or_another_s() {
    tampered_both_ways(LEASE, AMPLE);
}

#[test]
#[ignore = "deep: measures when a loss is reported"]
fn a_taken_lease_is_reported_within_its_length() {
    let lease = Duration::from_secs(2);
    tampered_both_ways(lease, lease * 3 / 4);
}

#[test]
fn a_release_that_finds_another_s_lock_says_so() {
    run(async {
        let server = server();
        let name = name();
        let guard = client(&server).await.mutex(&name).lock().await.unwrap();
        server.tell(&["SET", &key(&name), "intruder"]);
        assert_eq!(
            guard.release().await.unwrap(),
            ReleaseOutcome::AlreadyLost {
                loss: Loss::Revoked
            }
        );
        assert_eq!(server.ask(&["GET", &key(&name)]).text(), "intruder");
    });
}

#[test]
fn a_paused_process_finds_its_guard_invalid_on_waking() {
    let lease = Duration::from_secs(2);
    run(async {
        let server = server();
        let mut worker = Worker::start(server.port(), lease);
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
            assert!(
                worker
                    .ask("release")
                    .ends_with("Ok(AlreadyLost { loss: Expired })")
            );
            other.check().unwrap();
        }
    });
}

/// Has `fault` happen to the next renewal of a lease, or to the connection where it is none.
async fn keeps_its_lease_despite(fault: Fault, server: &Server) {
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
        eventually("a renewal", || !pending.load(Ordering::SeqCst)).await;
        until_renewed(&[guard.lease()]).await;
    }
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

#[test]
fn one_failed_renewal_loses_nothing() {
    run(async {
        let server = server();
        tokio::join!(
            keeps_its_lease_despite(Fault::None, &server),
            keeps_its_lease_despite(Fault::CutRequest, &server),
            keeps_its_lease_despite(Fault::CutReply, &server),
            keeps_its_lease_despite(Fault::DropReplies, &server),
        );
    });
}

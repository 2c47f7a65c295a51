//! Requests whose outcome nobody knows: answers swallowed, requests repeated, cut off or run late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error};
use testkit::{Fault, Proxy, Reply, SeededRng, Server};

use crate::contract::{KINDS, any_lock, any_try_lock};
use crate::support::{
    builder_at, client, clock, eventually, exists, key, name, nothing_is_left, run, scaled, server,
};

/// Far longer than any test here: nothing goes away by itself.
const LEASE: Duration = Duration::from_secs(300);

/// A hold may outlive its release by this at most.
const LONGEST: Duration = Duration::from_secs(2);

/// Patience short enough that swallowed answers do not take all day.
fn impatient(port: u16, lease: Duration) -> ClientBuilder {
    builder_at(port)
        .lease(lease)
        .request_timeout(Duration::from_millis(250))
}

/// What the tasks of a run did: who held what when, and when each holding was over.
#[derive(Default)]
struct Record {
    /// Per lock: the moments from which and until which a guard said that it was valid.
    holds: Mutex<HashMap<String, Vec<(u64, u64)>>>,
    /// Per note: when it was given back.
    over: Mutex<HashMap<String, Instant>>,
}

/// Has clients hold locks `total` times behind a faulty network, and checks that there is never a second holder and
/// that nothing is left in the end. Returns how long a holding outlived its release at most.
async fn hold_despite_faults(total: u64) -> Duration {
    let server = server();
    let proxy = Proxy::start(server.port());
    let faults = Arc::new(AtomicU64::new(0));
    misbehave(&proxy, &faults);
    let record = Arc::new(Record::default());
    let over = AtomicBool::new(false);
    let oldest = std::thread::scope(|scope| {
        let observer = scope.spawn(|| oldest_orphan(&server, &record, &over));
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                cycle(proxy.port(), &record, total).await;
                // Also what reaches the server late.
                tokio::time::sleep(Duration::from_millis(500)).await;
                eventually("nothing is left", || nothing_is_left(&server)).await;
            });
        });
        over.store(true, Ordering::SeqCst);
        observer.join().unwrap()
    });
    assert!(
        faults.load(Ordering::SeqCst) > total / 10,
        "hardly any faults"
    );
    for (name, mut holds) in record.holds.lock().unwrap().drain() {
        holds.sort_unstable();
        for pair in holds.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two holders of {name}: {pair:?}");
        }
    }
    oldest
}

#[test]
fn faults_make_no_second_holder_and_no_orphan() {
    run(hold_despite_faults(scaled(300)));
}

#[test]
#[ignore = "deep: measures how long a holding outlives its release"]
fn faults_leave_no_holding_for_long() {
    let oldest = run(hold_despite_faults(scaled(3_000)));
    assert!(
        oldest < LONGEST,
        "a holding outlived its release by {oldest:?}"
    );
}

/// One request in ten fails, each in one of the ways there are.
pub(crate) fn misbehave(proxy: &Proxy, faults: &Arc<AtomicU64>) {
    let (seed, faults) = (AtomicU64::new(7), faults.clone());
    proxy.inject(move |request| {
        let mut rng = SeededRng::new(seed.fetch_add(1, Ordering::Relaxed));
        let greeting = match request[0].as_slice() {
            b"HELLO" | b"CLIENT" | b"COMMAND" | b"TIME" => true,
            // Later ones are seals.
            b"ECHO" => request[1].starts_with(b"leasehold"),
            _ => false,
        };
        if greeting || rng.below(10) != 0 {
            return Fault::None;
        }
        faults.fetch_add(1, Ordering::SeqCst);
        match rng.below(5) {
            0 => Fault::CutRequest,
            1 => Fault::CutReply,
            2 => Fault::DropReplies,
            3 => Fault::Delay(Duration::from_millis(rng.below(400))),
            _ => Fault::DuplicateRequest,
        }
    });
}

/// Takes and releases a dozen locks from several clients, `total` times in all.
async fn cycle(port: u16, record: &Arc<Record>, total: u64) {
    const TASKS: u64 = 24;
    let names: Vec<_> = (0..12).map(|_| name()).collect();
    let left = Arc::new(AtomicU64::new(total));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = loop {
            let lease = if task % 2 == 0 {
                LEASE
            } else {
                Duration::from_millis(900)
            };
            match impatient(port, lease).connect().await {
                Ok(client) => break client,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let (record, left) = (record.clone(), left.clone());
        let kind = task % u64::try_from(names.len()).unwrap();
        let name = names[usize::try_from(kind).unwrap()].clone();
        tasks.push(tokio::spawn(async move {
            let mut number = 0;
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
            {
                number += 1;
                let note = format!("{task}-{number}");
                hold_once(&client, kind, &name, &note, &record).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn hold_once(client: &Client, kind: u64, name: &str, note: &str, record: &Record) {
    let wait = Duration::from_millis(700);
    let acquired = any_lock(client, name, kind).timeout(wait).note(note).await;
    let over = || {
        record
            .over
            .lock()
            .unwrap()
            .insert(note.to_owned(), Instant::now());
    };
    let guard = match acquired {
        Ok(guard) => guard,
        Err(_) => return over(),
    };
    let start = clock();
    if guard.check().is_err() {
        return over();
    }
    match start % 40 {
        // Long enough to be renewed by itself, where the lease is short.
        0 => tokio::time::sleep(Duration::from_millis(500)).await,
        // Renewed by hand; whether that succeeds is for the check below to say.
        1..=20 => drop(guard.extend(Duration::from_millis(950)).await),
        _ => {}
    }
    let end = clock();
    if guard.check().is_ok() {
        record
            .holds
            .lock()
            .unwrap()
            .entry(name.to_owned())
            .or_default()
            .push((start, end));
    }
    // Released in good order, dropped, or in the middle of being released.
    match end % 3 {
        0 => drop(guard),
        1 => drop(tokio::time::timeout(Duration::from_micros(200), guard.release()).await),
        _ => drop(guard.release().await),
    }
    over();
}

/// How long after its release the server was seen to hold a lock in the same name.
fn oldest_orphan(server: &Server, record: &Record, over: &AtomicBool) -> Duration {
    let mut oldest = Duration::ZERO;
    let mut connection = server.connect();
    while !over.load(Ordering::SeqCst) {
        let keys = connection.ask(&["KEYS", "lock:*"]).unwrap();
        for key in keys.list() {
            let values = match connection.ask(&["GET", key.text()]).unwrap() {
                Reply::Text(value) => vec![value],
                Reply::Nil => continue,
                // A lock with a line has a hash of all who hold it or wait.
                _ => texts(&connection.ask(&["HVALS", key.text()]).unwrap()),
            };
            let seen = Instant::now();
            for value in values {
                let note = value.rsplit(' ').next().unwrap();
                if let Some(released) = record.over.lock().unwrap().get(note) {
                    oldest = oldest.max(seen - *released);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    oldest
}

fn texts(answer: &Reply) -> Vec<String> {
    let texts = answer.list().iter();
    texts.map(|text| text.text().to_owned()).collect()
}

/// Acquires locks of all kinds from a server that does not run meanwhile, and waits until nothing is left of them when
/// it runs again. Returns how long the acquires took, and how long the locks then lasted, both at most.
async fn acquire_from_stopped_server() -> (Duration, Duration) {
    let server = server();
    let mut clients = Vec::new();
    for number in 0..2 * KINDS {
        let proxy = Proxy::start(server.port());
        let client = impatient(proxy.port(), LEASE).connect().await.unwrap();
        clients.push((number, name(), client, proxy));
    }
    server.pause();
    let start = Instant::now();
    let acquires: Vec<_> = clients
        .iter()
        .map(|(number, name, client, _)| {
            let acquire = any_lock(client, name, *number).timeout(Duration::from_millis(400));
            tokio::spawn(acquire.into_future())
        })
        .collect();
    for acquire in acquires {
        let error = acquire.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                Error::OutcomeUnknown(_) | Error::Unavailable(_) | Error::Timeout { .. }
            ),
            "{error:?}"
        );
    }
    let took = start.elapsed();
    for (number, _, _, proxy) in &clients {
        // Of each kind, one connection that carried the request is gone as well.
        if *number < KINDS {
            proxy.sever();
        }
    }
    server.resume();
    let resumed = Instant::now();
    // A lock may appear for a moment, when the server comes to it; but not stay.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (number, name, ..) in &clients {
        let gone = || !exists(&server, name);
        eventually(&format!("no orphan of number {number}"), gone).await;
    }
    (took, resumed.elapsed())
}

#[test]
fn an_acquire_that_a_busy_server_runs_late_leaves_no_lock() {
    run(acquire_from_stopped_server());
}

#[test]
#[ignore = "deep: measures latencies"]
fn acquire_from_stopped_server_ends_in_time() {
    let (took, lasted) = run(acquire_from_stopped_server());
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(lasted < LONGEST, "{lasted:?}");
}

/// Holds acquires of all kinds back until their connections were given up, and waits until nothing is left of them.
/// Returns how long the locks lasted at most.
async fn acquire_late() -> Duration {
    let server = server();
    let patient = client(&server).await;
    let mut held_back = Vec::new();
    for kind in 0..KINDS {
        // The servers know the scripts: what is held back is the request by digest.
        drop(any_lock(&patient, &name(), kind).await.unwrap());
        let (proxy, name) = (Proxy::start(server.port()), name());
        let client = impatient(proxy.port(), LEASE).connect().await.unwrap();
        let (of_lock, once) = (key(&name).into_bytes(), AtomicBool::new(false));
        proxy.inject(move |request| match request[0].as_slice() {
            b"SET" | b"EVALSHA"
                if request.contains(&of_lock) && !once.swap(true, Ordering::SeqCst) =>
            {
                Fault::Hold
            }
            _ => Fault::None,
        });
        let waited = any_try_lock(&client, &name, kind).await;
        assert!(
            matches!(waited, Err(Error::OutcomeUnknown(_))),
            "{waited:?}"
        );
        held_back.push((proxy, name, client));
    }
    // Meanwhile the locks are cancelled on other connections.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (proxy, ..) in &held_back {
        proxy.release_held();
    }
    let late = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (_, name, _) in &held_back {
        eventually("the late lock is gone", || !exists(&server, name)).await;
    }
    late.elapsed()
}

#[test]
fn an_acquire_that_arrives_after_its_connection_was_given_up_leaves_no_lock() {
    run(acquire_late());
}

#[test]
#[ignore = "deep: measures how long a late lock lasts"]
fn late_acquire_is_gone_within_two_seconds() {
    let lasted = run(acquire_late());
    assert!(lasted < LONGEST, "{lasted:?}");
}

#[test]
fn a_release_that_arrives_late_does_not_free_a_later_holder() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = impatient(proxy.port(), LEASE).connect().await.unwrap();
        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        proxy.inject(|request| match request[0].as_slice() {
            b"EVALSHA" | b"EVAL" | b"DELEX" | b"DELIFEQ" => Fault::Hold,
            _ => Fault::None,
        });
        assert!(guard.release().await.is_err());
        // As if its lease were over.
        server.tell(&["DEL", &key(&name)]);
        let later = self::client(&server)
            .await
            .mutex(&name)
            .lock()
            .await
            .unwrap();
        proxy.heal();
        proxy.release_held();
        tokio::time::sleep(Duration::from_millis(300)).await;
        later.check().unwrap();
        assert!(exists(&server, &name), "freed by an old release");
        // The same once more by hand, with the value of the first holder.
        let value = server.ask(&["GET", &key(&name)]).text().to_owned();
        let _ = later.release().await.unwrap();
        let last = self::client(&server)
            .await
            .mutex(&name)
            .lock()
            .await
            .unwrap();
        let script = include_str!("../../../leasehold/lua/lean/release.lua");
        let answer = server.ask(&["EVAL", script, "1", &key(&name), &value, "c"]);
        assert_eq!(answer.int(), 0);
        last.check().unwrap();
        assert!(exists(&server, &name));
    });
}

#[test]
fn a_renewal_of_a_lost_lock_does_not_bring_it_back() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = impatient(proxy.port(), Duration::from_millis(600))
            .connect()
            .await
            .unwrap();
        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        proxy.inject(|request| match request[0].as_slice() {
            b"EVALSHA" | b"EVAL" => Fault::Hold,
            _ => Fault::None,
        });
        assert!(guard.lost().await.is_some());
        eventually("expired", || !exists(&server, &name)).await;
        proxy.heal();
        proxy.release_held();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!exists(&server, &name));
        assert!(guard.check().is_err());
    });
}

//! Bugs of waiters, and of dropped acquires.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Credentials, Error, Guard, MultiLock};
use testkit::{Fault, Flavor, Proxy, Server, ServerExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::deployment::{Deployment, FiveServers};
use crate::support::{
    AMPLE, LEASE, PASSWORD, SHORT, channels, client, client_at, connect_at, eventually, is_busy,
    lua, name, only_counters_left, owners, poll_at_most, run, scaled, server, url_at,
    with_long_timeouts,
};

pub(super) async fn wait_for_waiters(server: &Server) {
    eventually("the waiter subscribes", || !channels(server).is_empty()).await;
}

/// The timeout of a clone started only when the other clone acquired the lock.
#[test]
fn reentrant_clone_respects_its_timeout() {
    wait_beside_clone(Duration::from_secs(3), AMPLE);
}

#[test]
#[ignore = "deep: measures how soon a wait ends"]
fn reentrant_clone_times_out_promptly() {
    wait_beside_clone(Duration::from_millis(200), Duration::from_millis(800));
}

fn wait_beside_clone(wait: Duration, limit: Duration) {
    run(async {
        let server = server();
        let name = name();
        let _held = client(&server).await.mutex(&name).lock().await.unwrap();
        let handle = client(&server).await.mutex(&name).reentrant();
        let other = handle.clone();
        let waiting = tokio::spawn(async move { other.lock().await });
        wait_for_waiters(&server).await;
        let start = Instant::now();
        let outcome = tokio::time::timeout(AMPLE, handle.lock().timeout(wait).into_future()).await;
        let error = outcome.expect("the wait ends").unwrap_err();
        assert!(
            matches!(
                error,
                Error::Timeout {
                    holder: Some(_),
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
        waiting.abort();
    });
}

/// Only the leader of the local waiters asks the server, and the others did not
/// know the holder.
#[test]
fn timeout_behind_local_waiters_names_holder() {
    run(async {
        let server = server();
        let name = name();
        let _held = client(&server)
            .await
            .mutex(&name)
            .lock()
            .note("me")
            .await
            .unwrap();
        let waiters = client(&server).await;
        let first = tokio::spawn(waiters.mutex(&name).lock().into_future());
        wait_for_waiters(&server).await;
        let start = Instant::now();
        let holder = loop {
            let behind = waiters.mutex(&name).lock().timeout(LEASE / 100).await;
            match behind.unwrap_err() {
                Error::Timeout {
                    holder: Some(holder),
                    ..
                } => break holder,
                // The first waiter has subscribed, and may not know the holder
                // yet.
                error => assert!(start.elapsed() < AMPLE, "{error:?}"),
            }
        };
        assert_eq!(holder.process.note.as_deref(), Some("me"));
        assert!(holder.lease_remaining.is_some_and(|left| left <= LEASE));
        first.abort();
    });
}

/// A failed multi-lock released its locks in the background, where they blocked
/// its own retry.
#[test]
fn failed_multi_lock_can_be_retried_at_once() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let (first, second) = (client.mutex("a of two"), client.fair_mutex("b of two"));
        for _ in 0..100 {
            let held = second.lock().await.unwrap();
            let both = || MultiLock::new([first.lock(), second.lock()]).timeout(Duration::ZERO);
            assert!(matches!(both().await, Err(Error::Timeout { .. })));
            held.release().await.unwrap();
            both().await.unwrap().release().await.unwrap();
        }
    });
}

/// Each wait beside a dead node of a quorum left a task that waited for that
/// node.
#[test]
fn waits_with_dead_node_leave_no_tasks() {
    run(async {
        let mut five = FiveServers::start(&Flavor::one());
        let (one, other) = (five.client().await, five.client().await);
        five.servers[4].kill();
        let name = name();
        let _held = one.mutex(&name).lock().await.unwrap();
        let tasks = || {
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks()
        };
        let wait_often = async || {
            for _ in 0..30 {
                let wait = Duration::from_millis(20);
                let error = other.mutex(&name).lock().timeout(wait).await.unwrap_err();
                assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            }
        };
        wait_often().await;
        // Short-lived tasks have ended.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = tasks();
        wait_often().await;
        eventually("no tasks are left", || tasks() <= before + 10).await;
    });
}

/// The keeper missed a message that arrived between its last read and its check
/// for remaining clients. The lock stayed until its lease ended.
#[test]
fn guard_dropped_with_last_client_is_released() {
    run(async {
        let server = server();
        let clients = scaled(300);
        for _ in 0..clients {
            let client = connect_at(server.port()).lease(LEASE * 100);
            let client = client.await.unwrap();
            let guard = client.mutex(&name()).try_lock().await.unwrap();
            // The keeper is awake when its client is dropped.
            drop(client.mutex(&name()).try_lock().await.unwrap());
            drop(guard);
        }
        let released = || only_counters_left(&server);
        eventually("only counters are left", released).await;
    });
}

/// For a dropped acquire, a script that the server did not know was sent again,
/// after the cancel that had to come last. The lock stayed until its lease
/// ended.
#[test]
fn acquire_dropped_before_script_load_is_cancelled() {
    const RELEASE: &str = concat!(lua!("queue/prelude"), lua!("queue/release"));
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = connect_at(proxy.port()).lease(LEASE * 100);
        let client = client.await.unwrap();
        let scripts = Arc::new(AtomicU64::new(0));
        let sent = scripts.clone();
        proxy.inject(move |request| {
            sent.fetch_add(request[0].starts_with(b"EVAL").into(), Ordering::SeqCst);
            Fault::None
        });
        // A client that has seen a queue begins with a script.
        let name = name();
        let held = self::client(&server).await;
        let held = held.fair_mutex(&name).lock().await.unwrap();
        let fair = client.fair_mutex(&name);
        let waited = fair.lock().timeout(Duration::from_millis(50)).await;
        assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
        held.release().await.unwrap();
        for _ in 0..10 {
            server.tell(&["SCRIPT", "FLUSH"]);
            // Loaded, so that the cancel is executed when it arrives.
            server.tell(&["SCRIPT", "LOAD", RELEASE]);
            let before = scripts.load(Ordering::SeqCst);
            proxy.black_hole(true);
            let acquiring = tokio::spawn(fair.lock().into_future());
            let in_flight = || scripts.load(Ordering::SeqCst) > before;
            eventually("the request is in flight", in_flight).await;
            acquiring.abort();
            assert!(acquiring.await.is_err(), "the acquire ended first");
            proxy.black_hole(false);
            let cancelled = || scripts.load(Ordering::SeqCst) > before + 1;
            eventually("the acquire is cancelled", cancelled).await;
            // Nothing follows the cancel.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let released = || only_counters_left(&server);
        eventually("only counters are left", released).await;
    });
}

/// When a waiter for one permit left, the next waiter took over its queue
/// entry, and held one permit although it had asked for more.
#[test]
fn successor_gets_the_permits_it_asked_for() {
    run(async {
        let server = server();
        for (first, second) in [(1, 3), (3, 1)] {
            let name = name();
            let (ours, theirs) = (client(&server).await, client(&server).await);
            let (ours, theirs) = (ours.semaphore(&name, 3), theirs.semaphore(&name, 3));
            let held = theirs.acquire_many(3).await.unwrap();
            let leaves = tokio::spawn(ours.acquire_many(first).into_future());
            let is_queued = || !owners(&server, "queue", &name).is_empty();
            eventually("the first is queued", is_queued).await;
            let mut stays = ours.acquire_many(second).into_future();
            let waits = tokio::time::timeout(SHORT, &mut stays).await;
            assert!(waits.is_err(), "all permits are held");
            leaves.abort();
            assert!(leaves.await.unwrap_err().is_cancelled());
            held.release().await.unwrap();
            let guard = stays.await.unwrap();
            let left = 3 - second;
            let is_full = is_busy(theirs.try_acquire_many(left.max(1))).await;
            assert_eq!(is_full, left == 0, "{second} are held");
            guard.release().await.unwrap();
        }
    });
}

/// A caller that was polled late sent another request of its acquire after the
/// keeper had cancelled it. The lock stayed until its lease ended.
#[test]
fn acquire_polled_late_leaves_no_lease() {
    run(async {
        let server = server();
        let limit = Duration::from_millis(100);
        let client = connect_at(server.port()).lease(LEASE * 100);
        let client = client.request_timeout(limit).await.unwrap();
        let semaphore = client.semaphore(&name(), 100);
        let held = loop {
            if let Ok(held) = semaphore.acquire().await {
                break held;
            }
        };
        for flush in [false, true] {
            for polls in 1..4 {
                let mut acquiring = Some(Box::pin(semaphore.try_acquire().into_future()));
                for _ in 0..polls {
                    if flush {
                        server.tell(&["SCRIPT", "FLUSH"]);
                    }
                    let Some(polled) = &mut acquiring else { break };
                    if poll_at_most(polled, 1).await.is_some() {
                        acquiring = None;
                    }
                    // The reply arrives.
                    tokio::time::sleep(limit / 10).await;
                }
                // The keeper cancels what it does not see claimed.
                tokio::time::sleep(limit * 3).await;
                if let Some(acquiring) = acquiring {
                    drop(timeout(limit * 3, acquiring).await);
                }
            }
        }
        drop(held);
        eventually("only counters are left", || only_counters_left(&server)).await;
    });
}

/// An acquire with a timeout took as long as the server to record the token.
#[test]
fn timeout_bounds_recording_of_token() {
    run(async {
        let (old, new) = (server(), server());
        let proxy = Proxy::start(old.port());
        let (from, to) = (client_at(proxy.port()).await, client(&new).await);
        let hold_recording = |request: &[Vec<u8>]| {
            let counter = |arg: &Vec<u8>| arg.starts_with(b"leasehold:token:");
            match request[0].starts_with(b"EVAL") && request.iter().any(counter) {
                true => Fault::Hold,
                false => Fault::None,
            }
        };
        let name = name();
        let lock = |client: &Client| client.mutex(&name).lock();
        let limited = lock(&from).timeout(SHORT);
        for (issued, both) in [
            (
                9_000_000,
                MultiLock::moving(lock(&from), lock(&to)).timeout(SHORT),
            ),
            (9_000_001, MultiLock::moving(limited, lock(&to))),
        ] {
            // The new server has issued larger tokens.
            let issued: u64 = issued * 1_000_000_000;
            new.tell(&["SET", "leasehold:token:{3560}", &issued.to_string()]);
            proxy.inject(hold_recording);
            let error = both.await.unwrap_err();
            proxy.heal();
            proxy.release_held();
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            for client in [&from, &to] {
                let free = lock(client).timeout(AMPLE).await.unwrap();
                free.release().await.unwrap();
            }
        }
    });
}

/// Acquires and releases a lock, so that the callers' connection is open.
async fn connect_callers(client: &Client) {
    let guard = client.mutex(&name()).lock().await.unwrap();
    guard.release().await.unwrap();
}

/// Returns clients' acquires that were polled once and no longer.
async fn unpolled(client: &Client, count: usize) -> Vec<impl Future<Output: Sized>> {
    let mut acquires = Vec::new();
    for _ in 0..count {
        let mutex = client.mutex(&name());
        let mut acquire = Box::pin(async move { mutex.try_lock().await });
        let polled = poll_at_most(acquire.as_mut(), 1).await;
        assert!(polled.is_none(), "it waits for a reply");
        acquires.push(acquire);
    }
    acquires
}

/// A request timeout that survives a stall of the server.
const PATIENT: Duration = Duration::from_secs(3);

/// Starts more acquires than a connection sends at once.
fn crowd(client: &Client) -> JoinSet<Result<Guard, Error>> {
    let mut acquires = JoinSet::new();
    for _ in 0..200 {
        let mutex = client.mutex(&name());
        acquires.spawn(async move { mutex.try_lock().await });
    }
    acquires
}

/// Acquires that waited for others of their connection, and were not polled
/// again, kept all other tasks from acquiring any lock.
#[test]
fn unpolled_acquires_leave_connection_to_others() {
    run(async {
        let server = server();
        let connect = Client::connect(&url_at(server.port())).request_timeout(PATIENT);
        let client = connect.await.unwrap();
        connect_callers(&client).await;
        let unpolled = unpolled(&client, 100).await;
        // Meanwhile the keeper cancels the acquires that were sent.
        tokio::time::sleep(PATIENT * 4 / 3).await;
        for _ in 0..20 {
            drop(client.mutex(&name()).try_lock().await.unwrap());
        }
        drop(unpolled);
    });
}

/// Acquires that waited for others of their connection were sent when it was
/// closed. Their outcome was unknown, and each was cancelled for 15 s.
#[test]
fn acquires_behind_a_cut_use_the_next_connection() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = client_at(proxy.port()).await;
        connect_callers(&client).await;
        proxy.inject(|_| Fault::Hold);
        let acquires = crowd(&client);
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.heal();
        proxy.sever();
        let outcomes = acquires.join_all().await;
        let is_unknown = |outcome: &&_| matches!(outcome, Err(Error::OutcomeUnknown(_)));
        let unknown = outcomes.iter().filter(is_unknown).count();
        assert!(unknown <= 64, "{unknown} were sent");
    });
}

/// One acquire that was given up left room for a single one. If that one was
/// not polled either, all others failed although the server was well.
#[test]
fn abandoned_acquire_leaves_room_for_others() {
    run(async {
        let server = server();
        let connect = Client::connect(&url_at(server.port())).request_timeout(PATIENT);
        let client = connect.await.unwrap();
        for _ in 0..3 {
            let abandoned = unpolled(&client, 1).await;
            for _ in 0..20 {
                drop(client.mutex(&name()).try_lock().await.unwrap());
            }
            // The keeper has cancelled it.
            tokio::time::sleep(PATIENT * 4 / 3).await;
            drop(abandoned);
        }
    });
}

/// When the callers of all acquires in flight were gone, no request found for
/// 15 s that the connection was silent, and all others were refused.
#[test]
fn silent_connection_of_abandoned_acquires_is_replaced() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let url = url_at(proxy.port());
        let client = Client::connect(&url).await.unwrap();
        connect_callers(&client).await;
        proxy.stall_connections();
        drop(unpolled(&client, 100).await);
        let mut attempts = 1;
        while let Err(error) = client.mutex(&name()).try_lock().await {
            assert!(attempts < 8, "{error}");
            attempts += 1;
        }
    });
}

/// The time to connect counted, so all that could not be sent at once were
/// refused when the connection was open.
#[test]
fn acquires_behind_a_slow_connect_are_sent() {
    run(async {
        let server = server();
        let is_slow = Arc::<AtomicBool>::default();
        let asked = is_slow.clone();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url)).connect_timeout(AMPLE);
        let connect = connect.credentials(move |_| {
            let is_slow = asked.load(Ordering::Relaxed);
            async move {
                if is_slow {
                    // Longer than the request timeout.
                    tokio::time::sleep(LEASE * 6 / 10).await;
                }
                Ok::<_, String>(Credentials::new("leasehold", PASSWORD))
            }
        });
        let client = connect.await.unwrap();
        is_slow.store(true, Ordering::Relaxed);
        // Another runtime, which has no connection yet.
        let acquires = std::thread::spawn(move || {
            let mut outcomes = Vec::new();
            run(async { outcomes = crowd(&client).join_all().await });
            outcomes
        });
        let outcomes = acquires.join().expect("no panic");
        let mut refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        assert!(refused.next().is_none(), "{outcomes:?}");
    });
}

/// Acquires that were still to be sent at a shutdown blamed the connection.
#[test]
fn acquires_behind_others_report_a_shutdown() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = client_at(proxy.port()).await;
        connect_callers(&client).await;
        proxy.inject(|_| Fault::Hold);
        let acquires = crowd(&client);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let _ = client.shutdown(SHORT).await;
        let outcomes = acquires.join_all().await;
        let is_told = |outcome: &&_| matches!(outcome, Err(Error::ShutDown));
        let told = outcomes.iter().filter(is_told).count();
        let unavailable = |outcome: &&_| matches!(outcome, Err(Error::Unavailable(_)));
        let blamed = outcomes.iter().filter(unavailable).count();
        assert!(told >= 100 && blamed == 0, "{told}, {blamed}: {outcomes:?}");
    });
}

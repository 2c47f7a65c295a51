//! Latches: each caller counts once, and every waiter sees the change.

use std::time::{Duration, Instant};

use leasehold::{Error, LatchState, SetOutcome};
use testkit::{Proxy, Server, ServerExt};

use crate::support::{
    AMPLE, channels, client, connect_at, eventually, key, name, on_every_server, run, server,
};

const LIFE: Duration = Duration::from_secs(60);

/// How soon a waiter must see a change, in tests that measure latency.
const AT_ONCE: Duration = Duration::from_millis(600);

/// Waits until `clients` clients subscribe to changes of latches.
async fn wait_for_subscribers(server: &Server, clients: i64) {
    eventually("all clients subscribe", || {
        let channels = channels(server);
        let names = channels.iter().map(String::as_str);
        let counts: Vec<_> = ["PUBSUB", "SHARDNUMSUB"].into_iter().chain(names).collect();
        let counts = server.ask(&counts);
        let counts = counts.list().iter().skip(1).step_by(2);
        counts.map(testkit::Reply::int).sum::<i64>() == clients
    })
    .await;
}

#[test]
fn latch_opens_after_each_caller_counts_once() {
    on_every_server(|server| async move {
        let name = name();
        let latch = client(&server).await.latch(&name);
        assert_eq!(latch.state().await.unwrap(), LatchState::Absent);
        assert_eq!(latch.count_down("a").await.unwrap(), LatchState::Absent);
        assert_eq!(latch.set(2, LIFE).await.unwrap(), SetOutcome::Created);
        assert_eq!(latch.set(5, LIFE).await.unwrap(), SetOutcome::AlreadyExists);
        let closed = |remaining| LatchState::Closed { remaining };
        assert_eq!(latch.count_down("a").await.unwrap(), closed(1));
        assert_eq!(
            latch.count_down("a").await.unwrap(),
            closed(1),
            "counted twice"
        );
        assert_eq!(latch.state().await.unwrap(), closed(1));
        assert_eq!(latch.count_down("b").await.unwrap(), LatchState::Open);
        assert_eq!(latch.count_down("c").await.unwrap(), LatchState::Open);
        assert_eq!(latch.until_open(None).await.unwrap(), LatchState::Open);
        let life = server.ask(&["PTTL", &key(&name)]).int();
        assert!(life > 0 && life <= 60_000, "{life}");
    });
}

async fn wakes_all_waiters(server: Server, limit: Duration) {
    let name = name();
    let latch = client(&server).await.latch(&name);
    latch.set(1, LIFE).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let client = client(&server).await;
        for _ in 0..20 {
            let latch = client.latch(&name);
            waiting.push(tokio::spawn(async move { latch.until_open(None).await }));
        }
    }
    wait_for_subscribers(&server, 3).await;
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    let opened = Instant::now();
    latch.count_down("me").await.unwrap();
    for waiter in waiting {
        assert_eq!(waiter.await.unwrap().unwrap(), LatchState::Open);
    }
    let took = opened.elapsed();
    assert!(took < limit, "{took:?}");
}

#[test]
fn opened_latch_wakes_all_waiters() {
    on_every_server(|server| wakes_all_waiters(server, AMPLE));
}

#[test]
#[ignore = "deep: measures how soon waiters wake"]
fn opened_latch_wakes_all_within_600_ms() {
    on_every_server(|server| wakes_all_waiters(server, AT_ONCE));
}

/// Waits for a latch until `change` opens or removes it. Returns the state that
/// the waiter saw, and after how long.
async fn wait_for_change(server: &Server, change: Change) -> (LatchState, Duration) {
    let name = name();
    let latch = client(server).await.latch(&name);
    latch.set(1, LIFE).await.unwrap();
    let waiter = client(server).await.latch(&name);
    let waiter = tokio::spawn(async move { waiter.until_open(None).await });
    wait_for_subscribers(server, 1).await;
    let start = Instant::now();
    match change {
        Change::Deleted => {
            assert!(latch.delete().await.unwrap());
            assert!(!latch.delete().await.unwrap());
        }
        Change::OpenedUnannounced => server.tell(&["HSET", &key(&name), "remaining", "0"]),
        Change::Expired => server.tell(&["PEXPIRE", &key(&name), "1"]),
    }
    let state = waiter.await.unwrap().unwrap();
    let took = start.elapsed();
    eventually("the waiter unsubscribes", || channels(server).is_empty()).await;
    (state, took)
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Deleted,
    OpenedUnannounced,
    Expired,
}

#[test]
fn deleted_latch_wakes_waiters() {
    run(async {
        let (state, _) = wait_for_change(&server(), Change::Deleted).await;
        assert_eq!(state, LatchState::Absent);
    });
}

#[test]
fn unannounced_change_is_found_by_polling() {
    run(async {
        let server = server();
        for unannounced in [Change::OpenedUnannounced, Change::Expired] {
            let (state, _) = wait_for_change(&server, unannounced).await;
            assert_ne!(
                state,
                LatchState::Closed { remaining: 1 },
                "{unannounced:?}"
            );
        }
    });
}

#[test]
#[ignore = "deep: measures how soon a waiter wakes"]
fn changed_latch_wakes_waiter_in_time() {
    run(async {
        let server = server();
        for (change, limit) in [
            (Change::Deleted, AT_ONCE),
            (Change::OpenedUnannounced, Duration::from_millis(1300)),
            (Change::Expired, Duration::from_millis(1300)),
        ] {
            let (_, took) = wait_for_change(&server, change).await;
            assert!(took < limit, "{change:?}: {took:?}");
        }
    });
}

/// Waits for a latch through an outage. Returns how long after the outage the
/// waiter saw it open.
async fn wait_through_outage() -> Duration {
    let server = server();
    let name = name();
    let proxy = Proxy::start(server.port());
    let latch = client(&server).await.latch(&name);
    latch.set(1, LIFE).await.unwrap();
    let waiter = connect_at(proxy.port()).await.unwrap().latch(&name);
    // Longer than a stall. A stall breaks the connection for the subscription,
    // and the client retries.
    let limit = Duration::from_secs(3);
    let start = Instant::now();
    let error = waiter.until_open(Some(limit)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() >= limit);
    let waiting = tokio::spawn(async move { waiter.until_open(None).await });
    wait_for_subscribers(&server, 1).await;
    proxy.refuse(true);
    proxy.sever();
    tokio::time::sleep(Duration::from_millis(500)).await;
    latch.count_down("me").await.unwrap();
    proxy.heal();
    let healed = Instant::now();
    let opened = tokio::time::timeout(AMPLE, waiting).await;
    let state = opened.expect("the wait ends").unwrap().unwrap();
    assert_eq!(state, LatchState::Open);
    healed.elapsed()
}

#[test]
fn wait_survives_outage_and_respects_timeout() {
    run(wait_through_outage());
}

#[test]
#[ignore = "deep: measures how soon a waiter is back after an outage"]
fn open_latch_is_found_soon_after_outage() {
    let took = run(wait_through_outage());
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn out_of_range_arguments_are_rejected() {
    run(async {
        let server = server();
        let latch = client(&server).await.latch(&name());
        let refused = [
            latch.set(0, LIFE).await.map(drop),
            latch.set(1, Duration::ZERO).await.map(drop),
            latch.count_down(&"x".repeat(257)).await.map(drop),
            client(&server).await.latch("").state().await.map(drop),
        ];
        for outcome in refused {
            assert!(matches!(outcome, Err(Error::Invalid { .. })), "{outcome:?}");
        }
    });
}

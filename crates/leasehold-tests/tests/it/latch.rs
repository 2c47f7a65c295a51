//! The latch: counted once per caller, opened for all who wait, never waited for in vain.

use std::time::{Duration, Instant};

use leasehold::{Error, LatchState, SetOutcome};
use testkit::{Proxy, Server};

use crate::support::{
    AMPLE, builder_at, channels, client, eventually, key, name, on_every_server, run, server,
};

const LIFE: Duration = Duration::from_secs(60);

/// How soon a waiter hears that a latch has changed, where times are measured.
const AT_ONCE: Duration = Duration::from_millis(600);

/// Waits until this number of clients have subscribed to the changes of latches.
async fn until_subscribed(server: &Server, clients: i64) {
    eventually("all clients have subscribed", || {
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
fn it_opens_when_every_caller_has_counted_down_once() {
    on_every_server(|server| async move {
        let name = name();
        let latch = client(&server).await.latch(&name);
        assert_eq!(latch.state().await.unwrap(), LatchState::Absent);
        assert_eq!(latch.count_down("a").await.unwrap(), LatchState::Absent);
        assert_eq!(latch.set(2, LIFE).await.unwrap(), SetOutcome::Created);
        assert_eq!(latch.set(5, LIFE).await.unwrap(), SetOutcome::AlreadyExists);
        let left = |remaining| LatchState::Closed { remaining };
        assert_eq!(latch.count_down("a").await.unwrap(), left(1));
        assert_eq!(
            latch.count_down("a").await.unwrap(),
            left(1),
            "counted twice"
        );
        assert_eq!(latch.state().await.unwrap(), left(1));
        assert_eq!(latch.count_down("b").await.unwrap(), LatchState::Open);
        assert_eq!(latch.count_down("c").await.unwrap(), LatchState::Open);
        assert_eq!(latch.wait().await.unwrap(), LatchState::Open);
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
            waiting.push(tokio::spawn(async move { latch.wait().await }));
        }
    }
    until_subscribed(&server, 3).await;
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
fn all_who_wait_are_told_at_once() {
    on_every_server(|server| wakes_all_waiters(server, AMPLE));
}

#[test]
#[ignore = "deep: measures how soon waiters wake"]
fn a_latch_that_opens_wakes_all_within_600_ms() {
    on_every_server(|server| wakes_all_waiters(server, AT_ONCE));
}

/// Waits for a latch that `change` takes away or opens; says in what state it was found, and after how long.
async fn waits_until(server: &Server, change: Change) -> (LatchState, Duration) {
    let name = name();
    let latch = client(server).await.latch(&name);
    latch.set(1, LIFE).await.unwrap();
    let waiter = client(server).await.latch(&name);
    let waiter = tokio::spawn(async move { waiter.wait().await });
    until_subscribed(server, 1).await;
    let start = Instant::now();
    match change {
        Change::Deleted => {
            assert!(latch.delete().await.unwrap());
            assert!(!latch.delete().await.unwrap());
        }
        Change::OpenedSilently => server.tell(&["HSET", &key(&name), "left", "0"]),
        Change::Expired => server.tell(&["PEXPIRE", &key(&name), "1"]),
    }
    let state = waiter.await.unwrap().unwrap();
    let took = start.elapsed();
    eventually("unsubscribed", || channels(server).is_empty()).await;
    (state, took)
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Deleted,
    OpenedSilently,
    Expired,
}

#[test]
fn deleting_it_wakes_those_who_wait() {
    run(async {
        let (state, _) = waits_until(&server(), Change::Deleted).await;
        assert_eq!(state, LatchState::Absent);
    });
}

#[test]
fn a_latch_that_opens_or_expires_without_a_word_is_found() {
    run(async {
        let server = server();
        for silently in [Change::OpenedSilently, Change::Expired] {
            let (state, _) = waits_until(&server, silently).await;
            assert_ne!(state, LatchState::Closed { remaining: 1 }, "{silently:?}");
        }
    });
}

#[test]
#[ignore = "deep: measures how soon a waiter wakes"]
fn a_latch_that_changes_wakes_its_waiter_in_time() {
    run(async {
        let server = server();
        for (change, limit) in [
            (Change::Deleted, AT_ONCE),
            (Change::OpenedSilently, Duration::from_millis(1300)),
            (Change::Expired, Duration::from_millis(1300)),
        ] {
            let (_, took) = waits_until(&server, change).await;
            assert!(took < limit, "{change:?}: {took:?}");
        }
    });
}

/// Waits for a latch through an outage; says how long after the outage it was found open.
async fn waits_through_an_outage() -> Duration {
    let (server, name) = (server(), name());
    let proxy = Proxy::start(server.port());
    let latch = client(&server).await.latch(&name);
    latch.set(1, LIFE).await.unwrap();
    let waiter = builder_at(proxy.port())
        .connect()
        .await
        .unwrap()
        .latch(&name);
    // Longer than a stall, which breaks the connection on which the client subscribes: the client tries again.
    let (limit, start) = (Duration::from_secs(3), Instant::now());
    let error = waiter.wait_timeout(limit).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() >= limit);
    let waiting = tokio::spawn(async move { waiter.wait().await });
    until_subscribed(&server, 1).await;
    proxy.refuse(true);
    proxy.sever();
    tokio::time::sleep(Duration::from_millis(500)).await;
    latch.count_down("me").await.unwrap();
    proxy.heal();
    let healed = Instant::now();
    let opened = tokio::time::timeout(AMPLE, waiting).await;
    let state = opened.expect("found again").unwrap().unwrap();
    assert_eq!(state, LatchState::Open);
    healed.elapsed()
}

#[test]
fn a_wait_survives_an_outage_and_ends_at_its_limit() {
    run(waits_through_an_outage());
}

#[test]
#[ignore = "deep: measures how soon a waiter is back after an outage"]
fn a_latch_is_found_open_soon_after_an_outage() {
    let took = run(waits_through_an_outage());
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn arguments_out_of_range_are_refused() {
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

//! The latch: counted once per caller, opened for all who wait, never waited for in vain.

use std::time::{Duration, Instant};

use leasehold::{Error, LatchState};
use testkit::Proxy;
use testkit::machine::ran_since;

use crate::support::{beside_others, builder_at, client, key, name, on_every_server, server};

const LIFE: Duration = Duration::from_secs(60);

#[test]
fn it_opens_when_every_caller_has_counted_down_once() {
    on_every_server(|server| async move {
        let name = name();
        let latch = client(&server).await.latch(&name);
        assert_eq!(latch.state().await.unwrap(), LatchState::Absent);
        assert_eq!(latch.count_down("a").await.unwrap(), LatchState::Absent);
        assert!(latch.set(2, LIFE).await.unwrap());
        assert!(!latch.set(5, LIFE).await.unwrap(), "set twice");
        let left = |left| LatchState::Closed { left };
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

#[test]
fn all_who_wait_are_told_at_once() {
    on_every_server(|server| async move {
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
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
        let opened = Instant::now();
        latch.count_down("me").await.unwrap();
        for waiter in waiting {
            assert_eq!(waiter.await.unwrap().unwrap(), LatchState::Open);
        }
        assert!(
            ran_since(opened) < Duration::from_millis(600),
            "{:?}",
            opened.elapsed()
        );
    });
}

#[test]
fn deleting_it_wakes_those_who_wait() {
    beside_others(async {
        let (server, name) = (server(), name());
        let latch = client(&server).await.latch(&name);
        latch.set(1, LIFE).await.unwrap();
        let waiter = client(&server).await.latch(&name);
        let waiter = tokio::spawn(async move { waiter.wait().await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        let deleted = Instant::now();
        assert!(latch.delete().await.unwrap());
        assert!(!latch.delete().await.unwrap());
        assert_eq!(waiter.await.unwrap().unwrap(), LatchState::Absent);
        assert!(ran_since(deleted) < Duration::from_millis(600));
    });
}

#[test]
fn a_latch_that_opens_or_expires_without_a_word_is_found() {
    beside_others(async {
        let server = server();
        for silently in ["HSET", "PEXPIRE"] {
            let name = name();
            let latch = client(&server).await.latch(&name);
            latch.set(1, LIFE).await.unwrap();
            let waiter = client(&server).await.latch(&name);
            let waiter = tokio::spawn(async move { waiter.wait().await });
            tokio::time::sleep(Duration::from_millis(200)).await;
            let start = Instant::now();
            match silently {
                "HSET" => server.tell(&["HSET", &key(&name), "left", "0"]),
                _ => server.tell(&["PEXPIRE", &key(&name), "1"]),
            }
            let state = waiter.await.unwrap().unwrap();
            assert_ne!(state, LatchState::Closed { left: 1 });
            assert!(ran_since(start) < Duration::from_millis(1300), "{silently}");
        }
    });
}

#[test]
fn a_wait_survives_an_outage_and_ends_at_its_limit() {
    beside_others(async {
        let (server, name) = (server(), name());
        let proxy = Proxy::start(server.port());
        let latch = client(&server).await.latch(&name);
        latch.set(1, LIFE).await.unwrap();
        let waiter = builder_at(proxy.port())
            .connect()
            .await
            .unwrap()
            .latch(&name);
        let limit = Duration::from_millis(300);
        let error = waiter.wait_for(limit).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        let waiting = tokio::spawn(async move { waiter.wait().await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.refuse(true);
        proxy.sever();
        tokio::time::sleep(Duration::from_millis(500)).await;
        latch.count_down("me").await.unwrap();
        proxy.heal();
        let opened = tokio::time::timeout(Duration::from_secs(3), waiting).await;
        let state = opened.expect("found again").unwrap().unwrap();
        assert_eq!(state, LatchState::Open);
    });
}

#[test]
fn arguments_out_of_range_are_refused() {
    beside_others(async {
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

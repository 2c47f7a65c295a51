//! Locks that are handed on, kept, or asked for as another kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::{Acquire, Client, Error, ReleaseOutcome};
use testkit::{Fault, Proxy, Server};

use crate::hand_on::{KINDS, pass};
use crate::inspect::allow_looking;
use crate::support::{
    AMPLE, LEASE, builder_at, client, eventually, is_awaited, key, name, owners, run, server,
};

/// A writer was handed a fair mutex of the same name by a task of its process. It must ask the server.
#[test]
fn writer_is_not_handed_a_fair_mutex() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let first = client.fair_mutex(&name).lock().await.unwrap();
        let second = tokio::spawn(client.fair_mutex(&name).lock().into_future());
        eventually("it waits", || !owners(&server, "queue", &name).is_empty()).await;
        let writer = Acquire::from(client.rw_lock(&name).write()).timeout(AMPLE);
        let writer = tokio::spawn(writer.into_future());
        let semaphore = client.semaphore(&name, 1).acquire().timeout(AMPLE);
        let semaphore = tokio::spawn(semaphore.into_future());
        for asked in [writer, semaphore] {
            let error = asked.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        }
        assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
        let second = second.await.unwrap().unwrap();
        assert_eq!(second.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

/// A task that waited for a latch waited behind tasks of its process that wanted
/// a mutex of that name. It must ask the server.
#[test]
fn latch_waiter_does_not_wait_for_a_mutex() {
    run(async {
        let server = server();
        let (other, client) = (client(&server).await, client(&server).await);
        let name = name();
        let held = other.mutex(&name).lock().await.unwrap();
        let waiter = tokio::spawn(client.mutex(&name).lock().into_future());
        eventually("it waits", || is_awaited(&server, &name)).await;
        let error = client.latch(&name).wait_timeout(LEASE).await.unwrap_err();
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
        let guard = waiter.await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

/// After the counter was lost, tokens for hand-ons started below the holder's own.
#[test]
fn handed_on_token_exceeds_own_without_counter() {
    const LOSE: &[&str] = &[
        "EVAL",
        "for _, key in ipairs(redis.call('KEYS', 'leasehold:token:*')) do redis.call('DEL', key) end",
        "0",
    ];
    run(async {
        let server = server();
        for kind in KINDS {
            for _ in 0..5 {
                // Asserts that the tokens rise.
                let _ = pass(&server, kind, |lock| lock, LOSE).await;
            }
        }
    });
}

/// The lock was free when the lease ended.
#[test]
fn at_least_above_a_fixed_lease_is_refused() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let asked = client.mutex(&name).try_lock().fixed_lease(LEASE);
        let error = asked.at_least(LEASE * 2).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("20s") && text.contains("10s"), "{text}");
    });
}

/// A renewal that was under way when its lock was released made the server keep the lock for a whole lease.
#[test]
fn late_renewal_does_not_prolong_a_kept_lock() {
    const RENEWALS: [&str; 2] = [
        include_str!("../../../../leasehold/lua/lean/renew.lua"),
        concat!(
            include_str!("../../../../leasehold/lua/queue/state.lua"),
            include_str!("../../../../leasehold/lua/queue/steps.lua"),
            include_str!("../../../../leasehold/lua/queue/renew.lua")
        ),
    ];
    run(async {
        let servers = [server(), server()];
        for (server, renewal) in servers.iter().zip(RENEWALS) {
            // Known, so that it is executed when it arrives.
            server.tell(&["SCRIPT", "LOAD", renewal]);
        }
        tokio::join!(
            renew_late(&servers[0], |client, name| client.mutex(name).lock()),
            renew_late(&servers[1], |client, name| client.fair_mutex(name).lock()),
        );
    });
}

async fn renew_late(server: &Server, lock: fn(&Client, &str) -> Acquire) {
    allow_looking(server);
    let proxy = Proxy::start(server.port());
    let client = builder_at(proxy.port()).connect().await.unwrap();
    let name = name();
    let lock = lock(&client, &name).at_least(LEASE).note("job");
    let guard = lock.await.unwrap();
    let held_back = Arc::new(AtomicBool::new(false));
    let seen = held_back.clone();
    // The first script from now on is the renewal.
    proxy.inject(move |request| {
        let is_script = request[0].starts_with(b"EVAL");
        match is_script && !seen.swap(true, Ordering::SeqCst) {
            true => Fault::Hold,
            false => Fault::None,
        }
    });
    eventually("renewed", || held_back.load(Ordering::SeqCst)).await;
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let kept = end_of(server, &name).expect("it is kept");
    let before = scripts(server);
    proxy.release_held();
    eventually("the renewal arrives", || scripts(server) > before).await;
    assert_eq!(end_of(server, &name), Some(kept), "prolonged");
    let seen = client.inspect(&name).await.unwrap().expect("it is kept");
    assert_eq!(seen.holders[0].note.as_deref(), Some("job"));
}

/// How many scripts the server has run by their digest.
pub(super) fn scripts(server: &Server) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let stats = stats.text();
    let (_, calls) = stats.split_once("cmdstat_evalsha:calls=").unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

/// When this lock ends on the server, as the server has it.
fn end_of(server: &Server, name: &str) -> Option<String> {
    let holders = server.ask(&["KEYS", &format!("leasehold:holders:*:{}", key(name))]);
    let Some(holders) = holders.list().first() else {
        let end = server.ask(&["PEXPIRETIME", &key(name)]).int();
        return (end > 0).then(|| end.to_string());
    };
    let owners = server.ask(&["ZRANGE", holders.text(), "0", "0", "WITHSCORES"]);
    Some(owners.list().get(1)?.text().to_owned())
}

//! Bugs of Redisson's objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::redisson::Redisson;
use leasehold::{Acquire, Guard, ReleaseOutcome, Unfenced};
use testkit::{Fault, Flavor, Proxy, Redisson as Java, RedissonConfig, Reply, Server};

use super::holding::scripts;
use crate::redisson::{ENDLESS, client, is_refused, server, take_now, with_newest};
use crate::support::{AMPLE, LEASE, eventually, run, url_at};

/// The kinds, and the script that renews each of them.
const RENEWALS: [(&str, &str); 5] = [
    ("lock", LOCK),
    ("fair", LOCK),
    ("read", READ_WRITE),
    ("write", READ_WRITE),
    ("permits", PERMITS),
];
const LOCK: &str = include_str!("../../../../leasehold/lua/redisson/lock_renew.lua");
const READ_WRITE: &str = concat!(
    include_str!("../../../../leasehold/lua/redisson/rw_readers.lua"),
    include_str!("../../../../leasehold/lua/redisson/rw_renew.lua")
);
const PERMITS: &str = include_str!("../../../../leasehold/lua/redisson/permits_renew.lua");

/// A renewal that was under way when its lock was released made the server keep
/// the lock for a whole lease.
#[test]
fn late_renewal_does_not_prolong_a_kept_object() {
    std::thread::scope(|scope| {
        for (kind, renewal) in RENEWALS {
            scope.spawn(move || run(renew_late(kind, renewal)));
        }
    });
}

async fn renew_late(kind: &str, renewal: &str) {
    let server = server(&Flavor::one());
    // Known, so that it is executed when it arrives.
    server.tell(&["SCRIPT", "LOAD", renewal]);
    let proxy = Proxy::start(server.port());
    let client = client(&url_at(proxy.port())).await;
    let ours = client.redisson().watchdog(LEASE);
    let permits = ours.permit_expirable_semaphore("job");
    if kind == "permits" {
        permits.try_set_permits(2).await.unwrap();
    }
    let held_back = Arc::new(AtomicBool::new(false));
    let seen = held_back.clone();
    let judge = move |request: &[Vec<u8>]| {
        let is_script = request[0].starts_with(b"EVAL");
        match is_script && !seen.swap(true, Ordering::SeqCst) {
            true => Fault::Hold,
            false => Fault::None,
        }
    };
    // The first script after the acquire is the renewal.
    let until_renewed = async || {
        proxy.inject(judge);
        eventually("renewed", || held_back.load(Ordering::SeqCst)).await;
    };
    macro_rules! keep {
        ($lock:expr) => {{
            let guard = $lock.at_least(LEASE).await.unwrap();
            until_renewed().await;
            guard.release().await.unwrap()
        }};
    }
    let rw = ours.read_write_lock("job");
    let released = match kind {
        "lock" => keep!(ours.lock("job").lock()),
        "fair" => keep!(ours.fair_lock("job").lock()),
        "read" => keep!(rw.read_lock().lock()),
        "write" => keep!(rw.write_lock().lock()),
        _ => keep!(permits.acquire(2)),
    };
    assert_eq!(released, ReleaseOutcome::Released, "{kind}");
    let kept = state(&server);
    assert!(!kept.is_empty(), "{kind}");
    let before = scripts(&server);
    proxy.release_held();
    eventually("the renewal arrives", || scripts(&server) > before).await;
    assert_eq!(state(&server), kept, "{kind}: prolonged");
}

/// All keys with their contents and when they expire.
fn state(server: &Server) -> Vec<(String, Reply, i64)> {
    let keys = server.ask(&["KEYS", "*job*"]);
    let keys = keys.list().iter().map(|key| key.text().to_owned());
    let mut state: Vec<_> = keys
        .map(|key| {
            let content = match server.ask(&["TYPE", &key]).text() {
                "hash" => server.ask(&["HGETALL", &key]),
                "zset" => server.ask(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]),
                _ => Reply::Nil,
            };
            let end = server.ask(&["PEXPIRETIME", &key]).int();
            (key, content, end)
        })
        .collect();
    state.sort_by(|one, other| one.0.cmp(&other.0));
    state
}

/// What a release keeps is a lock that Redisson understands, and ends by itself.
#[test]
fn kept_lock_keeps_java_out_until_it_ends() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
        run(async {
            let client = client(&url_at(server.port())).await;
            let ours = client.redisson().watchdog(LEASE);
            for (kind, javas) in [
                ("lock", "lock"),
                ("fair", "fair"),
                ("read", "write"),
                ("write", "read"),
            ] {
                keep(&ours, kind, "job").await;
                assert!(is_refused(&ours, javas, "job").await, "{kind}");
                let java = |what: &str| java.ask("a", &format!("lock {javas}/{what} job"));
                assert_eq!(java("try"), "false", "{kind}");
                if kind == "read" {
                    // Readers of both sides come and go beside it.
                    take_now(&ours, "read", "job").await.give_back().await;
                    assert_eq!(java("try"), "false", "{kind}");
                }
                let holder = ours.lock("job").holder().await.unwrap().expect("kept");
                assert!(holder.released, "{kind}: {holder:?}");
                for (key, ..) in state(&server) {
                    server.tell(&["PEXPIRE", &key, "1"]);
                }
                eventually("it ends", || java("try") == "true").await;
                assert_eq!(java("unlock"), "ok", "{kind}");
            }
        });
    });
}

/// Releases a lock that is kept from others for long.
async fn keep(ours: &Redisson, kind: &str, name: &str) {
    let rw = ours.read_write_lock(name);
    let released = match kind {
        "lock" => release(ours.lock(name).lock()).await,
        "fair" => release(ours.fair_lock(name).lock()).await,
        "read" => release(rw.read_lock().lock()).await,
        _ => {
            let guard = rw.write_lock().lock().at_least(AMPLE).await;
            guard.unwrap().release().await.unwrap()
        }
    };
    assert_eq!(released, ReleaseOutcome::Released, "{kind}");
}

async fn release(lock: Acquire<Guard<Unfenced>>) -> ReleaseOutcome {
    let guard = lock.at_least(AMPLE).await.unwrap();
    guard.release().await.unwrap()
}

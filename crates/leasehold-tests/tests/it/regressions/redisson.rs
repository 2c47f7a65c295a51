//! Bugs of Redisson's objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::redisson::Redisson;
use leasehold::{Error, Replicas};
use testkit::{Fault, Flavor, Proxy, Redisson as Java, RedissonConfig, Reply, Server, ServerExt};

use crate::support::redisson::{
    LONG_WATCHDOG, acquire_now, client, is_refused, server, with_newest,
};
use crate::support::{
    AMPLE, LEASE, SHORT, command_calls, eventually, is_busy, lua, run, url_at, wait_for_renewal,
};

/// The kinds, and the script that renews each of them.
const RENEWALS: [(&str, &str); 5] = [
    ("lock", LOCK),
    ("fair", LOCK),
    ("read", READ_WRITE),
    ("write", READ_WRITE),
    ("permits", PERMITS),
];
const LOCK: &str = concat!(lua!("redisson/renew_prelude"), lua!("redisson/lock_renew"));
const READ_WRITE: &str = concat!(
    lua!("redisson/renew_prelude"),
    lua!("redisson/rw_prelude"),
    lua!("redisson/rw_renew")
);
const PERMITS: &str = concat!(
    lua!("redisson/clock_prelude"),
    lua!("redisson/permits_renew")
);

/// A renewal in flight during a release made the server keep the lock for a
/// whole lease.
#[test]
fn late_renewal_does_not_extend_released_object() {
    std::thread::scope(|scope| {
        for (kind, renewal) in RENEWALS {
            scope.spawn(move || run(renew_late(kind, renewal)));
        }
    });
}

async fn renew_late(kind: &str, renewal: &str) {
    let server = server(&Flavor::one());
    // Loaded, so that it is executed when it arrives.
    server.tell(&["SCRIPT", "LOAD", renewal]);
    let proxy = Proxy::start(server.port());
    let client = client(&url_at(proxy.port())).await;
    let ours = client.redisson().watchdog(LEASE);
    let permits = ours.permit_expirable_semaphore("job");
    if kind == "permits" {
        permits.try_set_permits(2).await.unwrap();
    }
    let delayed = Arc::new(AtomicBool::new(false));
    let seen = delayed.clone();
    let judge = move |request: &[Vec<u8>]| {
        let is_script = request[0].starts_with(b"EVAL");
        match is_script && !seen.swap(true, Ordering::SeqCst) {
            true => Fault::Hold,
            false => Fault::None,
        }
    };
    // The first script after the acquire is the renewal.
    let wait_for_renewal = async || {
        proxy.inject(judge);
        eventually("the renewal is delayed", || delayed.load(Ordering::SeqCst)).await;
    };
    macro_rules! release_with_at_least {
        ($lock:expr) => {{
            let guard = $lock.at_least(LEASE).await.unwrap();
            wait_for_renewal().await;
            guard.release().await.unwrap();
        }};
    }
    let rw = ours.read_write_lock("job");
    match kind {
        "lock" => release_with_at_least!(ours.lock("job").lock()),
        "fair" => release_with_at_least!(ours.fair_lock("job").lock()),
        "read" => release_with_at_least!(rw.read_lock().lock()),
        "write" => release_with_at_least!(rw.write_lock().lock()),
        _ => release_with_at_least!(permits.acquire(2)),
    }
    let at_release = state(&server);
    assert!(!at_release.is_empty(), "{kind}");
    let before = command_calls(&server, "evalsha");
    proxy.release_held();
    eventually("the renewal arrives", || {
        command_calls(&server, "evalsha") > before
    })
    .await;
    assert_eq!(state(&server), at_release, "{kind}: extended");
}

/// Returns all keys with their contents and expiry.
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

/// Redisson understands a lock that `at_least` keeps after its release, and it
/// expires.
#[test]
fn released_at_least_lock_excludes_java() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(
            version,
            &RedissonConfig::single(server.port(), LONG_WATCHDOG),
        );
        run(async {
            let client = client(&url_at(server.port())).await;
            let ours = client.redisson().watchdog(LEASE);
            for (kind, java_kind) in [
                ("lock", "lock"),
                ("fair", "fair"),
                ("read", "write"),
                ("write", "read"),
            ] {
                release_with_at_least(&ours, kind, "job").await;
                assert!(is_refused(&ours, java_kind, "job").await, "{kind}");
                let java = |what: &str| java.ask("a", &format!("lock {java_kind}/{what} job"));
                assert_eq!(java("try"), "false", "{kind}");
                if kind == "read" {
                    // Readers of both sides come and go beside it.
                    acquire_now(&ours, "read", "job").await.release_held().await;
                    assert_eq!(java("try"), "false", "{kind}");
                }
                let holder = ours
                    .lock("job")
                    .holder()
                    .await
                    .unwrap()
                    .expect("at_least still applies");
                assert!(holder.released, "{kind}: {holder:?}");
                for (key, ..) in state(&server) {
                    server.tell(&["PEXPIRE", &key, "1"]);
                }
                eventually("the lock expires", || java("try") == "true").await;
                assert_eq!(java("unlock"), "ok", "{kind}");
            }
        });
    });
}

/// Releases a lock with an `at_least` that lasts.
async fn release_with_at_least(ours: &Redisson, kind: &str, name: &str) {
    let rw = ours.read_write_lock(name);
    let lock = match kind {
        "lock" => ours.lock(name).lock(),
        "fair" => ours.fair_lock(name).lock(),
        "read" => rw.read_lock().lock(),
        _ => rw.write_lock().lock(),
    };
    let guard = lock.at_least(AMPLE).await.unwrap();
    guard.release().await.unwrap();
}

/// A reader that left could leave its place to a writer of the same process,
/// which then held the lock as a reader.
#[test]
fn writer_behind_a_reader_that_left_writes() {
    run(async {
        let server = server(&Flavor::one());
        let url = url_at(server.port());
        let lock = async || {
            let client = client(&url).await;
            client.redisson().watchdog(LEASE).read_write_lock("job")
        };
        let (ours, theirs) = (lock().await, lock().await);
        let held = theirs.write_lock().lock().await.unwrap();
        let leaves = tokio::spawn(ours.read_lock().lock().into_future());
        eventually("the reader waits", || {
            let channels = server.ask(&["PUBSUB", "CHANNELS", "redisson_rwlock*"]);
            !channels.list().is_empty()
        })
        .await;
        let mut stays = ours.write_lock().lock().into_future();
        let waits = tokio::time::timeout(SHORT, &mut stays).await;
        assert!(waits.is_err(), "another client writes");
        leaves.abort();
        assert!(leaves.await.unwrap_err().is_cancelled());
        held.release().await.unwrap();
        let guard = stays.await.unwrap();
        let is_refused = is_busy(theirs.read_lock().try_lock()).await;
        assert!(is_refused, "a writer excludes readers");
        guard.release().await.unwrap();
    });
}

/// A reentrant handle that had been downgraded still let writers in, beside the
/// readers of other clients.
#[test]
fn handle_after_downgrade_excludes_readers() {
    run(async {
        let server = server(&Flavor::one());
        let client = client(&url_at(server.port())).await;
        let lock = client.redisson().watchdog(LEASE).read_write_lock("job");
        let handle = lock.write_lock().reentrant();
        let writer = handle.lock().await.unwrap();
        let reader = writer.downgrade().await.unwrap();
        assert_eq!(handle.guards(), 0);
        let other = lock.read_lock().try_lock().await.unwrap();
        assert!(is_busy(handle.try_lock()).await, "readers hold it");
        reader.release().await.unwrap();
        other.release().await.unwrap();

        // The second guard relies on the exclusion.
        let outer = handle.lock().await.unwrap();
        let inner = handle.lock().await.unwrap();
        let refused = inner.downgrade().await;
        assert!(matches!(
            refused,
            Err(Error::Invalid {
                what: "downgrade",
                ..
            })
        ));
        assert!(is_busy(lock.read_lock().try_lock()).await);
        outer.release().await.unwrap();
    });
}

/// The downgrade of a reader succeeded, although it is documented to fail.
#[test]
fn downgrade_of_a_reader_is_refused() {
    run(async {
        let server = server(&Flavor::one());
        let client = client(&url_at(server.port())).await;
        let lock = client.redisson().watchdog(LEASE).read_write_lock("job");
        let reader = lock.read_lock().lock().await.unwrap();
        let refused = reader.downgrade().await;
        assert!(matches!(
            refused,
            Err(Error::Invalid {
                what: "downgrade",
                ..
            })
        ));
    });
}

/// With a fixed lease, the guard was lost while the server still counted the
/// permits.
#[test]
fn options_of_a_lease_are_refused_without_one() {
    run(async {
        let server = server(&Flavor::one());
        let client = client(&url_at(server.port())).await;
        let permits = client.redisson().semaphore("job");
        permits.try_set_permits(2).await.unwrap();
        let acquire = || permits.try_acquire(1);
        for refused in [
            acquire().lease(LEASE),
            acquire().fixed_lease(LEASE),
            acquire().at_least(LEASE),
            acquire().at_most(LEASE),
        ] {
            let outcome = refused.await;
            assert!(
                matches!(outcome, Err(Error::Invalid { what: "lease", .. })),
                "{outcome:?}"
            );
        }
        acquire().await.unwrap().release().await.unwrap();
        assert_eq!(permits.available_permits().await.unwrap(), 2);
    });
}

/// Nothing that replicas could acknowledge was written, so a failover lost the
/// permits.
#[test]
fn replicas_are_refused_for_permits_without_a_lease() {
    run(async {
        let server = server(&Flavor::one());
        let client = client(&url_at(server.port())).await;
        let permits = client.redisson().semaphore("job");
        permits.try_set_permits(2).await.unwrap();
        let asked = permits.try_acquire(1).replicas(Replicas::All, SHORT);
        let refused = asked.await.unwrap_err();
        let Error::Invalid { what, .. } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(what, "replicas");
        assert_eq!(permits.available_permits().await.unwrap(), 2);
    });
}

/// A renewal in the millisecond of the acquire wrote nothing that replicas
/// could acknowledge.
#[test]
fn renewal_of_permits_always_writes() {
    run(async {
        let server = server(&Flavor::one());
        let client = client(&url_at(server.port())).await;
        let permits = client.redisson().permit_expirable_semaphore("job");
        permits.try_set_permits(2).await.unwrap();
        let _held = permits.acquire(1).lease(LEASE * 10).await.unwrap();
        let key = "{job}:timeout";
        let expires = || {
            let held = server.ask(&["ZRANGE", key, "0", "0", "WITHSCORES"]);
            held.list()[1].text().to_owned()
        };
        let before = expires();
        let writes = changes(&server);
        // The id is binary.
        let renewal = format!("ARGV[1] = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n{PERMITS}");
        let renewed = server.ask(&["EVAL", &renewal, "1", key, "", "1"]);
        assert_eq!(renewed.int(), 1);
        assert!(changes(&server) > writes, "nothing was written");
        assert_eq!(expires(), before, "it was shortened");
    });
}

/// Returns the number of changes that the server would replicate.
fn changes(server: &Server) -> u64 {
    let info = server.ask(&["INFO", "persistence"]);
    let mut lines = info.text().lines();
    let count = lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    count.unwrap().parse().unwrap()
}

/// A full server refused to renew permits, and to keep them for `at_least`.
#[test]
fn full_server_keeps_permits() {
    run(async {
        let server = server(&Flavor::one());
        let client = client(&url_at(server.port())).await;
        let permits = client.redisson().permit_expirable_semaphore("job");
        permits.try_set_permits(2).await.unwrap();
        let held = permits.acquire(2).lease(LEASE).at_least(AMPLE);
        let held = held.await.unwrap();
        server.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        wait_for_renewal(&[&held.lease()]).await;
        held.release().await.unwrap();
        assert!(is_busy(permits.try_acquire(1)).await, "`at_least` is over");
    });
}

/// The client acquired a plain lock for a caller that left, and gave it to the
/// next caller, which wanted a fenced one. Its token was zero.
#[test]
fn caller_behind_an_unfenced_one_gets_a_token() {
    run(async {
        let server = server(&Flavor::one());
        let proxy = Proxy::start(server.port());
        let (slow, other) = (
            client(&url_at(proxy.port())).await,
            client(&url_at(server.port())).await,
        );
        let held = other.redisson().lock("job").lock().await.unwrap();
        let left = slow.redisson().lock("job");
        let left = tokio::spawn(async move { left.lock().timeout(AMPLE).await.map(drop) });
        eventually("a caller waits", || waiting_clients(&server) == 1).await;
        let late = slow.redisson().fenced_lock("job");
        let late = tokio::spawn(async move { late.lock().timeout(AMPLE).await });
        // It has a place behind the first caller.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let is_held = Arc::new(AtomicBool::new(false));
        let seen = is_held.clone();
        proxy.inject(move |request| match request[0].starts_with(b"EVAL") {
            true => {
                seen.store(true, Ordering::SeqCst);
                Fault::Hold
            }
            false => Fault::None,
        });
        held.release().await.unwrap();
        eventually("the lock is requested", || is_held.load(Ordering::SeqCst)).await;
        left.abort();
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.heal();
        proxy.release_held();
        let late = late.await.unwrap().unwrap();
        assert!(late.token().as_u64() > 0);
    });
}

/// Returns how many connections listen for releases.
fn waiting_clients(server: &Server) -> i64 {
    let channel = "redisson_lock__channel:{job}";
    let reply = server.ask(&["PUBSUB", "NUMSUB", channel]);
    reply.list()[1].int()
}

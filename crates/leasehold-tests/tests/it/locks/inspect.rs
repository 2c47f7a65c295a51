//! Inspection of locks, and forced release.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LockInfo, LockKind, Loss};
use testkit::{Flavor, Server, ServerExt};

use crate::support::contract::{KINDS, any_lock};
use crate::support::deployment::{Deployment, cluster, oldest_and_newest};
use crate::support::inspection::{LONG, allow_inspection, wait_for_listeners};
use crate::support::{
    AMPLE, SHORT, client, connect_at, key, name, on_every_server, run, server, with_long_timeouts,
};

/// How soon a holder must be notified.
const AT_ONCE: Duration = Duration::from_millis(600);

async fn connect_with_long_lease(server: &Server) -> Client {
    connect_at(server.port()).lease(LONG).await.unwrap()
}

async fn inspect(client: &Client, name: &str) -> LockInfo {
    let info = client.inspect(name).await.unwrap();
    info.unwrap_or_else(|| panic!("{name} is not held"))
}

#[test]
fn inspect_lists_holder_and_waiters_in_order() {
    on_every_server(|server| async move {
        allow_inspection(&server);
        let one = client(&server).await;
        let other = client(&server).await;
        let name = name();
        assert_eq!(one.inspect(&name).await.unwrap(), None);

        let guard = one.fair_mutex(&name).lock().note("first").await.unwrap();
        let mut waiting = Vec::new();
        let mut lock = inspect(&other, &name).await;
        for note in ["second", "third"] {
            // Tasks of one process are one waiter, so each needs its own
            // client.
            let waiter = client(&server).await;
            let acquiring = waiter.fair_mutex(&name).lock().note(note);
            waiting.push(tokio::spawn(async move {
                acquiring.await.map(|guard| (guard, waiter))
            }));
            wait_for_listeners(std::slice::from_ref(&server), 2 + waiting.len() as i64).await;
            while lock.waiter_count.unwrap() < waiting.len() as u64 {
                lock = inspect(&other, &name).await;
            }
        }
        assert_eq!((lock.kind, lock.holder_count), (LockKind::FairMutex, 1));
        let holder = &lock.holders[0];
        assert_eq!(holder.process.note.as_deref(), Some("first"));
        assert_eq!(holder.process.pid, Some(std::process::id()));
        assert_eq!(holder.process.connected, Some(true));
        assert!(holder.lease_remaining.is_some() && holder.process.since.is_some());
        let notes: Vec<_> = lock.waiters.iter().map(|at| at.note.as_deref()).collect();
        assert_eq!(notes, [Some("second"), Some("third")]);
        assert!(lock.waiters.iter().all(|at| at.connected == Some(true)));
        assert!(
            lock.waiters
                .iter()
                .all(|at| at.since.unwrap().elapsed().unwrap() < LONG)
        );
        drop(guard);
        for waiter in waiting {
            let (guard, client) = waiter.await.unwrap().unwrap();
            guard.release().await.unwrap();
            drop(client);
        }
    });
}

#[test]
fn inspect_recognises_every_kind() {
    on_every_server(|server| async move {
        allow_inspection(&server);
        // Redisson's names are whole keys, most of which this user may not
        // access.
        let client = client(&server).await;
        let kind = async |name: &str| inspect(&client, name).await.kind;
        let _mutex = client.mutex("a").lock().await.unwrap();
        assert_eq!(kind("a").await, LockKind::Mutex);
        let _permit = client.semaphore("b", 3).acquire_many(2).await.unwrap();
        let used = 2;
        let permits = 3;
        assert_eq!(kind("b").await, LockKind::Semaphore { used, permits });
        let _read = client.rw_lock("c").read().await.unwrap();
        let _too = client.rw_lock("c").read().await.unwrap();
        assert_eq!(kind("c").await, LockKind::RwLock);
        assert_eq!(inspect(&client, "c").await.holders.len(), 2);
        client.latch("d").set(4, LONG).await.unwrap();
        assert_eq!(kind("d").await, LockKind::Latch { remaining: 4 });
        server.tell(&["SET", "lock:e", "unknown", "PX", "60000"]);
        assert_eq!(kind("e").await, LockKind::Foreign);
        for data in [
            &["HSET", "lock:f", "field", "value"][..],
            &["RPUSH", "lock:g", "x"],
        ] {
            server.tell(data);
        }
        for name in ["f", "g"] {
            let error = client.inspect(name).await.unwrap_err();
            assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        }
        let mut found = Vec::new();
        let mut scan = client.scan("*");
        while let Some(page) = scan.next().await.unwrap() {
            found.extend(page.into_iter().map(|info| info.name));
        }
        found.sort();
        assert_eq!(found, ["a", "b", "c", "d", "e"]);
    });
}

#[test]
fn inspect_recognises_redisson_locks() {
    on_every_server(|server| async move {
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url)).prefix("");
        let client = connect.await.unwrap();
        let id = "a2b1f3c4-0000-4000-8000-123456789abc:1";
        let other = "a2b1f3c4-0000-4000-8000-123456789abc:2";
        server.tell(&["HSET", "plain", id, "1"]);
        server.tell(&["PEXPIRE", "plain", "30000"]);
        server.tell(&["HSET", "both", "mode", "read", id, "1", other, "2"]);
        server.tell(&["HSET", "fair", id, "1"]);
        server.tell(&["RPUSH", "redisson_lock_queue:{fair}", other]);
        let plain = inspect(&client, "plain").await;
        assert_eq!(plain.kind, LockKind::RedissonLock);
        assert_eq!(plain.holders[0].process.redisson.as_deref(), Some(id));
        assert!(plain.holders[0].lease_remaining.is_some());
        let both = inspect(&client, "both").await;
        assert_eq!(
            (both.kind, both.holder_count),
            (LockKind::RedissonReadWriteLock, 2)
        );
        let fair = inspect(&client, "fair").await;
        assert_eq!(
            (fair.kind, fair.waiter_count),
            (LockKind::RedissonFairLock, Some(1))
        );
        assert_eq!(fair.waiters[0].redisson.as_deref(), Some(other));
        assert_eq!(client.force_release("plain").await.unwrap().len(), 1);
        assert_eq!(client.inspect("plain").await.unwrap(), None);
    });
}

#[test]
fn inspect_without_permission_returns_denied() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let error = client.inspect("x").await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        let error = client.scan("*").next().await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
    });
}

#[test]
fn scan_covers_all_cluster_nodes() {
    scan_cluster(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats the test on several servers"]
fn scan_covers_all_nodes_on_oldest_and_newest() {
    scan_cluster(&oldest_and_newest());
}

fn scan_cluster(flavors: &[Flavor]) {
    for flavor in flavors {
        run(async {
            let cluster = cluster(flavor);
            cluster.servers().iter().for_each(allow_inspection);
            let client = cluster.client().await;
            let mut guards = Vec::new();
            for number in 0..60 {
                let name = format!("of-all:{number:02}");
                let lock = any_lock(&client, &name, number % KINDS).fixed_lease(LONG);
                guards.push(lock.await.unwrap());
            }
            wait_for_listeners(cluster.servers(), 1).await;
            let mut found = std::collections::BTreeSet::new();
            let mut scan = client.scan("of-all:*");
            while let Some(page) = scan.next().await.unwrap() {
                for info in page {
                    assert_eq!(info.holders[0].process.connected, Some(true), "{info:?}");
                    found.insert(info.name);
                }
            }
            assert_eq!(found.len(), 60);
            // Every holder is notified, on any node.
            client.force_release("of-all:07").await.unwrap();
            let lost = tokio::time::timeout(AMPLE, guards[7].lost()).await;
            assert_eq!(lost.unwrap(), Some(Loss::Revoked));
        });
    }
}

#[test]
fn revoked_holder_is_notified() {
    force_release_all(AMPLE);
}

#[test]
#[ignore = "deep: measures a latency"]
fn revoked_holder_is_notified_promptly() {
    force_release_all(AT_ONCE);
}

fn force_release_all(limit: Duration) {
    on_every_server(|server| async move {
        allow_inspection(&server);
        let holding = connect_with_long_lease(&server).await;
        let forcing = client(&server).await;
        wait_for_listeners(std::slice::from_ref(&server), 2).await;
        for kind in 0..KINDS {
            let name = name();
            let guard = any_lock(&holding, &name, kind).await.unwrap();
            let start = Instant::now();
            let freed = forcing.force_release(&name).await.unwrap();
            assert_eq!(freed.len(), 1, "kind {kind}");
            assert_eq!(freed[0].process.pid, Some(std::process::id()));
            assert_eq!(guard.lost().await, Some(Loss::Revoked));
            assert!(start.elapsed() < limit, "{:?}", start.elapsed());
            // The next client acquires it.
            let next = any_lock(&forcing, &name, kind).await.unwrap();
            next.release().await.unwrap();
            assert_eq!(forcing.force_release(&name).await.unwrap(), []);
        }
    });
}

#[test]
fn revoked_fixed_lease_is_reported() {
    on_every_server(|server| async move {
        allow_inspection(&server);
        let client = client(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().fixed_lease(LONG).await.unwrap();
        wait_for_listeners(std::slice::from_ref(&server), 1).await;
        client.force_release(&name).await.unwrap();
        let lost = tokio::time::timeout(AMPLE, guard.lost()).await;
        assert_eq!(lost.unwrap(), Some(Loss::Revoked));
    });
}

#[test]
fn forged_message_revokes_nothing() {
    on_every_server(|server| async move {
        let client = connect_with_long_lease(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        let value = server.ask(&["GET", &key(&name)]);
        let value = value.text();
        let process = &value[20..36];
        let channel = format!("leasehold:process:{{{process}}}");
        wait_for_listeners(std::slice::from_ref(&server), 1).await;
        let mut received = 0;
        for text in [value, "lh1", "", "nonsense", value] {
            received += server.ask(&["SPUBLISH", &channel, text]).int();
        }
        assert_eq!(received, 5);
        tokio::time::sleep(SHORT).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
fn until_free_resolves_on_release() {
    on_every_server(|server| async move {
        allow_inspection(&server);
        let holding = client(&server).await;
        let waiting = client(&server).await;
        let wait = async |kind: u64| {
            let name = name();
            waiting.until_free(&name, None).await.unwrap();
            let guard = any_lock(&holding, &name, kind).await.unwrap();
            let limit = Duration::from_secs(3);
            let error = waiting.until_free(&name, Some(limit)).await.unwrap_err();
            let is_held = matches!(
                &error,
                Error::Timeout {
                    holder: Some(_),
                    ..
                }
            );
            assert!(is_held, "kind {kind}: {error:?}");
            let releasing = async {
                tokio::time::sleep(SHORT).await;
                guard.release().await.unwrap();
            };
            let (free, ()) = tokio::join!(waiting.until_free(&name, None), releasing);
            free.unwrap();
        };
        tokio::join!(wait(0), wait(1), wait(2), wait(3));
    });
}

#[test]
fn server_info_reports_what_locks_depend_on() {
    check_server_info(AMPLE);
}

#[test]
#[ignore = "deep: measures a round trip, and a clock by it"]
fn server_info_clock_agrees_within_a_second() {
    check_server_info(Duration::from_secs(1));
}

/// A round trip takes less than `limit`, and the clocks differ by less.
fn check_server_info(limit: Duration) {
    on_every_server(|server| async move {
        let url = format!("redis://127.0.0.1:{}", server.port());
        let client = with_long_timeouts(Client::connect(&url)).await.unwrap();
        let infos = client.server_info().await.unwrap();
        let [info] = infos.as_slice() else {
            panic!("{infos:?}")
        };
        assert_eq!(info.eviction_policy.as_deref(), Some("noeviction"));
        assert_eq!(info.replicas, Some(0));
        assert_eq!(info.append_only.as_deref(), Some("no"));
        assert!(info.clock_ahead.unwrap().abs() < limit.as_secs_f64());
        assert!(info.round_trip < limit);
        // Without permission, only part of the information is available.
        let least = crate::support::client(&server).await;
        let infos = least.server_info().await.unwrap();
        assert_eq!(
            (&infos[0].eviction_policy, infos[0].replicas),
            (&None, None)
        );
        assert!(!infos[0].version.is_empty());
    });
}

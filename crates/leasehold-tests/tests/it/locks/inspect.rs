//! Looking at locks from outside, and taking them away by force.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LockInfo, LockKind, Loss, ReleaseOutcome};
use testkit::{Flavor, Server};

use crate::support::contract::{KINDS, any_lock};
use crate::support::deployment::{Deployment, cluster, old_and_new};
use crate::support::inspection::{LONG, allow_looking, listened_to};
use crate::support::{
    AMPLE, SHORT, builder_at, client, key, name, on_every_server, patient, run, server,
};

/// How soon a holder must know.
const AT_ONCE: Duration = Duration::from_millis(600);

async fn with_long_leases(server: &Server) -> Client {
    let builder = builder_at(server.port()).lease(LONG);
    builder.connect().await.unwrap()
}

async fn seen(client: &Client, name: &str) -> LockInfo {
    let seen = client.inspect(name).await.unwrap();
    seen.unwrap_or_else(|| panic!("nobody holds {name}"))
}

#[test]
fn a_look_says_who_holds_and_who_waits_in_order() {
    on_every_server(|server| async move {
        allow_looking(&server);
        let (one, other) = (client(&server).await, client(&server).await);
        let name = name();
        assert_eq!(one.inspect(&name).await.unwrap(), None);

        let guard = one.fair_mutex(&name).lock().note("first").await.unwrap();
        let mut waiting = Vec::new();
        let mut lock = seen(&other, &name).await;
        for note in ["second", "third"] {
            // Tasks of one process are one waiter: each needs a client of its own.
            let waiter = client(&server).await;
            let acquiring = waiter.fair_mutex(&name).lock().note(note);
            waiting.push(tokio::spawn(async move {
                acquiring.await.map(|guard| (guard, waiter))
            }));
            listened_to(std::slice::from_ref(&server), 2 + waiting.len() as i64).await;
            while lock.waiter_count.unwrap() < waiting.len() as u64 {
                lock = seen(&other, &name).await;
            }
        }
        assert_eq!((lock.kind, lock.holder_count), (LockKind::FairMutex, 1));
        let holder = &lock.holders[0];
        assert_eq!(holder.note.as_deref(), Some("first"));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.connected, Some(true));
        assert!(holder.lease_remaining.is_some() && holder.since.is_some());
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
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            drop(client);
        }
    });
}

#[test]
fn every_kind_is_recognised() {
    on_every_server(|server| async move {
        allow_looking(&server);
        // Redisson's names are whole keys, and this user may touch few of those.
        let client = client(&server).await;
        let kind = async |name: &str| seen(&client, name).await.kind;
        let _mutex = client.mutex("a").lock().await.unwrap();
        assert_eq!(kind("a").await, LockKind::Mutex);
        let _permit = client.semaphore("b", 3).acquire_many(2).await.unwrap();
        let (used, permits) = (2, 3);
        assert_eq!(kind("b").await, LockKind::Semaphore { used, permits });
        let _read = client.rw_lock("c").read().await.unwrap();
        let _too = client.rw_lock("c").read().await.unwrap();
        assert_eq!(kind("c").await, LockKind::RwLock);
        assert_eq!(seen(&client, "c").await.holders.len(), 2);
        client.latch("d").set(4, LONG).await.unwrap();
        assert_eq!(kind("d").await, LockKind::Latch { remaining: 4 });
        server.tell(&["SET", "lock:e", "whatever", "PX", "60000"]);
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
            found.extend(page.into_iter().map(|seen| seen.name));
        }
        found.sort();
        assert_eq!(found, ["a", "b", "c", "d", "e"]);
    });
}

#[test]
fn locks_of_redissons_are_recognised() {
    on_every_server(|server| async move {
        let url = format!("redis://127.0.0.1:{}", server.port());
        let builder = patient(Client::builder(&url)).prefix("");
        let client = builder.connect().await.unwrap();
        let (id, other) = (
            "a2b1f3c4-0000-4000-8000-123456789abc:1",
            "a2b1f3c4-0000-4000-8000-123456789abc:2",
        );
        server.tell(&["HSET", "plain", id, "1"]);
        server.tell(&["PEXPIRE", "plain", "30000"]);
        server.tell(&["HSET", "both", "mode", "read", id, "1", other, "2"]);
        server.tell(&["HSET", "fair", id, "1"]);
        server.tell(&["RPUSH", "redisson_lock_queue:{fair}", other]);
        let plain = seen(&client, "plain").await;
        assert_eq!(plain.kind, LockKind::RedissonLock);
        assert_eq!(plain.holders[0].redisson.as_deref(), Some(id));
        assert!(plain.holders[0].lease_remaining.is_some());
        let both = seen(&client, "both").await;
        assert_eq!(
            (both.kind, both.holder_count),
            (LockKind::RedissonReadWriteLock, 2)
        );
        let fair = seen(&client, "fair").await;
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
fn one_who_may_not_look_is_told_so() {
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
fn a_scan_finds_the_locks_of_all_nodes_of_a_cluster() {
    scan_cluster(&[Flavor::one()]);
}

#[test]
#[ignore = "deep: repeats the test on several servers"]
fn scan_of_cluster_on_old_and_new_finds_all() {
    scan_cluster(&old_and_new());
}

fn scan_cluster(flavors: &[Flavor]) {
    for flavor in flavors {
        run(async {
            let cluster = cluster(flavor);
            cluster.servers().iter().for_each(allow_looking);
            let client = cluster.client().await;
            let mut guards = Vec::new();
            for number in 0..60 {
                let name = format!("of-all:{number:02}");
                let lock = any_lock(&client, &name, number % KINDS).fixed_lease(LONG);
                guards.push(lock.await.unwrap());
            }
            listened_to(cluster.servers(), 1).await;
            let mut found = std::collections::BTreeSet::new();
            let mut scan = client.scan("of-all:*");
            while let Some(page) = scan.next().await.unwrap() {
                for seen in page {
                    assert_eq!(seen.holders[0].connected, Some(true), "{seen:?}");
                    found.insert(seen.name);
                }
            }
            assert_eq!(found.len(), 60);
            // Holders are told wherever they are.
            client.force_release("of-all:07").await.unwrap();
            let lost = tokio::time::timeout(AMPLE, guards[7].lost()).await;
            assert_eq!(lost.unwrap(), Some(Loss::Revoked));
        });
    }
}

#[test]
fn one_whose_lock_is_taken_by_force_is_told_at_once() {
    take_by_force(AMPLE);
}

#[test]
#[ignore = "deep: measures a latency"]
fn holder_whose_lock_is_revoked_knows_at_once() {
    take_by_force(AT_ONCE);
}

fn take_by_force(limit: Duration) {
    on_every_server(|server| async move {
        allow_looking(&server);
        let (holding, forcing) = (with_long_leases(&server).await, client(&server).await);
        listened_to(std::slice::from_ref(&server), 2).await;
        for kind in 0..KINDS {
            let name = name();
            let guard = any_lock(&holding, &name, kind).await.unwrap();
            let start = Instant::now();
            let freed = forcing.force_release(&name).await.unwrap();
            assert_eq!(freed.len(), 1, "kind {kind}");
            assert_eq!(freed[0].pid, Some(std::process::id()));
            assert_eq!(guard.lost().await, Some(Loss::Revoked));
            assert!(start.elapsed() < limit, "{:?}", start.elapsed());
            // It is the next one's.
            let next = any_lock(&forcing, &name, kind).await.unwrap();
            assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
            assert_eq!(forcing.force_release(&name).await.unwrap(), []);
        }
    });
}

#[test]
fn a_fixed_lease_taken_by_force_is_told_of_too() {
    on_every_server(|server| async move {
        allow_looking(&server);
        let client = client(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().fixed_lease(LONG).await.unwrap();
        listened_to(std::slice::from_ref(&server), 1).await;
        client.force_release(&name).await.unwrap();
        let lost = tokio::time::timeout(AMPLE, guard.lost()).await;
        assert_eq!(lost.unwrap(), Some(Loss::Revoked));
    });
}

#[test]
fn a_forged_message_takes_nothing() {
    on_every_server(|server| async move {
        let client = with_long_leases(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        let mark = server.ask(&["GET", &key(&name)]);
        let mark = mark.text();
        let process = &mark[20..36];
        let channel = format!("leasehold:process:{{{process}}}");
        listened_to(std::slice::from_ref(&server), 1).await;
        let mut heard = 0;
        for text in [mark, "lh1", "", "nonsense", mark] {
            heard += server.ask(&["SPUBLISH", &channel, text]).int();
        }
        assert_eq!(heard, 5);
        tokio::time::sleep(SHORT).await;
        guard.check().unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

#[test]
fn one_can_wait_until_nobody_holds_it() {
    on_every_server(|server| async move {
        allow_looking(&server);
        let (holding, waiting) = (client(&server).await, client(&server).await);
        let wait = async |kind: u64| {
            let name = name();
            waiting.wait_until_free(&name, None).await.unwrap();
            let guard = any_lock(&holding, &name, kind).await.unwrap();
            let limit = Duration::from_secs(3);
            let error = waiting
                .wait_until_free(&name, Some(limit))
                .await
                .unwrap_err();
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
                guard.release().await.unwrap()
            };
            let (free, _) = tokio::join!(waiting.wait_until_free(&name, None), releasing);
            free.unwrap();
        };
        tokio::join!(wait(0), wait(1), wait(2), wait(3));
    });
}

#[test]
fn a_server_says_what_locks_depend_on() {
    examine(AMPLE);
}

#[test]
#[ignore = "deep: measures a round trip, and a clock by it"]
fn examined_server_answers_and_agrees_within_a_second() {
    examine(Duration::from_secs(1));
}

/// A round trip takes less than `limit`, and the clocks are less than that apart.
fn examine(limit: Duration) {
    on_every_server(|server| async move {
        let url = format!("redis://127.0.0.1:{}", server.port());
        let client = patient(Client::builder(&url)).connect().await.unwrap();
        let examined = client.server_info().await.unwrap();
        let [seen] = examined.as_slice() else {
            panic!("{examined:?}")
        };
        assert_eq!(seen.eviction_policy.as_deref(), Some("noeviction"));
        assert_eq!(seen.replicas, Some(0));
        assert_eq!(seen.append_only.as_deref(), Some("no"));
        assert!(seen.clock_ahead.unwrap().abs() < limit.as_secs_f64());
        assert!(seen.round_trip < limit);
        // One who may not ask is told what it may know.
        let least = crate::support::client(&server).await;
        let examined = least.server_info().await.unwrap();
        assert_eq!(
            (&examined[0].eviction_policy, examined[0].replicas),
            (&None, None)
        );
        assert!(!examined[0].version.is_empty());
    });
}
